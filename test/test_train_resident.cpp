// EMULATES
// SANITIZE: none
// TIMEOUT: 600
// Training from a data set that lies on a GPU, whose kernels and graphs run on processors.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "train_cuda.hpp"

namespace {

using namespace train_cuda;
using emulation::Called;

using Cuda = exec::Cuda<f32>;

template <class Set>
Trace fitted(const Set& set, const Settings& settings, bool resident) {
  auto config = config_of<Alone<Cuda>>(settings);
  config.exec.candidates = 1;  // of two timed ones bits may differ
  Alone<Cuda> trainer(config);
  return trace_of(trainer, settings, set, resident);
}

/// What Blobs has, as images of bytes.
data::ImageSet blobs_of_bytes(std::size_t count) {
  const Blobs blobs(count);
  const std::shared_ptr<u8[]> pixels(new u8[count * 64]), labels(new u8[count]);
  const data::Samples sample(blobs.fields(), 1);
  for (std::size_t i = 0; i < count; ++i) {
    data::read(blobs, i, sample);
    const auto values = sample.row(0).as<float>(0);
    for (std::size_t k = 0; k < 64; ++k)
      pixels[static_cast<std::ptrdiff_t>(i * 64 + k)] =
          static_cast<u8>(std::clamp(128 + 60 * values[k], 0.0f, 255.0f));
    labels[static_cast<std::ptrdiff_t>(i)] = static_cast<u8>(sample.row(0).as<i32>(1)[0]);
  }
  return {pixels, labels, count, image, classes, {0.5f, 0.25f}};
}

/// More classes than the model has.
struct Foreign : Blobs {
  using Blobs::Blobs;
  void read(std::size_t index, data::Sample out) const {
    Blobs::read(index, out);
    if (index == 33) out.as<i32>(1)[0] = classes;
  }
};

}  // namespace

TEST_CASE("cuda: a fit from a resident set has the bits of one that the host reads") {
  const data::ImageSet bytes = blobs_of_bytes(67);
  for (const Settings& settings : {Settings{}, Settings{.batch = 3, .accumulate = 2, .clip = 0.5f}}) {
    CAPTURE(settings.accumulate);
    CHECK(fitted(Blobs(67), settings, true) == fitted(Blobs(67), settings, false));
    CHECK(fitted(bytes, settings, true) == fitted(bytes, settings, false));
    const data::Cropped cropped(bytes, {.padding = 2});
    const Trace made = fitted(cropped, settings, true);
    CHECK(made == fitted(cropped, settings, false));
    CHECK(made.losses != fitted(bytes, settings, true).losses);
  }
  const emulation::With late({.late = true});
  CHECK(fitted(bytes, {}, true) == fitted(bytes, {}, false));
}

TEST_CASE("cuda: ranks that are threads fit from resident sets as one does") {
  const data::ImageSet bytes = blobs_of_bytes(67);
  const emulation::With two({.devices = 2});
  const auto fits = [&](bool resident) {
    using T = Trainer<Mixed, optim::Sgd, comm::Staged<Ring, memory::Device>, Cuda>;
    std::vector<Trace> all(2);
    transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
      device::use(endpoint.rank());
      auto config = config_of<T>({.batch = 5});
      config.exec.candidates = 1;
      T trainer(config, endpoint);
      all[static_cast<std::size_t>(endpoint.rank())] = trace_of(trainer, {.batch = 5}, bytes, resident);
    });
    return all;
  };
  CHECK(fits(true) == fits(false));
}

TEST_CASE("cuda: a step from a resident set copies no batch") {
  const auto calls = [](bool resident) {
    Alone<Cuda> trainer(config_of<Alone<Cuda>>({}));
    const data::ImageSet bytes = blobs_of_bytes(60);
    std::vector<emulation::Counts> seen;
    trainer.fit(bytes, {.epochs = 1,
                        .on_step =
                            [&](const train::StepReport&) {
                              seen.push_back(emulation::Counts::now());
                              return train::Control::go_on;
                            },
                        .log = nullptr,
                        .resident = resident});
    return seen.at(6) - seen.at(5);
  };
  const emulation::Counts read = calls(false), made = calls(true);
  CHECK(made.all() < read.all());
  CHECK(made[Called::pageable_copy] == 0);
  CHECK(made[Called::host_wait] <= read[Called::host_wait]);
}

TEST_CASE("a fit from a resident set is refused where it cannot be") {
  const Blobs blobs(67);
  {
    Alone<exec::Reference<f32>> trainer(config_of<Alone<exec::Reference<f32>>>({}));
    CHECK_THROWS_WITH_AS(trainer.fit(blobs, {.log = nullptr, .resident = true}),
                         "fit: a data set is resident on a GPU, with exec::Cuda, not with exec::reference",
                         ConfigError);
  }
  Alone<Cuda> trainer(config_of<Alone<Cuda>>({}));
  const Foreign foreign(67);
  CHECK_THROWS_WITH_AS(trainer.fit(foreign, {.log = nullptr, .resident = true}),
                       "exec: label of row 33 is 5, not in [0, 5)", ExecError);
}
