// Tiled attention with an online softmax (Dao et al., 2022; Dao, 2023). In bf16 and f16 tensor cores multiply
// (attention_mma.cuh). The kernels of this file are for f32 and tf32, in f32 throughout, and for heads of
// more than 128 features: a block has one tile of one head and loops over the tiles of the other side.
// Backward recomputes the probabilities in two kernels, one for the gradients of keys and values and one for
// those of queries: each sum belongs to one block, so that the order of additions is fixed.
#pragma once

#include <cfloat>
#include <climits>
#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/compiled.hpp>
#include <convoy/exec/cuda/kernel/attention_head.cuh>
#include <convoy/exec/cuda/kernel/attention_mma.cuh>

namespace convoy::exec::cuda {

/// The threads of a block form a 16 x 16 grid; each has 4 rows and 4 columns of a tile.
inline constexpr int attention_threads = 256;

/// Products of tiles by a block, of which each thread has a part, and their shared memory.
struct AttentionBlock {
  static constexpr int tile = attention_tile, slice = 32, line = tile + 4;
  static constexpr int floats = tile * line + tile * tile;

  float* weights;  // [tile, line], or two slices of features, [slice, tile]
  float* values;   // [tile, tile]

  __device__ explicit AttentionBlock(float* shared) : weights(shared), values(shared + tile * line) {}
  /// The rows of this thread are first_row() to first_row() + 3; its columns are every 16th from column() on.
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 16; }
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 16 * 4; }

  /// product[a][b] = the inner product of row first_row() + a of `left` and row column() + 16 b of `right`.
  template <int W, class T>
  __device__ void multiply(float (&product)[4][4], const HeadRows<T>& left, const HeadRows<T>& right) const {
    float* const left_slice = weights;
    float* const right_slice = weights + slice * tile;
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b) product[a][b] = 0;
    for (int feature = 0; feature < left.features; feature += slice) {
      __syncthreads();
      for (int item = static_cast<int>(threadIdx.x); item < tile * slice / W;
           item += static_cast<int>(blockDim.x)) {
        const int row = item % tile, c = item / tile * W;
        float v[W];
        left.read(v, row, feature + c);
        for (int k = 0; k < W; ++k) left_slice[(c + k) * tile + row] = v[k];
        right.read(v, row, feature + c);
        for (int k = 0; k < W; ++k) right_slice[(c + k) * tile + row] = v[k];
      }
      __syncthreads();
      for (int c = 0; c < slice; ++c) {
        float l[4], r[4];
        load(l, left_slice + c * tile + first_row());
        for (int b = 0; b < 4; ++b) r[b] = right_slice[c * tile + column() + 16 * b];
        for (int a = 0; a < 4; ++a)
          for (int b = 0; b < 4; ++b) product[a][b] = fmaf(l[a], r[b], product[a][b]);
      }
    }
  }

  /// sum[a][b] += the sum over r of weight[row a][r] times feature `feature` + 4 column() + b of row r, where
  /// r runs over the columns of `weight`.
  template <int W, class T>
  __device__ void weigh(float (&sum)[4][4], const float (&weight)[4][4], const HeadRows<T>& rows,
                        int feature) const {
    __syncthreads();
    for (int b = 0; b < 4; ++b) {
      const float w[4] = {weight[0][b], weight[1][b], weight[2][b], weight[3][b]};
      store(weights + (column() + 16 * b) * line + first_row(), w);
    }
    for (int item = static_cast<int>(threadIdx.x); item < tile * tile / W;
         item += static_cast<int>(blockDim.x)) {
      const int row = item / (tile / W), c = item % (tile / W) * W;
      float v[W];
      rows.read(v, row, feature + c);
      for (int k = 0; k < W; ++k) values[row * tile + c + k] = v[k];
    }
    __syncthreads();
    const int end = rows.count < tile ? rows.count : tile;
    for (int r = 0; r < end; ++r) {
      float w[4], v[4];
      load(w, weights + r * line + first_row());
      load(v, values + r * tile + 4 * column());
      for (int a = 0; a < 4; ++a)
        for (int b = 0; b < 4; ++b) sum[a][b] = fmaf(w[a], v[b], sum[a][b]);
    }
  }

  /// The maximum, or the sum, over the 16 threads that share rows, returned to each.
  __device__ static float max_of_row(float x) {
    for (int apart = 8; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(device::full_warp, x, apart);
      x = other > x ? other : x;
    }
    return x;
  }
  __device__ static float sum_of_row(float x) {
    for (int apart = 8; apart > 0; apart /= 2) x += __shfl_xor_sync(device::full_warp, x, apart);
    return x;
  }
};

/// Writes 4 features of a row from `feature` on, as far as the row has them.
template <int W, class T>
__device__ void store_features(T* row, int feature, int features, const float (&values)[4]) {
  if (W > 1 && feature < features) {
    device::Lanes<T, 4> lanes;
    for (int k = 0; k < 4; ++k) lanes.lane[k] = device::narrow<T>(values[k]);
    *reinterpret_cast<device::Lanes<T, 4>*>(row + feature) = lanes;
  } else {
    for (int k = 0; k < 4; ++k)
      if (feature + k < features) row[feature + k] = device::narrow<T>(values[k]);
  }
}

// Blocks along x are the tiles of queries of each head, along y tiles of the features of values.
template <class T, int W>
__global__ void __launch_bounds__(attention_threads, 2) attention_results(AttentionTask<T> t) {
  __shared__ __align__(16) float shared[AttentionBlock::floats];
  const AttentionBlock block(shared);
  constexpr int tile = attention_tile;
  const int tiles = (t.queries + tile - 1) / tile, feature = static_cast<int>(blockIdx.y) * tile;
  const AttentionHead<T> head(t, static_cast<int>(blockIdx.x) / tiles);
  const int first = static_cast<int>(blockIdx.x) % tiles * tile, query = first + block.first_row();
  const int length = head.length();
  const int end = t.causal && first + tile < length ? first + tile : length;
  float result[4][4] = {}, largest[4], sum[4] = {};
  for (int a = 0; a < 4; ++a) largest[a] = -FLT_MAX;
  for (int key = 0; key < end; key += tile) {
    float score[4][4];
    block.template multiply<W>(score, head.rows(0, first, t.queries), head.rows(1, key, length));
    for (int a = 0; a < 4; ++a) {
      float most = largest[a];
      bool open[4];
      for (int b = 0; b < 4; ++b) {
        const int at = key + block.column() + 16 * b;
        open[b] = at < length && (!t.causal || at <= query + a);
        score[a][b] *= t.scale;
        if (open[b] && score[a][b] > most) most = score[a][b];
      }
      most = block.max_of_row(most);
      const float factor = expf(largest[a] - most);
      largest[a] = most;
      float part = 0, left[4];
      head.factors(left, query + a, key + block.column());
      for (int b = 0; b < 4; ++b) {
        score[a][b] = open[b] ? expf(score[a][b] - most) : 0.0f;
        part += score[a][b];
        score[a][b] *= left[b];
        result[a][b] *= factor;
      }
      sum[a] = sum[a] * factor + block.sum_of_row(part);
    }
    block.template weigh<W>(result, score, head.rows(2, key, length), feature);
  }
  for (int a = 0; a < 4; ++a) {
    if (query + a >= t.queries) continue;
    const float inverse = length > 0 ? 1.0f / sum[a] : 0.0f;
    for (int b = 0; b < 4; ++b) result[a][b] *= inverse;
    store_features<W>(t.y + head.place_of_result(query + a), feature + 4 * block.column(), t.value_features,
                      result[a]);
    if (t.kept != nullptr && blockIdx.y == 0 && block.column() == 0)
      t.kept[head.vector() + query + a] = length > 0 ? largest[a] + logf(sum[a]) : INFINITY;
  }
}

/// means[vector] = the inner product of a result and its gradient. Eight threads take a vector, W features at
/// a time.
template <class T, int W>
__global__ void __launch_bounds__(team_block<device::warp_size>) attention_means(AttentionTask<T> t) {
  using Warp = Team<device::warp_size>;
  constexpr int together = 8, vectors = device::warp_size / together;
  const int own = Warp::thread() % together;
  // The threads of a warp go on together, because they add up their sums by exchanges.
  for (std::int64_t first = Warp::first_row() * vectors; first < t.vectors();
       first += Warp::row_step() * vectors) {
    const std::int64_t v = first + Warp::thread() / together;
    float sum = 0;
    if (v < t.vectors()) {
      const AttentionHead<T> head(t, static_cast<int>(v / t.queries));
      const std::int64_t at = head.place_of_result(static_cast<int>(v % t.queries));
      for (int c = own * W; c < t.value_features; c += together * W) {
        float slope[W], result[W];
        load(result, t.y + at + c);
        load_gradient(slope, t.dy, t.second, at + c);
        for (int k = 0; k < W; ++k) sum = fmaf(slope[k], result[k], sum);
      }
    }
    for (int apart = together / 2; apart > 0; apart /= 2)
      sum += __shfl_xor_sync(device::full_warp, sum, apart);
    if (own == 0 && v < t.vectors()) t.means[v] = sum;
  }
}

// Blocks along x are the tiles of keys of each head, along y tiles of features.
template <class T, int W>
__global__ void __launch_bounds__(attention_threads, 2) attention_key_gradients(AttentionTask<T> t) {
  __shared__ __align__(16) float shared[AttentionBlock::floats];
  const AttentionBlock block(shared);
  constexpr int tile = attention_tile;
  const int tiles = (t.keys + tile - 1) / tile, feature = static_cast<int>(blockIdx.y) * tile;
  const AttentionHead<T> head(t, static_cast<int>(blockIdx.x) / tiles);
  const int first = static_cast<int>(blockIdx.x) % tiles * tile, key = first + block.first_row();
  const int length = head.length();
  const float scale = t.draws == nullptr ? 1.0f : t.rule.scale;  // of a probability that is not dropped
  float d_key[4][4] = {}, d_value[4][4] = {};
  // Queries before a causal tile do not read it, and no query reads keys beyond the length.
  for (int query = first < length ? (t.causal ? first : 0) : t.queries; query < t.queries; query += tile) {
    float weight[4][4], slope[4][4];
    block.template multiply<W>(weight, head.rows(1, first, length), head.rows(0, query, t.queries));
    block.template multiply<W>(slope, head.rows(2, first, length), head.slopes(query));
    const unsigned dropped = head.dropped(query + block.column(), key);
    for (int b = 0; b < 4; ++b) {
      const int at = query + block.column() + 16 * b;
      const float kept = at < t.queries ? t.kept[head.vector() + at] : 0.0f,
                  mean = at < t.queries ? t.means[head.vector() + at] : 0.0f;
      for (int a = 0; a < 4; ++a) {
        const float p = head.may_read(at, key + a, length) ? expf(weight[a][b] * t.scale - kept) : 0.0f;
        const float factor = (dropped >> (4 * b + a) & 1u) != 0 ? 0.0f : scale;
        weight[a][b] = p * factor;
        slope[a][b] = p * (slope[a][b] * factor - mean) * t.scale;
      }
    }
    if (t.gradient[2] != nullptr) block.template weigh<W>(d_value, weight, head.slopes(query), feature);
    if (t.gradient[1] != nullptr)
      block.template weigh<W>(d_key, slope, head.rows(0, query, t.queries), feature);
  }
  for (int a = 0; a < 4; ++a) {
    if (key + a >= t.keys) continue;
    const int at = feature + 4 * block.column();
    if (t.gradient[1] != nullptr)
      store_features<W>(t.gradient[1] + head.place(1, key + a), at, t.key_features, d_key[a]);
    if (t.gradient[2] != nullptr)
      store_features<W>(t.gradient[2] + head.place(2, key + a), at, t.value_features, d_value[a]);
  }
}

// Blocks along x are the tiles of queries of each head, along y tiles of the features of keys.
template <class T, int W>
__global__ void __launch_bounds__(attention_threads, 2) attention_query_gradients(AttentionTask<T> t) {
  __shared__ __align__(16) float shared[AttentionBlock::floats];
  const AttentionBlock block(shared);
  constexpr int tile = attention_tile;
  const int tiles = (t.queries + tile - 1) / tile, feature = static_cast<int>(blockIdx.y) * tile;
  const AttentionHead<T> head(t, static_cast<int>(blockIdx.x) / tiles);
  const int first = static_cast<int>(blockIdx.x) % tiles * tile, query = first + block.first_row();
  const int length = head.length();
  const int end = t.causal && first + tile < length ? first + tile : length;
  float d_query[4][4] = {}, kept[4], mean[4];
  for (int a = 0; a < 4; ++a) {
    kept[a] = query + a < t.queries ? t.kept[head.vector() + query + a] : 0.0f;
    mean[a] = query + a < t.queries ? t.means[head.vector() + query + a] : 0.0f;
  }
  for (int key = 0; key < end; key += tile) {
    float weight[4][4], slope[4][4];
    block.template multiply<W>(weight, head.rows(0, first, t.queries), head.rows(1, key, length));
    block.template multiply<W>(slope, head.slopes(first), head.rows(2, key, length));
    for (int a = 0; a < 4; ++a) {
      float factor[4];
      head.factors(factor, query + a, key + block.column());
      for (int b = 0; b < 4; ++b) {
        const bool open = head.may_read(query + a, key + block.column() + 16 * b, length);
        const float p = open ? expf(weight[a][b] * t.scale - kept[a]) : 0.0f;
        slope[a][b] = p * (slope[a][b] * factor[b] - mean[a]) * t.scale;
      }
    }
    block.template weigh<W>(d_query, slope, head.rows(1, key, length), feature);
  }
  for (int a = 0; a < 4; ++a)
    if (query + a < t.queries)
      store_features<W>(t.gradient[0] + head.place(0, query + a), feature + 4 * block.column(),
                        t.key_features, d_query[a]);
}

/// Launch over tiles of `positions` of each head and of `features`.
template <class T>
device::Launch over_heads(cudaStream_t stream, const AttentionTask<T>& t, int positions, int features) {
  const auto tiles = [](int count) {
    return static_cast<unsigned>((count + attention_tile - 1) / attention_tile);
  };
  return {.stream = stream,
          .grid = dim3(static_cast<unsigned>(t.rows) * static_cast<unsigned>(t.heads) * tiles(positions),
                       tiles(features)),
          .block = attention_threads};
}

template <class T>
void attention_forward(cudaStream_t stream, const AttentionTask<T>& t) {
  if constexpr (sizeof(T) == 2)
    if (attention_by_mma(t)) return attention_mma_forward(stream, t);
  device::launch(over_heads(stream, t, t.queries, t.value_features),
                 attention_by_vectors(t) ? attention_results<T, device::lanes<T>> : attention_results<T, 1>,
                 t);
}

template <class T>
void attention_backward(cudaStream_t stream, const AttentionTask<T>& t) {
  constexpr int width = device::lanes<T>;
  const bool whole = attention_by_vectors(t);
  device::launch({.stream = stream,
                  .grid = Team<device::warp_size>::blocks((t.vectors() + 3) / 4),
                  .block = team_block<device::warp_size>},
                 whole ? attention_means<T, width> : attention_means<T, 1>, t);
  if constexpr (sizeof(T) == 2)
    if (attention_by_mma(t)) return attention_mma_backward(stream, t);
  if (t.gradient[1] != nullptr || t.gradient[2] != nullptr) {
    const int features = t.key_features > t.value_features ? t.key_features : t.value_features;
    device::launch(over_heads(stream, t, t.keys, features),
                   whole ? attention_key_gradients<T, width> : attention_key_gradients<T, 1>, t);
  }
  if (t.gradient[0] != nullptr)
    device::launch(over_heads(stream, t, t.queries, t.key_features),
                   whole ? attention_query_gradients<T, width> : attention_query_gradients<T, 1>, t);
}

CONVOY_INSTANTIATE_F32(void attention_forward(cudaStream_t, const AttentionTask<float>&));
CONVOY_INSTANTIATE_F32(void attention_backward(cudaStream_t, const AttentionTask<float>&));
CONVOY_INSTANTIATE_BF16(void attention_forward(cudaStream_t, const AttentionTask<bf16>&));
CONVOY_INSTANTIATE_BF16(void attention_backward(cudaStream_t, const AttentionTask<bf16>&));
CONVOY_INSTANTIATE_F16(void attention_forward(cudaStream_t, const AttentionTask<f16>&));
CONVOY_INSTANTIATE_F16(void attention_backward(cudaStream_t, const AttentionTask<f16>&));

}  // namespace convoy::exec::cuda
