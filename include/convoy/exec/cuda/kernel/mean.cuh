// Means over the first positions of each row's sequence.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// Means of `rows` sequences [positions, features].
struct MeanTask {
  int rows = 0, positions = 0, features = 0;
  const i32* lengths = nullptr;  ///< of each row; null: all positions

  __device__ int length(int row) const { return lengths == nullptr ? positions : lengths[row]; }
};

inline constexpr int mean_across = 32;  ///< threads side by side, each with one vector of features
inline constexpr int mean_lines = 8;    ///< lines of such threads, which share the positions of a row

template <int V, class T>
__global__ void mean_of_positions(MeanTask t, const T* x, T* y) {
  __shared__ float all[mean_lines][V][mean_across];
  const int k = static_cast<int>(blockIdx.x * mean_across + threadIdx.x) * V;
  const int line = static_cast<int>(threadIdx.y);
  for (int r = static_cast<int>(blockIdx.y); r < t.rows; r += static_cast<int>(gridDim.y)) {
    const int length = t.length(r);
    float sum[V] = {};
    if (k < t.features)
      for (int p = line; p < length; p += mean_lines) {
        float v[V];
        load(v, x + (static_cast<std::int64_t>(r) * t.positions + p) * t.features + k);
        for (int lane = 0; lane < V; ++lane) sum[lane] += v[lane];
      }
    for (int lane = 0; lane < V; ++lane) all[line][lane][threadIdx.x] = sum[lane];
    __syncthreads();
    if (line == 0 && k < t.features) {
      for (int lane = 0; lane < V; ++lane) {
        for (int other = 1; other < mean_lines; ++other) sum[lane] += all[other][lane][threadIdx.x];
        sum[lane] /= static_cast<float>(length);
      }
      store(y + static_cast<std::int64_t>(r) * t.features + k, sum);
    }
    __syncthreads();
  }
}

template <int V, class T>
__global__ void mean_gradients(MeanTask t, const T* dy, const T* second, T* dx, bool accumulate) {
  const std::int64_t count = static_cast<std::int64_t>(t.rows) * t.positions;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; at < count;
       at += step) {
    const int r = static_cast<int>(at / t.positions), length = t.length(r);
    const bool within = static_cast<int>(at % t.positions) < length;
    if (!within && accumulate) continue;
    for (int k = static_cast<int>(threadIdx.x) * V; k < t.features; k += static_cast<int>(blockDim.x) * V) {
      float g[V] = {};
      if (within) load_gradient(g, dy, second, static_cast<std::int64_t>(r) * t.features + k);
      for (int lane = 0; lane < V; ++lane) g[lane] /= static_cast<float>(length);
      store(dx + at * t.features + k, g, accumulate);
    }
  }
}

/// y[r] = the mean of the first length(r) positions of x[r].
template <class T>
void mean_forward(cudaStream_t stream, const MeanTask& t, const T* x, T* y) {
  constexpr int width = device::lanes<T>, most_rows = 2048;
  const bool whole = t.features % width == 0;
  const int vectors = whole ? t.features / width : t.features;
  device::launch({.stream = stream,
                  .grid = dim3(static_cast<unsigned>((vectors + mean_across - 1) / mean_across),
                               static_cast<unsigned>(t.rows < most_rows ? t.rows : most_rows)),
                  .block = dim3(mean_across, mean_lines)},
                 whole ? mean_of_positions<width, T> : mean_of_positions<1, T>, t, x, y);
}

/// dx[r, p] (+)= (dy[r] + second[r]) / length, and zero beyond the length. `second` may be null.
template <class T>
void mean_backward(cudaStream_t stream, const MeanTask& t, const T* dy, const T* second, T* dx,
                   bool accumulate) {
  constexpr int width = device::lanes<T>;
  const bool whole = t.features % width == 0;
  device::launch(over_runs(stream, static_cast<std::int64_t>(t.rows) * t.positions,
                           whole ? t.features / width : t.features),
                 whole ? mean_gradients<width, T> : mean_gradients<1, T>, t, dy, second, dx, accumulate);
}

}  // namespace convoy::exec::cuda
