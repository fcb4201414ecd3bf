// Kernels around an attention that cuDNN computes: the lengths that it reads, the dropout mask, drawn as
// everywhere (draws.hpp), and the results that it does not write.
#pragma once

#include <cmath>
#include <cstddef>
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

// 1 or 0 for each probability, [rows, heads, queries, keys]. A thread writes four keys, 16 apart, whose draws
// come together.
template <class T>
__global__ void attention_mask(AttentionTask<T> t, T* mask) {
  constexpr int quarter = Draws::blocks_a_chunk;
  const std::int64_t words = (t.keys + Draws::chunk - 1) / Draws::chunk * quarter, all = t.vectors() * words;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
       i += step) {
    const std::int64_t vector = i / words;
    const int word = static_cast<int>(i % words), key = word / quarter * Draws::chunk + word % quarter;
    const AttentionHead<T> head(t, static_cast<int>(vector / t.queries));
    const auto four = head.words(static_cast<int>(vector % t.queries), key);
    for (int q = 0; q < 4; ++q)
      if (key + q * quarter < t.keys)
        mask[vector * t.keys + key + q * quarter] = device::narrow<T>(
            Draws::number(four[static_cast<std::size_t>(q)]) < t.rule.threshold ? 0.0f : 1.0f);
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

// Keys that are padding get gradients of zero. A block takes a key of a row.
template <class T>
__global__ void attention_gradients_of_padding(AttentionTask<T> t) {
  const int row = static_cast<int>(blockIdx.x) / t.keys, key = static_cast<int>(blockIdx.x) % t.keys;
  const AttentionHead<T> head(t, row * t.heads);
  if (key < head.length()) return;
  for (int part = 1; part < 3; ++part) {
    const int features = t.heads * (part == 1 ? t.key_features : t.value_features);
    for (int f = static_cast<int>(threadIdx.x); f < features; f += static_cast<int>(blockDim.x))
      t.gradient[part][head.place(part, key) + f] = device::narrow<T>(0.0f);
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
  const std::int64_t words =
      t.vectors() * ((t.keys + Draws::chunk - 1) / Draws::chunk) * Draws::blocks_a_chunk;
  device::launch({stream, device::blocks_for(words)}, attention_mask<T>, t, mask);
}

/// To be called after forward if there are lengths.
template <class T>
void write_attention_of_nothing(cudaStream_t stream, const AttentionTask<T>& t) {
  device::launch({.stream = stream, .grid = static_cast<unsigned>(t.rows)}, attention_of_nothing<T>, t);
}

/// To be called after backward if there are lengths. All three gradients are wanted.
template <class T>
void write_attention_gradients_of_padding(cudaStream_t stream, const AttentionTask<T>& t) {
  device::launch(
      {.stream = stream, .grid = static_cast<unsigned>(t.rows) * static_cast<unsigned>(t.keys), .block = 128},
      attention_gradients_of_padding<T>, t);
}

}  // namespace convoy::exec::cuda
