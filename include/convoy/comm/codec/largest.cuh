// The k elements of largest magnitude on a GPU: the radix selection of largest.hpp, with integer counts of
// digits. Prefix sums then give each kept element its place in the order of indices.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/comm/codec/kernels.cuh>
#include <convoy/comm/codec/largest.hpp>
#include <convoy/memory/vector.cuh>

namespace convoy::comm::codec::detail {

using Counter = unsigned long long;

/// The state of a selection.
struct Selection {
  Threshold threshold;
  Counter counts[Histogram::none];  // of the next digit; zeros between the rounds
};

__device__ inline std::int32_t magnitude_on_gpu(float value) {
  std::int32_t bits = __float_as_int(value);
  to_magnitude(bits);
  return bits;
}

/// Counts the elements above the threshold in the upper half, and the elements at it in the lower half.
__device__ inline Counter tally_of(std::int32_t magnitude, std::int32_t least) {
  return magnitude > least ? Counter{1} << 32 : magnitude == least ? 1 : 0;
}

/// The sum of `value` over the lanes before this one.
template <class V>
__device__ V sum_before(V value) {
  V sum = value;
  for (int apart = 1; apart < device::warp_size; apart *= 2) {
    const V other = __shfl_up_sync(device::full_warp, sum, static_cast<unsigned>(apart));
    if (Runs::lane() >= apart) sum += other;
  }
  return sum - value;
}

/// The sum of `value` over the threads before this one in a block of `threads`. `scratch`: shared memory with
/// one number for each warp.
template <int threads, class V>
__device__ V sum_before_in_block(V value, V* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / device::warp_size;
  V before = sum_before(value);
  if (Runs::lane() == device::warp_size - 1) scratch[warp] = before + value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += scratch[w];
  return before;
}

/// Counts the next digit of each element. In the first round: after left = error + values.
template <bool first, bool whole>
__global__ void count_digits(const float* values, const float* error, float* left, std::int64_t count,
                             Threshold begin, Selection* selection) {
  __shared__ unsigned counts[Histogram::none];
  const Threshold threshold = first ? begin : selection->threshold;
  if (threshold.unknown == 0) return;
  const auto self = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = self; i < Histogram::none; i += threads) counts[i] = 0;
  __syncthreads();
  const std::int64_t step = std::int64_t{gridDim.x} * threads * 4;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * threads + self) * 4; i < count; i += step) {
    Four sums = load_four<whole>(first ? error : left, i, count);
    if constexpr (first) {
      const Four more = load_four<whole>(values, i, count);
      for (int k = 0; k < 4; ++k) sums.lane[k] += more.lane[k];
      store_four<whole>(left, i, count, sums);
    }
    for (int k = 0; k < 4 && i + k < count; ++k) {
      std::int32_t digit = 0;
      threshold.digit(digit, magnitude_on_gpu(sums.lane[k]));
      if (digit < Histogram::none) atomicAdd(&counts[digit], 1u);
    }
  }
  __syncthreads();
  for (int i = self; i < Histogram::none; i += threads)
    if (counts[i] > 0) atomicAdd(&selection->counts[i], Counter{counts[i]});
}

// So many fit in a multiprocessor only with at most 64 registers each, which __launch_bounds__ ensures.
inline constexpr int learn_threads = 1024;

/// Finds the next digit from the counts and sets the counts to zero. Runs in one block.
template <bool first>
__global__ void __launch_bounds__(learn_threads) learn_digit(Threshold begin, Selection* selection) {
  __shared__ Counter scratch[learn_threads / device::warp_size];
  constexpr int each = Histogram::none / learn_threads;
  const Threshold threshold = first ? begin : selection->threshold;
  if (threshold.unknown == 0) return;
  // From the top: thread t has the digits below those of thread t - 1.
  Counter* const end = selection->counts + Histogram::none - static_cast<int>(threadIdx.x) * each;
  Counter own = 0;
  for (int k = 1; k <= each; ++k) own += end[-k];
  Counter above = sum_before_in_block<learn_threads>(own, scratch);
  const auto wanted = static_cast<Counter>(threshold.left);
  if (above < wanted && wanted <= above + own) {
    int k = 1;
    for (; above + end[-k] < wanted; ++k) above += end[-k];
    Threshold next = threshold;
    next.left = static_cast<std::int64_t>(wanted - above);
    next.settle(static_cast<int>(end - k - selection->counts), static_cast<std::int64_t>(end[-k]));
    selection->threshold = next;
  }
  for (int k = 1; k <= each; ++k) end[-k] = 0;
}

/// The tally of each run of elements.
template <bool whole>
__global__ void tally_runs(const float* left, std::int64_t count, const Selection* selection,
                           Counter* tallies) {
  const std::int32_t least = selection->threshold.least;
  Runs::for_each((count + Runs::size - 1) / Runs::size, [&](std::int64_t run) {
    Counter tally = 0;
    for (int row = 0; row < Runs::rows; ++row) {
      const std::int64_t i = run * Runs::size + row * Runs::row + 4 * Runs::lane();
      const Four values = load_four<whole>(left, i, count);
      for (int k = 0; k < 4 && i + k < count; ++k) tally += tally_of(magnitude_on_gpu(values.lane[k]), least);
    }
    tally = device::warp_sum(tally);
    if (Runs::lane() == 0) tallies[run] = tally;
  });
}

/// Replaces each tally by the sum of those before it. Runs in one block.
template <class = void>
__global__ void __launch_bounds__(learn_threads) add_up_tallies(Counter* tallies, std::int64_t runs) {
  __shared__ Counter scratch[learn_threads / device::warp_size];
  const std::int64_t each = (runs + learn_threads - 1) / learn_threads, begin = threadIdx.x * each;
  const std::int64_t end = begin + each < runs ? begin + each : runs;
  Counter own = 0;
  for (std::int64_t i = begin; i < end; ++i) own += tallies[i];
  Counter sum = sum_before_in_block<learn_threads>(own, scratch);
  for (std::int64_t i = begin; i < end; ++i) {
    const Counter tally = tallies[i];
    tallies[i] = sum;
    sum += tally;
  }
}

/// Moves the kept elements to `to`, in ascending order of index: all above the threshold, and the first of
/// those at the threshold.
template <class Pair, bool whole>
__global__ void move_largest(Pair* to, float* left, std::int64_t count, const Selection* selection,
                             const Counter* tallies) {
  const std::int32_t least = selection->threshold.least;
  const auto at_least = static_cast<Counter>(selection->threshold.left);
  Runs::for_each((count + Runs::size - 1) / Runs::size, [&](std::int64_t run) {
    Counter before = tallies[run];
    for (int row = 0; row < Runs::rows; ++row) {
      const std::int64_t i = run * Runs::size + row * Runs::row + 4 * Runs::lane();
      const Four values = load_four<whole>(left, i, count);
      Counter tally[4] = {}, own = 0;
      for (int k = 0; k < 4 && i + k < count; ++k)
        own += tally[k] = tally_of(magnitude_on_gpu(values.lane[k]), least);
      if (__any_sync(device::full_warp, own != 0) == 0) continue;
      Counter here = before + sum_before(own);
      for (int k = 0; k < 4; ++k) {
        const Counter above = here >> 32, level = here & 0xffffffffu;
        if (tally[k] > 1 || (tally[k] == 1 && level < at_least)) {
          to[above + (level < at_least ? level : at_least)] = {static_cast<std::uint32_t>(i + k),
                                                               values.lane[k]};
          left[i + k] = 0;
        }
        here += tally[k];
      }
      before = __shfl_sync(device::full_warp, here, device::warp_size - 1);
    }
  });
}

}  // namespace convoy::comm::codec::detail
