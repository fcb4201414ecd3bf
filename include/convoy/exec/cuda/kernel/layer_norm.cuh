// Layer normalization of rows of features, in f32 (Ba, Kiros and Hinton, 2016). A warp or a block takes a row
// and reads it from the cache for its mean, its variance and its result in turn, so that no precision is lost
// to cancellation. Gradients of weight and bias are sums over columns, always added in the same order.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/columns.cuh>

namespace convoy::exec::cuda {

/// One layer norm. Pointers that do not apply are null; those of values are in device memory and start at
/// multiples of 64 bytes.
template <class T>
struct LayerNormTask {
  std::int64_t rows = 0;  ///< at least 1
  int features = 0;
  float epsilon = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;  ///< null: none
  const T* x = nullptr;
  T* y = nullptr;
  float* mean = nullptr;     ///< [rows]: written by forward unless null, read by backward
  float* inverse = nullptr;  ///< [rows] 1 / sqrt(variance + epsilon), likewise
  // Backward. The gradient of y is dy + second.
  const T* dy = nullptr;
  const T* second = nullptr;
  T* dx = nullptr;  ///< null: not wanted
  bool accumulate_dx = false;
  float* d_weight = nullptr;  ///< null if frozen
  float* d_bias = nullptr;
  bool accumulate_weight = false, accumulate_bias = false;
  void* scratch = nullptr;  ///< layer_norm_scratch bytes, for backward only
};

template <class T, int W, int threads>
__global__ void __launch_bounds__(team_block<threads>) layer_norm_rows(LayerNormTask<T> t) {
  __shared__ float scratch[32];
  using Row = Team<threads>;
  const int n = t.features, first = Row::thread() * W;
  const float count = static_cast<float>(n);
  for (std::int64_t row = Row::first_row(); row < t.rows; row += Row::row_step()) {
    const T* x = t.x + row * n;
    float v[W], sum = 0, squares = 0;
    for (int i = first; i < n; i += threads * W) {
      load(v, x + i);
      for (int k = 0; k < W; ++k) sum += v[k];
    }
    const float mean = Row::sum(sum, scratch) / count;
    for (int i = first; i < n; i += threads * W) {
      load(v, x + i);
      for (int k = 0; k < W; ++k) squares = fmaf(v[k] - mean, v[k] - mean, squares);
    }
    const float inverse = 1.0f / sqrtf(Row::sum(squares, scratch) / count + t.epsilon);
    if (t.mean != nullptr && Row::thread() == 0) {
      t.mean[row] = mean;
      t.inverse[row] = inverse;
    }
    T* y = t.y + row * n;
    for (int i = first; i < n; i += threads * W) {
      float weight[W], bias[W] = {};
      load(v, x + i);
      load(weight, t.weight + i);
      if (t.bias != nullptr) load(bias, t.bias + i);
      for (int k = 0; k < W; ++k) v[k] = fmaf((v[k] - mean) * inverse, weight[k], bias[k]);
      store(y + i, v);
    }
  }
}

template <class T, int W, int threads>
__global__ void __launch_bounds__(team_block<threads>, threads == device::warp_size ? 3 : 2)
    layer_norm_gradients(LayerNormTask<T> t) {
  __shared__ float scratch[32];
  using Row = Team<threads>;
  const int n = t.features, first = Row::thread() * W;
  const float count = static_cast<float>(n);
  for (std::int64_t row = Row::first_row(); row < t.rows; row += Row::row_step()) {
    const std::int64_t begin = row * n;
    const float mean = t.mean[row], inverse = t.inverse[row];
    float g[1][W], x[W], weight[W], sum = 0, dot = 0;
    for (int i = first; i < n; i += threads * W) {
      load_gradient(g, t.dy, t.second, begin + i, 0);
      load(x, t.x + begin + i);
      load(weight, t.weight + i);
      for (int k = 0; k < W; ++k) {
        sum = fmaf(g[0][k], weight[k], sum);
        dot = fmaf(g[0][k] * weight[k], (x[k] - mean) * inverse, dot);
      }
    }
    const float of_one = Row::sum(sum, scratch) / count, of_normal = Row::sum(dot, scratch) / count;
    for (int i = first; i < n; i += threads * W) {
      load_gradient(g, t.dy, t.second, begin + i, 0);
      load(x, t.x + begin + i);
      load(weight, t.weight + i);
      for (int k = 0; k < W; ++k)
        g[0][k] = (fmaf(g[0][k], weight[k], -of_one) - (x[k] - mean) * inverse * of_normal) * inverse;
      store(t.dx + begin + i, g[0], t.accumulate_dx);
    }
  }
}

/// The terms of the gradients of weight and bias.
template <class T>
struct LayerNormTerms {
  static constexpr int together = 2;
  LayerNormTask<T> task;

  template <int W>
  struct At {
    const LayerNormTask<T>& t;
    std::int64_t column;

    __device__ At(const LayerNormTerms& terms, std::int64_t first) : t(terms.task), column(first) {}
    template <int U>
    __device__ void add(float (&sums)[2][W], std::int64_t row, int step) const {
      const std::int64_t at = row * t.features + column,
                         stride = step * static_cast<std::int64_t>(t.features);
      float x[U][W], g[U][W], mean[U], inverse[U];
      load_rows(x, t.x, at, stride);
      load_gradient(g, t.dy, t.second, at, stride);
      for (int u = 0; u < U; ++u) {
        mean[u] = t.mean[row + u * step];
        inverse[u] = t.inverse[row + u * step];
      }
      for (int u = 0; u < U; ++u)
        for (int k = 0; k < W; ++k) {
          sums[0][k] += g[u][k];
          sums[1][k] = fmaf(g[u][k], (x[u][k] - mean[u]) * inverse[u], sums[1][k]);
        }
    }
  };
};

struct LayerNormFinish : Partials<2> {
  float* d_weight = nullptr;
  float* d_bias = nullptr;
  bool accumulate_weight = false, accumulate_bias = false;

  __device__ void finish(int column, const double (&totals)[2]) const {
    if (d_weight != nullptr)
      d_weight[column] = static_cast<float>(totals[1]) + (accumulate_weight ? d_weight[column] : 0.0f);
    if (d_bias != nullptr)
      d_bias[column] = static_cast<float>(totals[0]) + (accumulate_bias ? d_bias[column] : 0.0f);
  }
};

/// The shares of the blocks that sum the gradients of weight and bias. All blocks run at once: as many as
/// their registers let a multiprocessor have.
template <class T>
Columns layer_norm_columns(std::int64_t rows, int features) {
  return share_columns<T>(rows, features, Columns::processors * (sizeof(T) == 2 ? 3 : 4));
}

/// Bytes of scratch memory for backward.
template <class T>
std::int64_t layer_norm_scratch(std::int64_t rows, int features) {
  return Partials<2>::bytes(layer_norm_columns<T>(rows, features));
}

/// With more features than this, a block takes a row instead of a warp. A warp has up to eight vectors of a
/// row in flight.
inline constexpr int layer_norm_warp = 2048;

/// y, and the mean and the inverse deviation of each row.
template <class T>
void layer_norm_forward(cudaStream_t stream, const LayerNormTask<T>& t) {
  constexpr int W = device::lanes<T>;
  const bool wide = t.features % W == 0;
  if (t.features <= layer_norm_warp)
    device::launch({stream, Team<32>::blocks(t.rows), team_block<32>},
                   wide ? layer_norm_rows<T, W, 32> : layer_norm_rows<T, 1, 32>, t);
  else
    device::launch({stream, Team<512>::blocks(t.rows), team_block<512>},
                   wide ? layer_norm_rows<T, W, 512> : layer_norm_rows<T, 1, 512>, t);
}

/// The gradients of weight and bias.
template <class T>
void layer_norm_parameters(cudaStream_t stream, const LayerNormTask<T>& t) {
  if (t.d_weight == nullptr && t.d_bias == nullptr) return;
  const Partials<2> partials{static_cast<float*>(t.scratch), t.features};
  sum_columns<T>(stream, layer_norm_columns<T>(t.rows, t.features), LayerNormTerms<T>{t}, partials,
                 LayerNormFinish{partials, t.d_weight, t.d_bias, t.accumulate_weight, t.accumulate_bias});
}

/// dx, and the gradients of weight and bias.
template <class T>
void layer_norm_backward(cudaStream_t stream, const LayerNormTask<T>& t) {
  constexpr int W = device::lanes<T>;
  const bool wide = t.features % W == 0;
  layer_norm_parameters(stream, t);
  if (t.dx == nullptr) return;
  if (t.features <= layer_norm_warp)
    device::launch({stream, Team<32>::blocks(t.rows), team_block<32>},
                   wide ? layer_norm_gradients<T, W, 32> : layer_norm_gradients<T, 1, 32>, t);
  else
    device::launch({stream, Team<512>::blocks(t.rows), team_block<512>},
                   wide ? layer_norm_gradients<T, W, 512> : layer_norm_gradients<T, 1, 512>, t);
}

}  // namespace convoy::exec::cuda
