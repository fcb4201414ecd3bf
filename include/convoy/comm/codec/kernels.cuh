// Kernels: a codec's operations in GPU memory.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <convoy/comm/codec/codec.hpp>
#include <convoy/core/hd.hpp>
#include <convoy/memory/vector.cuh>

namespace convoy::comm::codec {

/// The kernels of codec C; half.cuh, int8.cuh and top_k.cuh specialize it. Every call is enqueued on a
/// stream. The host waits for no values, and the sizes of the work do not depend on them. All pointers are to
/// GPU memory. The bytes, and the decoded numbers, are those of the codec on the host; a NaN stays a NaN,
/// with the bits that the GPU gives it.
///
/// `error` is what was left out before this step, `left` what is left out after it; they may be the same
/// memory. With two of them, a step that is then skipped leaves `error` as it was.
///
/// Reduced: `count` values become `count` Elements.
///   `encode(codec, stream, to, values, error, left, count)`
///   `decode(codec, stream, to, from, count)`
///
/// Scattered: `parts` says how a bucket is cut into one block per rank; each block is encoded by itself.
///   `encode(codec, stream, to, values, error, left, parts)`   the block of rank r goes to `to + r * bytes`
///   `fold(codec, stream, to, mine, others, rank, ranks, error, left, parts)`
///        encodes the sum, in the order of ranks, of all ranks' encodings of one block: this rank's lies at
///        `mine`, that of rank r at `others + r * bytes`
///   `decode(codec, stream, to, from, parts)`                  decodes all blocks, placed as `encode` does
///
/// Gathered: `room` is `room(codec, count)` bytes, aligned to 64.
///   `encode(codec, stream, to, values, error, left, count, room)`
///   `sum(codec, stream, to, from, ranks, count)`   assigns the sum, in the order of ranks, of all ranks'
///        encodings, which lie `codec.bytes(count)` apart; what `encode` never writes becomes NaN
template <class C>
struct Kernels;

/// A codec that has kernels.
template <class C>
concept OnGpu = Codec<C> && requires {
  sizeof(Kernels<C>);
};

/// A bucket of `count` elements as blocks of `block` elements, one for each rank; the last blocks may be
/// shorter or empty. Encoded blocks lie `bytes` apart.
struct Parts {
  std::int64_t count = 0, block = 0, bytes = 0;

  CONVOY_HD std::int64_t size(std::int64_t rank) const {
    const std::int64_t behind = count - rank * block;
    return behind < 0 ? 0 : behind < block ? behind : block;
  }
};

namespace detail {

using Four = device::Lanes<float>;

/// Loads four of `count` numbers, from index `i` on, with zeros beyond the end. `whole`: by one access, for
/// which `i` is a multiple of 4.
template <bool whole>
__device__ Four load_four(const float* from, std::int64_t i, std::int64_t count) {
  if (whole && i + 4 <= count) return device::load_lanes(from + i);
  Four values{};
  for (int k = 0; k < 4; ++k)
    if (i + k < count) values.lane[k] = from[i + k];
  return values;
}
template <bool whole>
__device__ void store_four(float* to, std::int64_t i, std::int64_t count, const Four& values) {
  if (whole && i + 4 <= count) return device::store_lanes(to + i, values);
  for (int k = 0; k < 4; ++k)
    if (i + k < count) to[i + k] = values.lane[k];
}

/// A warp takes a run of 512 numbers at a time, in rows of 128: each lane has 4 numbers of each row.
struct Runs {
  static constexpr int rows = 4, row = 4 * device::warp_size, size = rows * row;

  static unsigned blocks(std::int64_t runs, int threads = 256) {
    return device::blocks_for(runs * device::warp_size, threads);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % device::warp_size; }
  /// Calls `work(run)` for each run of this warp.
  template <class Work>
  __device__ static void for_each(std::int64_t runs, Work&& work) {
    const std::int64_t warps = blockDim.x / device::warp_size;
    for (std::int64_t run = blockIdx.x * warps + threadIdx.x / device::warp_size; run < runs;
         run += gridDim.x * warps)
      work(run);
  }
};

}  // namespace detail

}  // namespace convoy::comm::codec
