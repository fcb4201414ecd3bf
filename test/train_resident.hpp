// Fits from a data set in GPU memory: run on the CPU by test_train_cuda.cpp, and on a GPU by
// test_train_cuda_gpu.cu.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>

#include "train_cuda.hpp"
#include <convoy/data/cropped.hpp>
#include <convoy/data/image_set.hpp>
#include <convoy/optim/lars.hpp>

namespace train_resident {

using namespace train_cuda;

using Cuda = exec::Cuda<f32>;

template <class Exec = Cuda, class Rule = optim::Sgd>
auto config_of_steps(const Settings& settings, int steps_at_once) {
  auto config = config_of<train_cuda::Alone<Exec, Rule>>(settings);
  config.exec.candidates = 1;  // with two candidates, timing would decide the bits
  config.exec.steps_at_once = steps_at_once;
  return config;
}

template <class Exec = Cuda, class Rule = optim::Sgd, class Set>
Trace fitted(const Set& set, const Settings& settings, bool resident, int steps_at_once = 4) {
  train_cuda::Alone<Exec, Rule> trainer(config_of_steps<Exec, Rule>(settings, steps_at_once));
  return trace_of(trainer, settings, set, resident);
}

/// The samples of Blobs as images of bytes.
inline data::ImageSet blobs_of_bytes(std::size_t count) {
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

/// Blobs with a label that the model does not have.
struct Foreign : Blobs {
  using Blobs::Blobs;
  void read(std::size_t index, data::Sample out) const {
    Blobs::read(index, out);
    if (index == 33) out.as<i32>(1)[0] = classes;
  }
};

/// Blobs that count their reads.
struct Counted : Blobs {
  using Blobs::Blobs;
  void read(std::size_t index, data::Sample out) const {
    ++reads;
    Blobs::read(index, out);
  }
  mutable std::atomic<std::size_t> reads = 0;
};

}  // namespace train_resident

TEST_CASE("cuda: a fit from a resident set has the bits of one that the host reads") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_resident;
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
}

TEST_CASE("cuda: resident sets are read once, the one for validation too") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_resident;
  const Counted training(67), test(19, 8);
  const Settings settings{.epochs = 3};
  train_cuda::Alone<Cuda> trainer(config_of_steps(settings, 4));
  trainer.fit(training, {.epochs = settings.epochs, .validate = &test, .log = nullptr, .resident = true});
  CHECK(training.reads == 67);
  CHECK(test.reads == 19);
}

TEST_CASE("a resident set is refused by an Exec of the host, and with a label that the model does not have") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_resident;
  const Blobs blobs(67);
  {
    train_cuda::Alone<exec::Reference<f32>> trainer(config_of<train_cuda::Alone<exec::Reference<f32>>>({}));
    CHECK_THROWS_WITH_AS(
        trainer.fit(blobs, {.log = nullptr, .resident = true}),
        "fit: a resident data set needs exec::Cuda, but this trainer computes with exec::reference",
        ConfigError);
  }
  train_cuda::Alone<Cuda> trainer(config_of<train_cuda::Alone<Cuda>>({}));
  const Foreign foreign(67);
  CHECK_THROWS_WITH_AS(trainer.fit(foreign, {.log = nullptr, .resident = true}),
                       "exec: the label 'label' of sample 33 is 5, expected 0 to 4", ExecError);
}

TEST_CASE_TEMPLATE("cuda: steps that are enqueued together have the results and reports of single steps", P,
                   convoy::f32, convoy::f16) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_resident;
  using Exec = exec::Cuda<P>;
  const data::ImageSet set = blobs_of_bytes(67);
  for (const float clip : {0.0f, 0.5f}) {
    const Settings settings{.clip = clip};
    const Trace one_by_one = fitted<Exec>(set, settings, false);
    CHECK(one_by_one.steps.size() == 24);
    for (const int steps : {1, 2, 3, 4, 30}) {
      CAPTURE(steps);
      CHECK(fitted<Exec>(set, settings, true, steps) == one_by_one);
    }
  }
  CHECK(fitted<Exec, optim::Lars>(set, {}, true, 3) == fitted<Exec, optim::Lars>(set, {}, false));
  CHECK(fitted<Exec, optim::Muon>(set, {}, true, 3) == fitted<Exec, optim::Muon>(set, {}, false));
}

TEST_CASE("cuda: steps that were held back run before anything that they change is read") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_resident;
  const data::ImageSet set = blobs_of_bytes(67);
  const auto parameters_of = [](auto& trainer) {
    std::vector<float> all;
    for (const auto& parameter : trainer.parameters())
      for (const float value : parameter.values()) all.push_back(value);
    return all;
  };
  // Step counts for which no steps are held back, and for which a fit ends with steps held back.
  const auto after = [&](std::int64_t steps, bool resident) {
    train_cuda::Alone<Cuda> trainer(config_of_steps({}, 4));
    trainer.fit(set, {.epochs = 2, .steps = steps, .log = nullptr, .resident = resident});
    return parameters_of(trainer);
  };
  for (const std::int64_t steps : {1, 2, 4, 8, 11, 12, 15}) {
    CAPTURE(steps);
    CHECK(after(steps, true) == after(steps, false));
  }
  // Parameters read in the middle of a fit include all steps begun so far.
  train_cuda::Alone<Cuda> watched(config_of_steps({}, 4));
  std::vector<std::vector<float>> seen;
  watched.fit(set, {.epochs = 1,
                    .on_step =
                        [&](const train::StepReport& report) {
                          if (report.step % 3 == 0) seen.push_back(parameters_of(watched));
                          return train::Control::go_on;
                        },
                    .log = nullptr,
                    .resident = true});
  CHECK(seen.size() == 4);
  CHECK(seen.back() == after(12, false));
  CHECK(parameters_of(watched) == seen.back());
}

TEST_CASE("cuda: a fit that a callback ends by an exception has made the steps that it began") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_resident;
  struct Enough {};
  const auto interrupted = [&](bool resident) {
    train_cuda::Alone<Cuda> trainer(config_of_steps({}, 3));
    {
      const data::ImageSet set = blobs_of_bytes(67);
      CHECK_THROWS_AS(trainer.fit(set, {.on_step = [&](const train::StepReport& report) -> train::Control {
                                          if (report.step == (resident ? 2 : 3)) throw Enough();
                                          return train::Control::go_on;
                                        },
                                        .log = nullptr,
                                        .resident = resident}),
                      Enough);
    }
    std::vector<float> all;
    for (const auto& parameter : trainer.parameters())
      for (const float value : parameter.values()) all.push_back(value);
    return all;
  };
  // Both fits have begun six steps when on_step throws. One by one, results are two steps late; three at a
  // time, the first three are reported once the next three have begun.
  CHECK(interrupted(true) == interrupted(false));
}
