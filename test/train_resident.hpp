// Fits from a data set that lies on a GPU: run on processors by test_train_cuda.cpp, and on a GPU by
// test_exec_cuda_gpu.cu.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "train_cuda.hpp"
#include <convoy/data/cropped.hpp>
#include <convoy/data/image_set.hpp>

namespace train_resident {

using namespace train_cuda;

using Cuda = exec::Cuda<f32>;

template <class Set>
Trace fitted(const Set& set, const Settings& settings, bool resident) {
  auto config = config_of<train_cuda::Alone<Cuda>>(settings);
  config.exec.candidates = 1;  // of two timed ones bits may differ
  train_cuda::Alone<Cuda> trainer(config);
  return trace_of(trainer, settings, set, resident);
}

/// What Blobs has, as images of bytes.
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

/// More classes than the model has.
struct Foreign : Blobs {
  using Blobs::Blobs;
  void read(std::size_t index, data::Sample out) const {
    Blobs::read(index, out);
    if (index == 33) out.as<i32>(1)[0] = classes;
  }
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

TEST_CASE("a fit from a resident set is refused where it cannot be") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_resident;
  const Blobs blobs(67);
  {
    train_cuda::Alone<exec::Reference<f32>> trainer(config_of<train_cuda::Alone<exec::Reference<f32>>>({}));
    CHECK_THROWS_WITH_AS(trainer.fit(blobs, {.log = nullptr, .resident = true}),
                         "fit: a data set is resident on a GPU, with exec::Cuda, not with exec::reference",
                         ConfigError);
  }
  train_cuda::Alone<Cuda> trainer(config_of<train_cuda::Alone<Cuda>>({}));
  const Foreign foreign(67);
  CHECK_THROWS_WITH_AS(trainer.fit(foreign, {.log = nullptr, .resident = true}),
                       "exec: label of row 33 is 5, not in [0, 5)", ExecError);
}
