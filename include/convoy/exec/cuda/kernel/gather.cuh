// Gathers: positions of each row's sequence by index. The gradient of a position is the sum of the gradients
// of the entries that refer to it, in their order: each position looks for its own index among those of its
// row, so that no two threads write the same element.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// Gathers `named` positions of each of `rows` sequences [positions, features].
struct GatherTask {
  int rows = 0, positions = 0, features = 0, named = 0;
  const i32* numbers = nullptr;  ///< [rows, named], each in [0, positions)
};

template <int V, class T>
__global__ void gather_positions_of(GatherTask t, const T* x, T* y) {
  const std::int64_t count = static_cast<std::int64_t>(t.rows) * t.named;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; i < count;
       i += step) {
    const T* from = x + (i / t.named * t.positions + t.numbers[i]) * t.features;
    for (int k = static_cast<int>(threadIdx.x) * V; k < t.features; k += static_cast<int>(blockDim.x) * V)
      *reinterpret_cast<device::Lanes<T, V>*>(y + i * t.features + k) =
          *reinterpret_cast<const device::Lanes<T, V>*>(from + k);
  }
}

template <int V, class T>
__global__ void scatter_positions_of(GatherTask t, const T* dy, const T* second, T* dx, bool accumulate) {
  const std::int64_t count = static_cast<std::int64_t>(t.rows) * t.positions;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; at < count;
       at += step) {
    const std::int64_t first = at / t.positions * t.named;
    const int position = static_cast<int>(at % t.positions);
    for (int k = static_cast<int>(threadIdx.x) * V; k < t.features; k += static_cast<int>(blockDim.x) * V) {
      float sum[V] = {};
      for (std::int64_t i = first; i < first + t.named; ++i) {
        if (t.numbers[i] != position) continue;
        float g[V];
        load_gradient(g, dy, second, i * t.features + k);
        for (int lane = 0; lane < V; ++lane) sum[lane] += g[lane];
      }
      store(dx + at * t.features + k, sum, accumulate);
    }
  }
}

/// y[r, i] = x[r, numbers[r, i]].
template <class T>
void gather_positions(cudaStream_t stream, const GatherTask& t, const T* x, T* y) {
  constexpr int width = device::lanes<T>;
  const bool whole = t.features % width == 0;
  device::launch(
      over_runs(stream, static_cast<std::int64_t>(t.rows) * t.named, whole ? t.features / width : t.features),
      whole ? gather_positions_of<width, T> : gather_positions_of<1, T>, t, x, y);
}

/// dx[r, p] (+)= the sum of dy[r, i] + second[r, i] over the i with numbers[r, i] = p. `second` may be null.
template <class T>
void scatter_positions(cudaStream_t stream, const GatherTask& t, const T* dy, const T* second, T* dx,
                       bool accumulate) {
  constexpr int width = device::lanes<T>;
  const bool whole = t.features % width == 0;
  device::launch(over_runs(stream, static_cast<std::int64_t>(t.rows) * t.positions,
                           whole ? t.features / width : t.features),
                 whole ? scatter_positions_of<width, T> : scatter_positions_of<1, T>, t, dy, second, dx,
                 accumulate);
}

}  // namespace convoy::exec::cuda
