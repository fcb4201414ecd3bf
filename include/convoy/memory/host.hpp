// Host: the space of CPUs. Every call is synchronous.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <string_view>

#include <convoy/core/clock.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/pages.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::memory {

namespace detail {

// Sixteen partial sums whatever the vector width, then added one after the other: the order of additions, and
// so every bit, is the same on every processor. The square of a float is exact in f64.
struct SumSquaresLoop {
  static constexpr std::int64_t lanes = 16, block = 4096;

  // Writes the sum of each block.
  template <int W>
  CONVOY_INLINE static void run(const float* values, std::int64_t n, double* sums_of_blocks) {
    constexpr int width = W / 2, parts = static_cast<int>(lanes) / width;
    using Wide = simd::Vec<double, width>;
    using Narrow = simd::Vec<float, width>;
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const std::int64_t end = std::min(n, begin + block);
      Wide sums[parts] = {};
      std::int64_t i = begin;
      for (; i + lanes <= end; i += lanes) {
        CONVOY_UNROLL
        for (int k = 0; k < parts; ++k) {
          Narrow narrow;
          simd::load(narrow, values + i + k * width);
          Wide wide;
          simd::convert(wide, narrow);
          sums[k] += wide * wide;
        }
      }
      double lane[lanes];
      std::memcpy(lane, sums, sizeof lane);
      for (; i < end; ++i)
        lane[(i - begin) & (lanes - 1)] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      double total = 0;
      for (const double x : lane) total += x;
      *sums_of_blocks++ = total;
    }
  }
};

// Adds the sums of blocks in order, whichever thread computed them. `sum_blocks(range, sums)` writes the sums
// of the blocks in a range of elements.
template <class SumBlocks>
double sum_of_blocks(std::int64_t n, int threads, SumBlocks&& sum_blocks) {
  // Blocks that a team sums at a time: few enough that their sums fit on the stack.
  constexpr std::int64_t block = SumSquaresLoop::block, blocks_at_once = 256;
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += blocks_at_once * block) {
    const std::int64_t now = std::min(n - begin, blocks_at_once * block);
    double sums[blocks_at_once];
    parallel(now < worth_a_team ? 1 : threads, [&](int thread, int team) {
      const Range mine = share(now, thread, team, block);
      sum_blocks(Range{begin + mine.begin, begin + mine.end}, sums + mine.begin / block);
    });
    for (std::int64_t b = 0; b * block < now; ++b) sum += sums[b];
  }
  return sum;
}

inline double sum_squares(const float* values, std::int64_t n, int threads) {
  return sum_of_blocks(n, threads, [&](Range mine, double* sums) {
    simd::run<SumSquaresLoop>(values + mine.begin, mine.size(), sums);
  });
}

}  // namespace detail

/// Memory of this process, from a memory resource (a shared segment, for example), and the threads that work
/// on it.
class Host {
 public:
  static constexpr std::string_view name = "host";
  static constexpr bool addressable = true;

  explicit Host(std::pmr::memory_resource* resource = memory::pages(), int threads = 1)
      : resource_(resource), threads_(threads) {}

  std::pmr::memory_resource* resource() const { return resource_; }
  /// Number of threads that sums and optimizers use.
  int threads() const { return threads_; }
  void set_threads(int threads) { threads_ = threads; }

  void* allocate(std::size_t bytes) {
    void* made = resource_->allocate(bytes, alignment);
    std::memset(made, 0, bytes);
    return made;
  }
  void release(void* p, std::size_t bytes) { resource_->deallocate(p, bytes, alignment); }

  void fill(float* p, std::int64_t n, float value) { std::fill_n(p, n, value); }
  void add(float* into, const float* from, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) into[i] += from[i];
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0)
      std::memcpy(to, from, bytes);  // an empty arena's address is null, which memcpy does not accept
  }
  void write(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }
  void read(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }

  void sum_squares(const float* p, std::int64_t n, float factor, double* sum) {
    *sum += static_cast<double>(factor) * static_cast<double>(factor) * detail::sum_squares(p, n, threads_);
  }

  Ready mark() { return {}; }
  void wait_for(Ready) {}
  void synchronize() {}

  using Timestamp = Clock::time_point;
  Timestamp timestamp() { return Clock::now(); }
  Clock::time_point time_of(Timestamp at) { return at; }

 private:
  std::pmr::memory_resource* resource_;
  int threads_;
};

static_assert(Space<Host>);

/// The space of ordinary memory, for callers that have none of their own.
inline Host& host() {
  static Host plain;
  return plain;
}

}  // namespace convoy::memory
