// Attention in bf16 and f16 on tensor cores, after FlashAttention-2 (Dao, 2023). A warp has 16 rows of a
// block's tile: queries, or keys for the gradients of keys and values. It keeps their features in registers
// and loops with its block over the positions of the other side, which pass through shared memory. Scores
// stay in registers, in f32; the factors of a second product, probabilities and their gradients, are rounded
// to 16 bits.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <convoy/exec/cuda/kernel/attention_rows.cuh>

namespace convoy::exec::cuda {

/// Blocks that a multiprocessor's registers must hold: as many as possible without spilling.
template <int D>
inline constexpr int mma_blocks = D <= 32   ? 4
                                  : D <= 64 ? 3
                                            : 2;

// Blocks are the tiles of queries of each head.
template <class T, int D>
__global__ void __launch_bounds__(mma_threads, mma_blocks<D>)
    attention_mma_results(AttentionTask<T> t, bool whole) {
  constexpr int tile = attention_tile;
  using Rows = SharedRows<T, D>;
  __shared__ __align__(16) unsigned char shared[Rows::bytes(2 * tile)];
  __shared__ unsigned char draws[SharedDraws<tile>::bytes];
  const Rows keys(shared), values(shared, tile);
  const SharedDraws<tile> drawn{draws};
  const int tiles = (t.queries + tile - 1) / tile;
  const AttentionHead<T> head(t, static_cast<int>(blockIdx.x) / tiles);
  const int first = static_cast<int>(blockIdx.x) % tiles * tile, query = first + MmaPlace::row();
  const int length = head.length();
  const int end = t.causal && first + tile < length ? first + tile : length;
  std::uint32_t own[D / 16][4];
  keys.template fill<tile>(head.rows(0, first, t.queries), whole);
  __syncthreads();
  keys.take(own);
  float result[D / 8][4] = {}, largest[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {};
  for (int key = 0; key < end; key += tile) {
    __syncthreads();
    keys.template fill<tile>(head.rows(1, key, length), whole);
    values.template fill<tile>(head.rows(2, key, length), whole);
    if (t.draws != nullptr) drawn.fill(head, first, key);
    __syncthreads();
    float score[tile / 8][4];
    keys.multiply(score, own);
    // Whether every query of the warp may read the whole tile.
    const bool open = key + tile <= length && (!t.causal || key + tile <= first + MmaPlace::warp_row() + 1);
    for (int h = 0; h < 2; ++h) {
      float most = largest[h];
      for (int n = 0; n < tile / 8; ++n)
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          score[n][i] *= t.scale * log2_of_e;
          if (!open && !head.may_read(query + 8 * h, key + 8 * n + MmaPlace::column() + i % 2, length))
            score[n][i] = -INFINITY;
          most = score[n][i] > most ? score[n][i] : most;
        }
      most = MmaPlace::max_of_row(most);
      const float factor = exp2f(largest[h] - most);
      largest[h] = most;
      float part = 0;
      for (int n = 0; n < tile / 8; ++n)
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          score[n][i] = exp2f(score[n][i] - most);
          part += score[n][i];
        }
      sum[h] = sum[h] * factor + part;
      for (int f = 0; f < D / 8; ++f)
        for (int i = 2 * h; i < 2 * h + 2; ++i) result[f][i] *= factor;
    }
    if (t.draws != nullptr)
      for (int n = 0; n < tile / 8; ++n)
        for (int i = 0; i < 4; ++i)
          if (drawn.dropped(MmaPlace::row() + i / 2 * 8, 8 * n + MmaPlace::column() + i % 2)) score[n][i] = 0;
    values.weigh(result, score);
  }
  for (int h = 0; h < 2; ++h) {
    sum[h] = MmaPlace::sum_of_row(sum[h]);
    const float factor = length > 0 ? 1.0f / sum[h] : 0.0f;
    for (int f = 0; f < D / 8; ++f)
      for (int i = 2 * h; i < 2 * h + 2; ++i) result[f][i] *= factor;
    if (t.kept != nullptr && MmaPlace::column() == 0 && query + 8 * h < t.queries)
      t.kept[head.vector() + query + 8 * h] = length > 0 ? (largest[h] + log2f(sum[h])) * log_of_2 : INFINITY;
  }
  __syncthreads();
  keys.write(result, t.draws == nullptr ? 1.0f : t.rule.scale, t.y + head.place_of_result(first),
             static_cast<std::int64_t>(t.heads) * t.value_features, t.queries - first, t.value_features,
             whole);
}

/// Positions of the other side that backward takes at a time: with more features its registers hold fewer.
template <int D>
inline constexpr int mma_step = D <= 96 ? 32 : 16;

// Blocks are the tiles of keys of each head. Products have keys as rows.
template <class T, int D>
__global__ void __launch_bounds__(mma_threads, mma_blocks<D>)
    attention_mma_key_gradients(AttentionTask<T> t, bool whole) {
  constexpr int tile = attention_tile, step = mma_step<D>;
  constexpr bool stay = D > 96;  // whether values stay in shared memory because registers cannot hold them
  using Rows = SharedRows<T, D>;
  __shared__ __align__(16) unsigned char shared[Rows::bytes(stay ? 2 * tile : tile)];
  __shared__ unsigned char draws[SharedDraws<step>::bytes];
  __shared__ float kept[step], mean[step];
  const Rows staged(shared), queries(shared), slopes(shared, step), values(shared, stay ? tile : 0);
  const SharedDraws<step> drawn{draws};
  const int tiles = (t.keys + tile - 1) / tile;
  const AttentionHead<T> head(t, static_cast<int>(blockIdx.x) / tiles);
  const int first = static_cast<int>(blockIdx.x) % tiles * tile, key = first + MmaPlace::row();
  const int length = head.length();
  std::uint32_t own_keys[D / 16][4], own_values[D / 16][4];
  staged.template fill<tile>(head.rows(1, first, length), whole);
  __syncthreads();
  staged.take(own_keys);
  __syncthreads();
  values.template fill<tile>(head.rows(2, first, length), whole);
  __syncthreads();
  values.take(own_values);
  float d_key[D / 8][4] = {}, d_value[D / 8][4] = {};
  // Queries before a causal tile do not read it, and no query reads keys beyond the length.
  for (int query = first < length ? (t.causal ? first : 0) : t.queries; query < t.queries; query += step) {
    __syncthreads();
    queries.template fill<step>(head.rows(0, query, t.queries), whole);
    slopes.template fill<step>(head.slopes(query), whole);
    if (const int q = static_cast<int>(threadIdx.x); q < step) {
      const bool is = query + q < t.queries;
      kept[q] = is ? t.kept[head.vector() + query + q] * log2_of_e : 0.0f;
      mean[q] = is ? t.means[head.vector() + query + q] : 0.0f;
    }
    if (t.draws != nullptr) drawn.fill(head, query, first);
    __syncthreads();
    float weight[step / 8][4], slope[step / 8][4];
    queries.multiply(weight, own_keys);
    if constexpr (stay) values.take(own_values);
    slopes.multiply(slope, own_values);
    // Whether every one of these queries may read every key of the warp.
    const bool open = first + MmaPlace::warp_row() + 16 <= length && query + step <= t.queries &&
                      (!t.causal || first + MmaPlace::warp_row() + 15 <= query);
    for (int n = 0; n < step / 8; ++n)
      for (int i = 0; i < 4; ++i) {
        const int q = 8 * n + MmaPlace::column() + i % 2, k = i / 2 * 8;
        weight[n][i] = exp2f(weight[n][i] * (t.scale * log2_of_e) - kept[q]);
        if (!open && !head.may_read(query + q, key + k, length)) weight[n][i] = 0;
        const bool dropped = t.draws != nullptr && drawn.dropped(q, MmaPlace::row() + k);
        if (t.draws != nullptr) slope[n][i] = dropped ? 0.0f : slope[n][i] * t.rule.scale;
        slope[n][i] = weight[n][i] * (slope[n][i] - mean[q]);
        if (dropped) weight[n][i] = 0;
      }
    if (t.gradient[2] != nullptr) slopes.weigh(d_value, weight);
    if (t.gradient[1] != nullptr) queries.weigh(d_key, slope);
  }
  __syncthreads();
  if (t.gradient[1] != nullptr)
    staged.write(d_key, t.scale, t.gradient[1] + head.place(1, first), t.step[1], t.keys - first,
                 t.key_features, whole);
  if (t.gradient[2] != nullptr)
    staged.write(d_value, t.draws == nullptr ? 1.0f : t.rule.scale, t.gradient[2] + head.place(2, first),
                 t.step[2], t.keys - first, t.value_features, whole);
}

// Blocks are the tiles of queries of each head.
template <class T, int D>
__global__ void __launch_bounds__(mma_threads, mma_blocks<D>)
    attention_mma_query_gradients(AttentionTask<T> t, bool whole) {
  constexpr int tile = attention_tile, step = mma_step<D>;
  using Rows = SharedRows<T, D>;
  __shared__ __align__(16) unsigned char shared[Rows::bytes(tile)];
  __shared__ unsigned char draws[SharedDraws<tile>::bytes];
  const Rows staged(shared), keys(shared), values(shared, step);
  const SharedDraws<tile> drawn{draws};
  const int tiles = (t.queries + tile - 1) / tile;
  const AttentionHead<T> head(t, static_cast<int>(blockIdx.x) / tiles);
  const int first = static_cast<int>(blockIdx.x) % tiles * tile, query = first + MmaPlace::row();
  const int length = head.length();
  const int end = t.causal && first + tile < length ? first + tile : length;
  std::uint32_t own_queries[D / 16][4], own_slopes[D / 16][4];
  staged.template fill<tile>(head.rows(0, first, t.queries), whole);
  __syncthreads();
  staged.take(own_queries);
  __syncthreads();
  staged.template fill<tile>(head.slopes(first), whole);
  __syncthreads();
  staged.take(own_slopes);
  float d_query[D / 8][4] = {}, kept[2], mean[2];
  for (int h = 0; h < 2; ++h) {
    const bool is = query + 8 * h < t.queries;
    kept[h] = is ? t.kept[head.vector() + query + 8 * h] * log2_of_e : 0.0f;
    mean[h] = is ? t.means[head.vector() + query + 8 * h] : 0.0f;
  }
  for (int key = 0; key < end; key += step) {
    __syncthreads();
    keys.template fill<step>(head.rows(1, key, length), whole);
    values.template fill<step>(head.rows(2, key, length), whole);
    if (t.draws != nullptr && key % Draws::chunk == 0) drawn.fill(head, first, key);
    __syncthreads();
    float weight[step / 8][4], slope[step / 8][4];
    keys.multiply(weight, own_queries);
    values.multiply(slope, own_slopes);
    // Whether every query of the warp may read all of these keys.
    const bool open = key + step <= length && (!t.causal || key + step <= first + MmaPlace::warp_row() + 1);
    for (int n = 0; n < step / 8; ++n)
      for (int i = 0; i < 4; ++i) {
        const int h = i / 2, k = key + 8 * n + MmaPlace::column() + i % 2;
        float p = exp2f(weight[n][i] * (t.scale * log2_of_e) - kept[h]);
        if (!open && !head.may_read(query + 8 * h, k, length)) p = 0;
        if (t.draws != nullptr)
          slope[n][i] = drawn.dropped(MmaPlace::row() + 8 * h, k) ? 0.0f : slope[n][i] * t.rule.scale;
        slope[n][i] = p * (slope[n][i] - mean[h]);
      }
    keys.weigh(d_query, slope);
  }
  __syncthreads();
  staged.write(d_query, t.scale, t.gradient[0] + head.place(0, first), t.step[0], t.queries - first,
               t.key_features, whole);
}

/// Whether tensor cores compute an attention: in 16 bits, if a warp's registers hold the features of a head.
template <class T>
bool attention_by_mma(const AttentionTask<T>& t) {
  return sizeof(T) == 2 && t.key_features <= 128 && t.value_features <= 128;
}

/// Calls `body(D)` with a constant D that is at least the number of features of a head.
template <class T, class Body>
void with_mma_features(const AttentionTask<T>& t, Body body) {
  const int features = t.key_features > t.value_features ? t.key_features : t.value_features;
  if (features <= 32)
    body(std::integral_constant<int, 32>());
  else if (features <= 64)
    body(std::integral_constant<int, 64>());
  else if (features <= 96)
    body(std::integral_constant<int, 96>());
  else
    body(std::integral_constant<int, 128>());
}

/// Launch over tiles of `positions` of each head.
template <class T>
device::Launch mma_over_heads(cudaStream_t stream, const AttentionTask<T>& t, int positions) {
  const auto tiles = static_cast<unsigned>((positions + attention_tile - 1) / attention_tile);
  return {.stream = stream,
          .grid = static_cast<unsigned>(t.rows) * static_cast<unsigned>(t.heads) * tiles,
          .block = mma_threads};
}

template <class T>
void attention_mma_forward(cudaStream_t stream, const AttentionTask<T>& t) {
  with_mma_features(t, [&](auto features) {
    device::launch(mma_over_heads(stream, t, t.queries), attention_mma_results<T, features()>, t,
                   attention_by_vectors(t));
  });
}

/// Computes the gradients that are wanted; `means` must be set.
template <class T>
void attention_mma_backward(cudaStream_t stream, const AttentionTask<T>& t) {
  const bool whole = attention_by_vectors(t);
  with_mma_features(t, [&](auto features) {
    if (t.gradient[1] != nullptr || t.gradient[2] != nullptr)
      device::launch(mma_over_heads(stream, t, t.keys), attention_mma_key_gradients<T, features()>, t, whole);
    if (t.gradient[0] != nullptr)
      device::launch(mma_over_heads(stream, t, t.queries), attention_mma_query_gradients<T, features()>, t,
                     whole);
  });
}

}  // namespace convoy::exec::cuda
