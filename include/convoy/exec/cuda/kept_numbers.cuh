// KeptNumbers: numbers that the host writes before each of several steps that are enqueued together.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <convoy/memory/buffer.hpp>
#include <convoy/memory/device.cuh>

namespace convoy::exec::cuda {

/// Destinations of a step's numbers; the numbers themselves are contiguous.
struct Places {
  static constexpr int most = 8;
  unsigned char* to[most] = {};
  int bytes[most] = {};
  int count = 0;

  bool operator==(const Places&) const = default;
};

// Each thread copies one byte, so that the loads of all places are in flight at once. A loop over places
// would wait for the loads of each before those of the next, because its stores might change what they read.
template <class = void>
__global__ void deal(Places places, const unsigned char* numbers) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  unsigned char* to = nullptr;
  int begin = 0;
  for (int p = 0; p < Places::most; ++p) {  // constant bound: a variable index would need local memory
    if (i >= begin && i < begin + places.bytes[p]) to = places.to[p] + (i - begin);
    begin += places.bytes[p];
  }
  if (to != nullptr) *to = numbers[i];
}

/// Numbers of up to `steps` steps with the same destinations, then numbers that belong to no complete step
/// yet.
class KeptNumbers {
 public:
  KeptNumbers(memory::Device& space, int steps)
      : space_(space),
        rows_(static_cast<std::size_t>(steps) + 1),
        there_(space, static_cast<std::size_t>(steps) * memory::Device::few),
        sent_(there_.size()) {}

  int steps() const { return steps_; }
  const Places& places() const { return rows_[0].places; }

  /// Takes a write to memory of the space. False: there is no room, or the write overlaps an earlier one, so
  /// that their order would matter.
  bool take(void* to, const void* from, std::size_t bytes) {
    Row& row = rows_[static_cast<std::size_t>(steps_)];
    Places& places = row.places;
    if (places.count == Places::most || row.used + bytes > row.numbers.size()) return false;
    for (int p = 0; p < places.count; ++p)
      if (places.to[p] < static_cast<unsigned char*>(to) + bytes && to < places.to[p] + places.bytes[p])
        return false;
    places.to[places.count] = static_cast<unsigned char*>(to);
    places.bytes[places.count++] = static_cast<int>(bytes);
    std::memcpy(row.numbers.data() + row.used, from, bytes);
    row.used += bytes;
    return true;
  }

  /// Ends a step that consists of the numbers taken since the last one. False: their destinations differ from
  /// those of the steps before, and they belong to no step.
  bool end_step() {
    if (!(rows_[static_cast<std::size_t>(steps_)].places == places())) return false;
    ++steps_;
    return true;
  }

  /// Writes the numbers of step `i` to their destinations; if `i` is `steps()`, the numbers of no step.
  void write(int i) {
    const Row& row = rows_[static_cast<std::size_t>(i)];
    const std::byte* from = row.numbers.data();
    for (int p = 0; p < row.places.count; ++p) {
      const auto bytes = static_cast<std::size_t>(row.places.bytes[p]);
      space_.write(row.places.to[p], from, bytes);
      from += bytes;
    }
  }

  /// Sends the numbers of all steps to the GPU. From there `deal(i)` enqueues the copy of step i's numbers to
  /// their destinations.
  void send() {
    const std::size_t each = rows_[0].used, all = each * static_cast<std::size_t>(steps_);
    for (std::size_t i = 0; i < static_cast<std::size_t>(steps_); ++i)
      std::memcpy(sent_.data() + i * each, rows_[i].numbers.data(), each);
    constexpr std::size_t few = memory::Device::few;
    for (std::size_t at = 0; at < all; at += few)
      space_.write(there_.data() + at, sent_.data() + at, std::min(few, all - at));
  }
  void deal(int i) {
    const std::size_t each = rows_[0].used;
    device::launch({space_.stream(), device::blocks_for(static_cast<std::int64_t>(each))}, cuda::deal<>,
                   places(), there_.data() + each * static_cast<std::size_t>(i));
  }

  void clear() {
    for (int i = 0; i <= steps_; ++i) {
      rows_[static_cast<std::size_t>(i)].places = {};
      rows_[static_cast<std::size_t>(i)].used = 0;
    }
    steps_ = 0;
  }

 private:
  struct Row {
    Places places;
    std::array<std::byte, memory::Device::few> numbers{};
    std::size_t used = 0;
  };

  memory::Device& space_;
  std::vector<Row> rows_;
  memory::Array<unsigned char, memory::Device> there_;
  std::vector<unsigned char> sent_;
  int steps_ = 0;
};

}  // namespace convoy::exec::cuda
