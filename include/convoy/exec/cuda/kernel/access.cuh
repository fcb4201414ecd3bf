// How the kernels of this folder load and store numbers, over which grids they are launched, and how the
// threads of a row work together.
#pragma once

#include <climits>
#include <cstdint>
#include <type_traits>

#include <convoy/memory/vector.cuh>

namespace convoy::exec::cuda {

/// Loads W numbers as f32. If W is a multiple of the lanes of T, the address is a multiple of 16 bytes.
template <int W, class T>
__device__ void load(float (&to)[W], const T* from) {
  constexpr int step = device::lanes<T>;
  if constexpr (W % step == 0) {
    for (int i = 0; i < W; i += step) device::load_vector(to + i, from + i);
  } else {
    for (int i = 0; i < W; ++i) to[i] = device::widen(from[i]);
  }
}

/// Writes W numbers, rounded to T. The address is as for `load`.
template <int W, class T>
__device__ void store(T* to, const float (&values)[W]) {
  constexpr int step = device::lanes<T>;
  if constexpr (W % step == 0) {
    for (int i = 0; i < W; i += step) device::store_vector(to + i, values + i);
  } else {
    for (int i = 0; i < W; ++i) to[i] = device::narrow<T>(values[i]);
  }
}

/// Rounds W numbers to T.
template <class T, int W>
__device__ void round_to(float (&values)[W]) {
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {
    for (int k = 0; k < W; k += 2)
      device::widen_pair<T>(device::pair_of<T>(values[k], values[k + 1]), values[k], values[k + 1]);
  } else {
    for (float& value : values) value = device::widen(device::narrow<T>(value));
  }
}

/// Writes W numbers, or adds them to those in memory.
template <int W, class T>
__device__ void store(T* to, float (&values)[W], bool accumulate) {
  if (accumulate) {
    float before[W];
    load(before, to);
    for (int k = 0; k < W; ++k) values[k] += before[k];
  }
  store(to, values);
}

/// Loads a gradient: the sum of `dy` and of `second`, which may be null, both from element `at`.
template <int W, class T>
__device__ void load_gradient(float (&to)[W], const T* dy, const T* second, std::int64_t at) {
  load(to, dy + at);
  if (second == nullptr) return;
  float other[W];
  load(other, second + at);
  for (int k = 0; k < W; ++k) to[k] += other[k];
}

/// Loads W numbers from each of U rows, `stride` elements apart, the first at element `at`.
template <int U, int W, class T>
__device__ void load_rows(float (&to)[U][W], const T* from, std::int64_t at, std::int64_t stride) {
  for (int u = 0; u < U; ++u) load(to[u], from + at + u * stride);
}

/// The same for dy, plus `second` unless it is null.
template <int U, int W, class T>
__device__ void load_gradient(float (&to)[U][W], const T* dy, const T* second, std::int64_t at,
                              std::int64_t stride) {
  load_rows(to, dy, at, stride);
  if (second == nullptr) return;
  float other[U][W];
  load_rows(other, second, at, stride);
  for (int u = 0; u < U; ++u)
    for (int k = 0; k < W; ++k) to[u][k] += other[u][k];
}

/// Number of vectors that hold `count` elements.
template <class T>
constexpr std::int64_t vectors_of(std::int64_t count) {
  return (count + device::lanes<T> - 1) / device::lanes<T>;
}

/// Calls `body(width, at)` for the vectors of [0, count), which begin at element `at`; `width` is a constant,
/// the number of elements in 16 bytes. The elements after the last whole vector come with a width of 1.
template <class T, class Body>
__device__ void for_each_vector(std::int64_t count, Body body) {
  constexpr int width = device::lanes<T>;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t whole = count / width;
  for (std::int64_t v = first; v < whole; v += step) body(std::integral_constant<int, width>{}, v * width);
  for (std::int64_t i = whole * width + first; i < count; i += step)
    body(std::integral_constant<int, 1>{}, i);
}

/// Launch over `rows` images with a thread for each of the `items` of an image: items along x, images along
/// y, of which a block takes every gridDim.y-th. `most_images` blocks along y fill any GPU.
inline device::Launch over_images(cudaStream_t stream, int rows, std::int64_t items) {
  constexpr int most_threads = 256, most_images = 2048;
  const int threads = items < most_threads ? static_cast<int>((items + 31) / 32 * 32) : most_threads;
  return {.stream = stream,
          .grid = dim3(static_cast<unsigned>((items + threads - 1) / threads),
                       static_cast<unsigned>(rows < most_images ? rows : most_images)),
          .block = static_cast<unsigned>(threads)};
}

/// Launch over runs of `items`: the threads along x share a run, and those along y take different runs. The
/// next runs of a block are gridDim.x blocks further.
inline device::Launch over_runs(cudaStream_t stream, std::int64_t runs, int items) {
  constexpr unsigned threads = 256;
  unsigned across = 1;
  while (across < threads && across < static_cast<unsigned>(items)) across *= 2;
  return {.stream = stream,
          .grid = device::blocks_for(runs, threads / across, 1 << 16),
          .block = dim3(across, threads / across)};
}

/// Threads of a block. A team, the threads that share a row, is a warp, of which a block has several, or all
/// `threads` of a block.
template <int threads>
inline constexpr int team_block = threads == device::warp_size ? 256 : threads;

template <int threads>
struct Team {
  static_assert(threads % device::warp_size == 0 && threads <= 1024);
  static constexpr int teams = team_block<threads> / threads;  ///< in a block

  /// Index of this thread in its team.
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % threads; }
  /// The first row of this thread's team, and the distance to its next row.
  __device__ static std::int64_t first_row() {
    return static_cast<std::int64_t>(blockIdx.x) * teams + threadIdx.x / threads;
  }
  __device__ static std::int64_t row_step() { return static_cast<std::int64_t>(gridDim.x) * teams; }

  /// The sum and the maximum over the team, returned to every thread. `scratch` is shared memory for 32
  /// numbers.
  __device__ static float sum(float value, float* scratch) {
    if constexpr (threads == device::warp_size)
      return device::warp_sum(value);
    else
      return device::block_sum<threads>(value, scratch);
  }
  template <class V>
  __device__ static V max(V value, V* scratch) {
    value = device::warp_max(value);
    if constexpr (threads > device::warp_size) {
      if (threadIdx.x % device::warp_size == 0) scratch[threadIdx.x / device::warp_size] = value;
      __syncthreads();
      for (int w = 0; w < threads / device::warp_size; ++w) value = scratch[w] > value ? scratch[w] : value;
      __syncthreads();
    }
    return value;
  }

  /// Number of blocks for `rows` rows.
  static unsigned blocks(std::int64_t rows, int most = 132 * 32) {
    return device::blocks_for(rows, teams, most);
  }
};

template <int W>
using Width = std::integral_constant<int, W>;

/// Calls `visit(Width<W>(), i)` for pieces [i, i + W) of a row of n elements; the pieces of all threads of
/// the team make up the row. The row begins at element `begin` of a tensor of T. A piece of more than one
/// element starts at a multiple of 16 bytes.
template <class T, int threads, class Visit>
__device__ void for_each_piece(std::int64_t begin, std::int64_t n, Visit visit,
                               int thread = Team<threads>::thread(), int step = threads) {
  constexpr int W = device::lanes<T>;
  const std::int64_t beyond = begin % W, until = beyond == 0 ? 0 : W - beyond;
  const std::int64_t head = until < n ? until : n;
  if (thread < head) visit(Width<1>(), static_cast<std::int64_t>(thread));
  const std::int64_t vectors = (n - head) / W;
  for (std::int64_t v = thread; v < vectors; v += step) visit(Width<W>(), head + v * W);
  const std::int64_t rest = head + vectors * W + thread;
  if (rest < n) visit(Width<1>(), rest);
}

}  // namespace convoy::exec::cuda
