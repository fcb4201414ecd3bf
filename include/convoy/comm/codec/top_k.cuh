// TopK on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <cuda_runtime.h>

#include <convoy/comm/codec/kernels.cuh>
#include <convoy/comm/codec/largest.cuh>
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::comm::codec {

namespace detail {

/// How many of `count` pairs, in ascending order of index, have an index below `end`.
__device__ inline std::int64_t pairs_below(const TopK::Pair* pairs, std::int64_t count, std::int64_t end) {
  std::int64_t from = 0;
  while (from < count) {
    const std::int64_t middle = from + (count - from) / 2;
    if (pairs[middle].index < end)
      from = middle + 1;
    else
      count = middle;
  }
  return from;
}

/// The threads of a block of `sum_pairs`, and the elements that it sums at a time.
struct PairSums {
  static constexpr int threads = 256;
  static constexpr std::int64_t tile = 2048;
};

/// Sums what all ranks have sent, a tile of elements at a time: within the tile, the pairs of one rank after
/// the other.
template <bool whole>
__global__ void sum_pairs(float* to, const std::byte* from, std::int64_t bytes, int ranks, std::int64_t kept,
                          std::int64_t count) {
  constexpr int threads = PairSums::threads;
  constexpr std::int64_t tile = PairSums::tile;
  __shared__ float sums[tile];
  __shared__ std::int64_t begin[threads], end[threads];
  __shared__ int foreign;
  const auto self = static_cast<int>(threadIdx.x);
  for (std::int64_t first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
    const std::int64_t behind = first + tile < count ? first + tile : count;
    for (int i = self; i < tile; i += threads) sums[i] = 0;
    if (self == 0) foreign = 0;
    for (int some = 0; some < ranks; some += threads) {
      __syncthreads();
      if (some + self < ranks) {
        const auto* pairs = reinterpret_cast<const TopK::Pair*>(from + (some + self) * bytes);
        begin[self] = pairs_below(pairs, kept, first);
        end[self] = pairs_below(pairs, kept, behind);
        if (behind == count && end[self] < kept) atomicOr(&foreign, 1);
      }
      __syncthreads();
      for (int r = 0; r < threads && some + r < ranks; ++r) {
        const auto* pairs = reinterpret_cast<const TopK::Pair*>(from + (some + r) * bytes);
        for (std::int64_t p = begin[r] + self; p < end[r]; p += threads) {
          const TopK::Pair pair = pairs[p];
          const std::int64_t at = pair.index - first;
          if (at >= 0 && at < tile) sums[at] += pair.value;
        }
        __syncthreads();
      }
    }
    for (std::int64_t i = 4 * self; i < tile; i += 4 * threads) {
      Four four;
      for (int k = 0; k < 4; ++k)
        four.lane[k] = foreign != 0 ? std::numeric_limits<float>::quiet_NaN() : sums[i + k];
      store_four<whole>(to, first + i, count, four);
    }
    __syncthreads();
  }
}

}  // namespace detail

template <>
struct Kernels<TopK> {
  static std::int64_t room(const TopK&, std::int64_t count) {
    return static_cast<std::int64_t>(sizeof(detail::Selection)) +
           runs(count) * static_cast<std::int64_t>(sizeof(detail::Counter));
  }
  static void encode(const TopK& codec, cudaStream_t stream, std::byte* to, const float* values,
                     const float* error, float* left, std::int64_t count, std::byte* room) {
    if (count <= 0) return;
    if (device::aligned({values, error, left}))
      enqueue<true>(codec, stream, to, values, error, left, count, room);
    else
      enqueue<false>(codec, stream, to, values, error, left, count, room);
  }
  static void sum(const TopK& codec, cudaStream_t stream, float* to, const std::byte* from, int ranks,
                  std::int64_t count) {
    using Sums = detail::PairSums;
    if (count <= 0) return;
    const unsigned blocks = device::blocks_for(count, static_cast<int>(Sums::tile));
    device::launch({stream, blocks, Sums::threads},
                   device::aligned({to}) ? detail::sum_pairs<true> : detail::sum_pairs<false>, to, from,
                   codec.bytes(count), ranks, codec.kept(count), count);
  }

 private:
  static std::int64_t runs(std::int64_t count) {
    return (count + detail::Runs::size - 1) / detail::Runs::size;
  }
  template <bool whole>
  static void enqueue(const TopK& codec, cudaStream_t stream, std::byte* to, const float* values,
                      const float* error, float* left, std::int64_t count, std::byte* room) {
    using namespace detail;
    auto* const selection = reinterpret_cast<Selection*>(room);
    auto* const tallies = reinterpret_cast<Counter*>(room + sizeof(Selection));
    auto* const pairs = reinterpret_cast<TopK::Pair*>(to);
    const Threshold begin{.left = codec.kept(count)};
    const device::Launch one{stream, 1, learn_threads};
    const device::Launch counting{stream, device::blocks_for((count + 3) / 4, 256, most_counting)};
    const device::Launch of_runs{stream, Runs::blocks(runs(count))};
    device::check(cudaMemsetAsync(selection, 0, sizeof(Selection), stream), "clear memory");
    device::launch(counting, count_digits<true, whole>, values, error, left, count, begin, selection);
    device::launch(one, learn_digit<true>, begin, selection);
    for (int known = Histogram::bits; known < Threshold{}.unknown; known += Histogram::bits) {
      device::launch(counting, count_digits<false, whole>, values, error, left, count, begin, selection);
      device::launch(one, learn_digit<false>, begin, selection);
    }
    device::launch(of_runs, tally_runs<whole>, left, count, selection, tallies);
    device::launch(one, add_up_tallies<>, tallies, runs(count));
    device::launch(of_runs, move_largest<TopK::Pair, whole>, pairs, left, count, selection, tallies);
  }

  // Limits the number of blocks, each of which adds its own counts to the counts of all.
  static constexpr int most_counting = 132 * 4;
};

}  // namespace convoy::comm::codec
