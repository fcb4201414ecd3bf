// Resident on a GPU: the samples of a data set, and kernels that make batches of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/permutation.hpp>
#include <convoy/data/resident.hpp>
#include <convoy/data/stored_images.hpp>
#include <convoy/memory/device.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::data {

namespace detail {

/// What the rows of a batch are a function of: the epoch, and the place in it. Kept in device memory.
struct EpochThere {
  Permutation order;
  Rows::Draw draw;
};
struct PlaceThere {
  std::uint64_t first = 0;    ///< place in the epoch's order
  std::int64_t position = 0;  ///< of the first row, for its random numbers
};

__device__ inline std::int64_t sample_of(const EpochThere& epoch, const PlaceThere& place, int row) {
  return static_cast<std::int64_t>(epoch.order(place.first + static_cast<std::uint64_t>(row)));
}

/// The stored images, as `make_images` takes them.
struct ImagesThere {
  int channels, height, width;
  const u8* pixels;
  const float* normalized;  ///< 256 numbers a channel
  CropOptions crop;
};

/// Makes image rows of f32 in canonical order. A thread makes `lanes` adjacent pixels of a line, whose width
/// `lanes` divides.
template <int lanes>
__global__ void make_images(ImagesThere images, const EpochThere* epoch, const PlaceThere* place, int rows,
                            float* to) {
  __shared__ std::int64_t sample;
  __shared__ int down, right, mirrored;
  const int plane = images.height * images.width, size = images.channels * plane;
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    if (threadIdx.x == 0) {
      sample = sample_of(*epoch, *place, row);
      Crop crop;
      if (images.crop.padding > 0 || images.crop.flip)
        crop = Crop(images.crop,
                    random_of(epoch->draw, static_cast<std::uint64_t>(place->position + row), Crop::use));
      down = crop.down;
      right = crop.right;
      mirrored = crop.mirrored;
    }
    __syncthreads();
    const u8* const from = images.pixels + sample * size;
    const auto step = static_cast<int>(gridDim.x * blockDim.x) * lanes;
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * lanes; i < size; i += step) {
      const int channel = i / plane, y = i % plane / images.width, x = i % images.width;
      const float* const table = images.normalized + channel * 256;
      const int line = y + down;
      device::Lanes<float, lanes> made;
      for (int k = 0; k < lanes; ++k) {
        const int column = (mirrored != 0 ? images.width - 1 - x - k : x + k) + right;
        const bool inside = line >= 0 && line < images.height && column >= 0 && column < images.width;
        made.lane[k] = table[inside ? from[channel * plane + line * images.width + column] : 0];
      }
      *reinterpret_cast<device::Lanes<float, lanes>*>(to + std::int64_t{row} * size + i) = made;
    }
    __syncthreads();  // the next row overwrites the shared crop
  }
}

template <class = void>
__global__ void make_labels(const u8* labels, const EpochThere* epoch, const PlaceThere* place, int rows,
                            i32* to) {
  const auto row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows) to[row] = labels[sample_of(*epoch, *place, row)];
}

/// Copies rows of `words` words each.
template <class Word>
__global__ void make_rows(const Word* samples, const EpochThere* epoch, const PlaceThere* place, int rows,
                          std::int64_t words, Word* to) {
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    const Word* const from = samples + sample_of(*epoch, *place, row) * words;
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step)
      to[row * words + i] = from[i];
  }
}

}  // namespace detail

/// Images that the set stores as bytes are stored as bytes, all other samples as their rows.
template <>
class Resident<memory::Device> {
 public:
  Resident(memory::Device& space, const DatasetRef& set)
      : space_(space), stored_(set.stored_images()), epoch_(space, 1), place_(space, 1) {
    if (!stored_ && !set.by_index())
      fail<ConfigError>(
          "data: a GPU cannot make the rows of this data set: they depend on more than their index, and are "
          "not stored images; leave out FitOptions::resident");
    for (const Field& field : set.fields()) {
      Column column{field, {}};
      if (!stored_) column.samples = Bytes(space, set.size() * field.bytes());
      columns_.push_back(std::move(column));
    }
    if (stored_) store();
  }
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  std::size_t bytes() const {
    std::size_t all = normalized_.bytes();
    for (const Column& column : columns_) all += column.samples.size();
    return all;
  }

  void take(std::size_t first, const Samples& samples, std::size_t count) {
    if (stored_) return;
    for (std::size_t f = 0; f < columns_.size(); ++f) {
      const std::size_t row = columns_[f].field.bytes();
      space_.write(columns_[f].samples.data() + first * row, samples.columns()[f], count * row);
    }
  }

  void start(const Permutation& order, const Rows::Draw& draw) {
    const detail::EpochThere epoch{order, draw};
    space_.write(epoch_.data(), &epoch, sizeof epoch);
    space_.synchronize();
  }

  void go_to(std::int64_t place, std::int64_t position) {
    const detail::PlaceThere next{static_cast<std::uint64_t>(place), position};
    space_.write(place_.data(), &next, sizeof next);
  }

  void make(std::size_t field, int rows, void* to) {
    const Column& column = columns_[field];
    if (!stored_)
      copy_rows(column, rows, to);
    else if (field == 0)
      make_images(rows, static_cast<float*>(to));
    else
      device::launch({space_.stream(), static_cast<unsigned>((rows + 255) / 256)}, detail::make_labels<>,
                     reinterpret_cast<const u8*>(column.samples.data()), epoch_.data(), place_.data(), rows,
                     static_cast<i32*>(to));
  }

 private:
  using Bytes = memory::Array<std::byte, memory::Device>;

  struct Column {
    Field field;
    Bytes samples;
  };

  void store() {
    const Image& image = stored_->image;
    if (columns_.size() != 2 || columns_[0].field.dtype != DType::f32 ||
        !(columns_[0].field.shape == Shape(image)) || columns_[1].field.dtype != DType::i32 ||
        columns_[1].field.elements() != 1 ||
        stored_->pixels.size() != stored_->labels.size() * columns_[0].field.elements() ||
        stored_->normalized.size() != static_cast<std::size_t>(image.channels))
      fail<ConfigError>(
          "data: the ", stored_->labels.size(), " stored images of ", Shape(image),
          " of this data set do not match its fields, which must be an f32 image and an i32 label");
    columns_[0].samples = Bytes(space_, stored_->pixels.size());
    columns_[1].samples = Bytes(space_, stored_->labels.size());
    normalized_ = memory::Array<float, memory::Device>(space_, stored_->normalized.size() * 256);
    space_.write(columns_[0].samples.data(), stored_->pixels.data(), stored_->pixels.size());
    space_.write(columns_[1].samples.data(), stored_->labels.data(), stored_->labels.size());
    space_.write(normalized_.data(), stored_->normalized.data(), normalized_.bytes());
  }

  // A grid whose x covers the `items` of a row and whose y covers the rows.
  device::Launch over_rows(int rows, std::int64_t items) const {
    constexpr std::int64_t threads = 256, most_across = 64;
    constexpr int most_rows = 4096;
    return {.stream = space_.stream(),
            .grid = dim3(static_cast<unsigned>(std::min((items + threads - 1) / threads, most_across)),
                         static_cast<unsigned>(std::min(rows, most_rows))),
            .block = threads};
  }

  void make_images(int rows, float* to) const {
    const auto [channels, height, width] = stored_->image;
    const detail::ImagesThere images{
        channels,           height,       width, reinterpret_cast<const u8*>(columns_[0].samples.data()),
        normalized_.data(), stored_->crop};
    const std::int64_t size = std::int64_t{channels} * height * width;
    if (width % 4 == 0)
      device::launch(over_rows(rows, size / 4), detail::make_images<4>, images, epoch_.data(), place_.data(),
                     rows, to);
    else
      device::launch(over_rows(rows, size), detail::make_images<1>, images, epoch_.data(), place_.data(),
                     rows, to);
  }

  void copy_rows(const Column& column, int rows, void* to) const {
    const std::size_t bytes = column.field.bytes();
    const auto as = [&]<class Word>(Word) {
      const auto words = static_cast<std::int64_t>(bytes / sizeof(Word));
      device::launch(over_rows(rows, words), detail::make_rows<Word>,
                     reinterpret_cast<const Word*>(column.samples.data()), epoch_.data(), place_.data(), rows,
                     words, static_cast<Word*>(to));
    };
    if (bytes % 16 == 0)
      as(device::Lanes<std::uint32_t>{});
    else if (bytes % 4 == 0)
      as(std::uint32_t{});
    else
      as(u8{});
  }

  memory::Device& space_;
  std::optional<StoredImages> stored_;
  std::vector<Column> columns_;
  memory::Array<float, memory::Device> normalized_;
  memory::Array<detail::EpochThere, memory::Device> epoch_;
  memory::Array<detail::PlaceThere, memory::Device> place_;
};

}  // namespace convoy::data
