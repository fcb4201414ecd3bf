// Data sets in GPU memory: run on the CPU by test_data_resident.cpp, and on a GPU by test_exec_cuda_gpu.cu.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "skip.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/data/cropped.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/data/resident.cuh>

namespace data_resident {

using namespace convoy;
using data::Field;
using memory::Device;

inline data::ImageSet images(std::size_t count, Image image) {
  const auto size = static_cast<std::size_t>(Shape(image).size());
  const std::shared_ptr<u8[]> pixels(new u8[count * size]), labels(new u8[count]);
  Philox random(count);
  for (std::size_t i = 0; i < count * size; ++i) pixels[i] = static_cast<u8>(random.below(256));
  for (std::size_t i = 0; i < count; ++i) labels[i] = static_cast<u8>(random.below(10));
  std::vector<data::Normalization> channels;
  for (int c = 0; c < image.channels; ++c)
    channels.push_back({0.1f * static_cast<float>(c), 0.5f + 0.1f * static_cast<float>(c)});
  return {pixels, labels, count, image, 10, channels};
}

/// Fields whose row sizes are multiples of 16, 4 and 1 bytes.
struct Mixture {
  std::size_t size() const { return 300; }
  std::span<const Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      Philox random(f, index);
      for (std::byte& b : out.bytes(f)) b = static_cast<std::byte>(random.below(256));
    }
  }
  std::array<Field, 3> fields_ = {Field{"sequence", DType::f32, Sequence{4, 3}}, Field{"id", DType::i32, {}},
                                  Field{"color", DType::u8, Image{3, 1, 1}}};
};

/// Fills a resident set as a fit does: each sample once, a few at a time.
inline void take_all(data::Resident<Device>& there, const data::DatasetRef& set) {
  constexpr std::size_t most = 37;
  const data::Samples samples(set.fields(), most);
  std::vector<std::uint64_t> indices(most);
  for (std::size_t first = 0; first < set.size(); first += most) {
    const auto some = std::span(indices).first(std::min(most, set.size() - first));
    std::iota(some.begin(), some.end(), first);
    set.fill(data::Rows(samples.fields(), samples.columns().data(), 0, some, 0, {}));
    there.take(first, samples, some.size());
  }
}

/// Checks that each batch that the GPU makes of `set` equals a loader's, byte for byte.
template <class D>
void expect_rows_of_loader(const D& set, const data::LoaderOptions& options, std::int64_t first_step = 0) {
  Device space;
  data::Resident<Device> there(space, &set);
  take_all(there, &set);
  data::Loader loader(set, options);
  const data::BatchPlan plan = loader.plan();
  for (const std::int64_t epoch : {std::int64_t{0}, std::int64_t{3}}) {
    there.start(data::order_of(plan, options.seed, epoch), {.seed = options.seed, .epoch = epoch});
    loader.start(epoch, first_step);
    for (std::int64_t step = first_step; step < plan.steps(); ++step) {
      const data::Batch& expected = *loader.next();
      there.go_to(plan.places(step).begin, plan.rows(step).begin);
      for (std::size_t f = 0; f < expected.fields.size(); ++f) {
        const std::size_t bytes = static_cast<std::size_t>(expected.rows) * expected.fields[f].bytes();
        const memory::Array<std::byte, Device> made(space, bytes + 16);
        there.make(f, static_cast<int>(expected.rows), made.data());
        std::vector<std::byte> got(bytes + 16);
        space.read(got.data(), made.data(), got.size());
        CHECK(std::memcmp(got.data(), expected.columns[f], bytes) == 0);
        CHECK(got[bytes] == std::byte{});  // nothing was written behind the rows
      }
    }
  }
}

}  // namespace data_resident

TEST_CASE("images that lie on a GPU give the batches that a loader reads") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace data_resident;
  for (const Image image : {Image{1, 28, 28}, Image{3, 5, 7}})
    for (const std::size_t count : {std::size_t{90}, std::size_t{700}}) {  // shuffled once, or by a network
      CAPTURE(image.channels);
      CAPTURE(count);
      expect_rows_of_loader(images(count, image), {.batch = 32, .seed = 5});
    }
}

TEST_CASE("crops of images that lie on a GPU are those that a loader draws") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace data_resident;
  for (const Image image : {Image{3, 32, 32}, Image{2, 9, 6}})
    for (const bool flip : {false, true}) {
      const data::Cropped set(images(300, image), {.padding = 4, .flip = flip});
      expect_rows_of_loader(set, {.batch = 40, .seed = 9});
      for (const int rank : {0, 1, 2})
        expect_rows_of_loader(set, {.batch = 13, .shard = {rank, 3}, .seed = 9}, 2);
    }
  expect_rows_of_loader(data::Cropped(images(300, {1, 12, 12})), {.batch = 64, .shard = {1, 2, {}, true}});
}

TEST_CASE("rows of any fields that lie on a GPU are those of the set") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace data_resident;
  expect_rows_of_loader(Mixture{}, {.batch = 50, .seed = 2});
  expect_rows_of_loader(Mixture{}, {.batch = 7, .shard = {1, 2}, .seed = 2}, 3);
}

TEST_CASE("a GPU keeps images as bytes") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace data_resident;
  Device space;
  const data::ImageSet set = images(100, {3, 8, 8});
  CHECK(data::Resident<Device>(space, &set).bytes() == 100 * (3 * 8 * 8 + 1) + 3 * 256 * sizeof(float));
  const data::ImageSet few = set.first(10);
  CHECK(data::Resident<Device>(space, &few).bytes() == 10 * (3 * 8 * 8 + 1) + 3 * 256 * sizeof(float));
}

TEST_CASE("a set that a GPU cannot make rows of is refused") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace data_resident;
  struct Noisy : Mixture {
    void fill(const data::Rows& rows) const {
      for (std::size_t r = 0; r < rows.size(); ++r) read(rows.index(r), rows[r]);
    }
  };
  Device space;
  const Noisy noisy;
  CHECK_THROWS_WITH_AS(
      data::Resident<Device>(space, &noisy),
      "data: a GPU cannot make the rows of this data set: they depend on more than their index, and are "
      "not stored images; leave out FitOptions::resident",
      ConfigError);
  struct Other : Mixture {
    data::StoredImages stored_images() const { return images(4, {1, 2, 2}).stored_images(); }
  };
  const Other other;
  CHECK_THROWS_WITH_AS(
      data::Resident<Device>(space, &other),
      "data: the 4 stored images of [1x2x2] of this data set do not match its fields, which must "
      "be an f32 image and an i32 label",
      ConfigError);
}
