// Kernels around an attention that cuDNN computes: the lengths that it reads, the dropout mask, drawn as
// everywhere (draws.hpp), and the results that it does not write.
#pragma once

#include <cmath>
#include <cstdint>

#include <convoy/exec/cuda/kernel/attention_head.cuh>

namespace convoy::exec::cuda {

// cuDNN, at least before 9.25, gives NaN for a row without keys, so such a row gets one key.
template <class T>
__global__ void attention_lengths(AttentionTask<T> t, i32* queries, i32* keys) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= t.rows) return;
  const int length = AttentionHead<T>(t, row * t.heads).length();
  queries[row] = t.queries;
  keys[row] = length > 0 ? length : 1;
}

// 1 or 0 for each probability, [rows, heads, queries, keys]. Warps go through the chunks of a row: each query
// has its own. If V is not 1, numbers of keys are multiples of V.
template <int V, class T>
__global__ void attention_mask(AttentionTask<T> t, T* mask) {
  using Warp = WarpDraws<V>;
  const unsigned chunks = static_cast<unsigned>(t.keys + Draws::chunk - 1) / Draws::chunk;
  const int queries = t.heads * t.queries;
  const std::int64_t first = Warp::first();
  for (int row = static_cast<int>(blockIdx.y); row < t.rows; row += static_cast<int>(gridDim.y)) {
    const unsigned kept = Warp::kept(*t.draws, t.rule, row, first);
    for (int k = 0; k < Warp::vectors; ++k) {
      const std::int64_t e = first + Warp::element(k);
      const auto chunk = static_cast<unsigned>(e / Draws::chunk);
      const auto query = static_cast<int>(chunk / chunks);
      const int key = static_cast<int>(chunk % chunks) * Draws::chunk + static_cast<int>(e % Draws::chunk);
      if (query >= queries || key >= t.keys) continue;
      float one[V];
      for (int i = 0; i < V; ++i) one[i] = 1;
      drop(one, kept, k * V, 1);
      store(mask + (std::int64_t{row} * queries + query) * t.keys + key, one);
    }
  }
}

// A row without keys has results of zero, and probabilities of zero because its log-sum-exp is infinity. A
// block takes a row; few rows are without keys.
template <class T>
__global__ void attention_of_nothing(AttentionTask<T> t) {
  const int row = static_cast<int>(blockIdx.x);
  const AttentionHead<T> first(t, row * t.heads);
  if (first.length() > 0) return;
  const int results = t.queries * t.heads * t.value_features, sums = t.heads * t.queries;
  for (int i = static_cast<int>(threadIdx.x); i < results; i += static_cast<int>(blockDim.x))
    t.y[static_cast<std::int64_t>(row) * results + i] = device::narrow<T>(0.0f);
  for (int i = static_cast<int>(threadIdx.x); i < sums; i += static_cast<int>(blockDim.x))
    t.kept[first.vector() + i] = INFINITY;
}

// Keys that are padding get gradients of zero. A warp takes a key of a row, V features at a time.
template <int V, class T>
__global__ void __launch_bounds__(team_block<device::warp_size>)
    attention_gradients_of_padding(AttentionTask<T> t) {
  using Key = Team<device::warp_size>;
  for (std::int64_t at = Key::first_row(); at < std::int64_t{t.rows} * t.keys; at += Key::row_step()) {
    const auto row = static_cast<int>(at / t.keys), key = static_cast<int>(at % t.keys);
    const AttentionHead<T> head(t, row * t.heads);
    if (key < head.length()) continue;
    for (int part = 1; part < 3; ++part) {
      const int features = t.heads * (part == 1 ? t.key_features : t.value_features);
      T* const to = t.gradient[part] + head.place(part, key);
      const float zeros[V] = {};
      for (int f = Key::thread() * V; f < features; f += device::warp_size * V) store(to + f, zeros);
    }
  }
}

/// Writes the numbers of queries and keys of each row that cuDNN reads, at least one key.
template <class T>
void write_attention_lengths(cudaStream_t stream, const AttentionTask<T>& t, i32* queries, i32* keys) {
  constexpr int threads = 128;
  device::launch(
      {.stream = stream, .grid = static_cast<unsigned>((t.rows + threads - 1) / threads), .block = threads},
      attention_lengths<T>, t, queries, keys);
}

/// Writes 1 for each probability that is kept and 0 for each that is dropped: [rows, heads, queries, keys].
template <class T>
void write_attention_mask(cudaStream_t stream, const AttentionTask<T>& t, T* mask) {
  constexpr int width = device::lanes<T>;
  const bool whole = t.keys % width == 0;
  const std::int64_t chunks =
      std::int64_t{t.heads} * t.queries * ((t.keys + Draws::chunk - 1) / Draws::chunk);
  device::launch(whole ? WarpDraws<width>::over_rows(stream, t.rows, chunks * Draws::chunk)
                       : WarpDraws<1>::over_rows(stream, t.rows, chunks * Draws::chunk),
                 whole ? attention_mask<width, T> : attention_mask<1, T>, t, mask);
}

/// To be called after forward if there are lengths.
template <class T>
void write_attention_of_nothing(cudaStream_t stream, const AttentionTask<T>& t) {
  device::launch({.stream = stream, .grid = static_cast<unsigned>(t.rows)}, attention_of_nothing<T>, t);
}

/// To be called after backward if there are lengths. All three gradients are wanted.
template <class T>
void write_attention_gradients_of_padding(cudaStream_t stream, const AttentionTask<T>& t) {
  constexpr int warp = device::warp_size;
  device::launch({.stream = stream,
                  .grid = Team<warp>::blocks(std::int64_t{t.rows} * t.keys),
                  .block = team_block<warp>},
                 attention_by_vectors(t) ? attention_gradients_of_padding<device::lanes<T>, T>
                                         : attention_gradients_of_padding<1, T>,
                 t);
}

}  // namespace convoy::exec::cuda
