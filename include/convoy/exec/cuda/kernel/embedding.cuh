// Embeddings: rows gathered from a table, and the gradients of each row added in the order of the positions
// that refer to it. Positions are sorted by their ids on the device: tiles by counting the smaller keys for
// each key, then by merging sixteen runs at a time, each key finding its place by a search in the other runs.
// Keys are unique, so that places are the same in every run and no two threads write the same element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// One embedding over a batch of `count` ids, each in [0, entries).
struct EmbeddingTask {
  int count = 0, entries = 0, features = 0;
};

template <int V, class T>
__global__ void gather_rows_of(EmbeddingTask e, const i32* ids, const T* table, T* y) {
  const int step = static_cast<int>(gridDim.x * blockDim.y);
  for (int i = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y); i < e.count; i += step) {
    const T* row = table + static_cast<std::int64_t>(ids[i]) * e.features;
    for (int k = static_cast<int>(threadIdx.x) * V; k < e.features; k += static_cast<int>(blockDim.x) * V)
      *reinterpret_cast<device::Lanes<T, V>*>(y + static_cast<std::int64_t>(i) * e.features + k) =
          *reinterpret_cast<const device::Lanes<T, V>*>(row + k);
  }
}

/// y[i] = table[ids[i]]; the table is [entries, features].
template <class T>
void gather_rows(cudaStream_t stream, const EmbeddingTask& e, const i32* ids, const T* table, T* y) {
  constexpr int width = device::lanes<T>;
  const bool whole = e.features % width == 0;
  device::launch(over_runs(stream, e.count, whole ? e.features / width : e.features),
                 whole ? gather_rows_of<width, T> : gather_rows_of<1, T>, e, ids, table, y);
}

/// The id in the upper half, its position in the batch in the lower half: sorted keys are ids in order, each
/// with its positions in order.
using PositionKey = std::uint64_t;

inline constexpr int sort_tile = 512;  ///< keys that one block sorts
inline constexpr int sort_ways = 16;   ///< runs that one pass merges into one
inline constexpr int sum_piece = 64;   ///< positions of one id that one block adds up

/// The scratch memory of an embedding's backward.
struct EmbeddingScratch {
  PositionKey* keys = nullptr;    ///< [count]
  PositionKey* other = nullptr;   ///< [count]
  float* pieces = nullptr;        ///< [count / sum_piece, features]
  std::int32_t* begin = nullptr;  ///< [entries + 1], the first key of each id
};

/// Bytes of scratch memory that `scatter_rows` needs.
inline std::size_t scatter_scratch(const EmbeddingTask& e) {
  const auto count = static_cast<std::size_t>(e.count);
  return 2 * count * sizeof(PositionKey) +
         count / sum_piece * static_cast<std::size_t>(e.features) * sizeof(float) +
         (static_cast<std::size_t>(e.entries) + 1) * sizeof(std::int32_t) + 16;
}

inline EmbeddingScratch scratch_of(const EmbeddingTask& e, void* memory) {
  EmbeddingScratch s;
  const auto count = static_cast<std::size_t>(e.count);
  // The pieces come first, because they are read in vectors of 16 bytes.
  s.pieces = static_cast<float*>(memory);
  const std::size_t floats = count / sum_piece * static_cast<std::size_t>(e.features);
  s.keys = reinterpret_cast<PositionKey*>(s.pieces + (floats + 1) / 2 * 2);
  s.other = s.keys + count;
  s.begin = reinterpret_cast<std::int32_t*>(s.other + count);
  return s;
}

__device__ inline int id_of(PositionKey key) { return static_cast<int>(key >> 32); }
__device__ inline int position_of(PositionKey key) { return static_cast<int>(key & 0xffffffffu); }

/// Number of keys below `key` among `count` sorted keys.
__device__ inline int below(const PositionKey* keys, int count, PositionKey key) {
  int begin = 0, end = count;
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (keys[middle] < key)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

template <int length>
__global__ void sort_tiles(int count, const i32* ids, PositionKey* sorted) {
  __shared__ PositionKey tile[length];
  const int first = static_cast<int>(blockIdx.x) * length, at = first + static_cast<int>(threadIdx.x);
  PositionKey key = ~PositionKey{0};
  if (at < count)
    key =
        static_cast<PositionKey>(static_cast<std::uint32_t>(ids[at])) << 32 | static_cast<std::uint32_t>(at);
  tile[threadIdx.x] = key;
  __syncthreads();
  const int filled = count - first < length ? count - first : length;
  int before = 0;
  for (int i = 0; i < filled; ++i) before += tile[i] < key;
  if (at < count) sorted[first + before] = key;
}

template <int ways>
__global__ void merge_runs(int count, std::int64_t run, const PositionKey* keys, PositionKey* merged) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= count) return;
  const PositionKey key = keys[at];
  const std::int64_t own = at / run, group = own / ways * ways;
  std::int64_t to = group * run + at % run;
  for (std::int64_t other = group; other < group + ways && other * run < count; ++other) {
    if (other == own) continue;
    const std::int64_t left = count - other * run;
    to += below(keys + other * run, static_cast<int>(left < run ? left : run), key);
  }
  merged[to] = key;
}

template <class Key>
__global__ void find_ids(EmbeddingTask e, const Key* keys, std::int32_t* begin) {
  const int id = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (id <= e.entries) begin[id] = below(keys, e.count, static_cast<Key>(id) << 32);
}

/// Adds to `sum` the gradients of the positions of keys [from, to), in order, from element `k` on.
template <int V, class T>
__device__ void add_positions(float (&sum)[V], const PositionKey* keys, int from, int to, int features, int k,
                              const T* dy, const T* second) {
  for (int at = from; at < to; ++at) {
    float g[V];
    load_gradient(g, dy, second, static_cast<std::int64_t>(position_of(keys[at])) * features + k);
    for (int lane = 0; lane < V; ++lane) sum[lane] += g[lane];
  }
}

// An id that occurs often (a padding token) would keep one block busy for long, so its positions are added in
// pieces of `sum_piece`, counted from its first. A block looks for the one whole piece that begins among its
// own keys: there is at most one, because whole pieces do not overlap.
template <int V, class T>
__global__ void sum_pieces(EmbeddingTask e, EmbeddingScratch s, const T* dy, const T* second) {
  __shared__ int found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * sum_piece;
  for (int at = first + static_cast<int>(threadIdx.x); at < first + sum_piece;
       at += static_cast<int>(blockDim.x)) {
    if (at + sum_piece > e.count) continue;
    const int id = id_of(s.keys[at]);
    if ((at - s.begin[id]) % sum_piece == 0 && at + sum_piece <= s.begin[id + 1]) found = at;
  }
  __syncthreads();
  const int begin = found;
  if (begin < 0) return;
  for (int k = static_cast<int>(threadIdx.x) * V; k < e.features; k += static_cast<int>(blockDim.x) * V) {
    float sum[V] = {};
    add_positions(sum, s.keys, begin, begin + sum_piece, e.features, k, dy, second);
    store(s.pieces + static_cast<std::int64_t>(blockIdx.x) * e.features + k, sum);
  }
}

template <int V, class T>
__global__ void sum_entries(EmbeddingTask e, EmbeddingScratch s, const T* dy, const T* second, float* dw,
                            bool accumulate) {
  const int step = static_cast<int>(gridDim.x * blockDim.y);
  for (int id = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y); id < e.entries; id += step) {
    const int begin = s.begin[id], end = s.begin[id + 1];
    if (begin == end && accumulate) continue;
    const int pieces = (end - begin) / sum_piece;
    for (int k = static_cast<int>(threadIdx.x) * V; k < e.features; k += static_cast<int>(blockDim.x) * V) {
      float sum[V] = {};
      for (int p = 0; p < pieces; ++p) {
        float piece[V];
        const std::int64_t at = (begin + p * sum_piece) / sum_piece;
        load(piece, s.pieces + at * e.features + k);
        for (int lane = 0; lane < V; ++lane) sum[lane] += piece[lane];
      }
      add_positions(sum, s.keys, begin + pieces * sum_piece, end, e.features, k, dy, second);
      store(dw + static_cast<std::int64_t>(id) * e.features + k, sum, accumulate);
    }
  }
}

/// dw[ids[i]] += dy[i] + second[i] in the order of i; without `accumulate` dw, which is [entries, features],
/// starts from zeros. `second` may be null; `scratch` has `scatter_scratch(e)` bytes and is aligned to 64
/// bytes.
template <class T>
void scatter_rows(cudaStream_t stream, const EmbeddingTask& e, const i32* ids, const T* dy, const T* second,
                  float* dw, void* scratch, bool accumulate) {
  constexpr int width = device::lanes<T>;
  EmbeddingScratch s = scratch_of(e, scratch);
  device::launch(
      {.stream = stream, .grid = device::blocks_for(e.count, sort_tile, 1 << 30), .block = sort_tile},
      sort_tiles<sort_tile>, e.count, ids, s.keys);
  for (std::int64_t run = sort_tile; run < e.count; run *= sort_ways) {
    device::launch({.stream = stream, .grid = device::blocks_for(e.count, 256, 1 << 30)},
                   merge_runs<sort_ways>, e.count, run, s.keys, s.other);
    std::swap(s.keys, s.other);
  }
  device::launch({.stream = stream, .grid = device::blocks_for(e.entries + 1, 256, 1 << 30)},
                 find_ids<PositionKey>, e, s.keys, s.begin);
  const bool whole = e.features % width == 0;
  const int vectors = whole ? e.features / width : e.features;
  if (e.count >= sum_piece)
    device::launch({.stream = stream,
                    .grid = static_cast<unsigned>(e.count / sum_piece),
                    .block = over_images(stream, 1, vectors).block},
                   whole ? sum_pieces<width, T> : sum_pieces<1, T>, e, s, dy, second);
  device::launch(over_runs(stream, e.entries, vectors), whole ? sum_entries<width, T> : sum_entries<1, T>, e,
                 s, dy, second, dw, accumulate);
}

}  // namespace convoy::exec::cuda
