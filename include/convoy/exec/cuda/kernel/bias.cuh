// A bias: one number per column, added to every row.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

// Threads along x take the vectors of a row, those along y rows.
template <int V, class T>
__global__ void add_bias_to_rows(std::int64_t rows, int columns, const float* bias, T* y) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += step)
    for (int c = static_cast<int>(threadIdx.x) * V; c < columns; c += static_cast<int>(blockDim.x) * V) {
      float v[V];
      load(v, y + row * columns + c);
      for (int k = 0; k < V; ++k) v[k] += bias[c + k];
      store(y + row * columns + c, v);
    }
}

/// y[rows, columns] += bias.
template <class T>
void add_bias(cudaStream_t stream, std::int64_t rows, int columns, const float* bias, T* y) {
  constexpr int width = device::lanes<T>;
  const bool whole = columns % width == 0;
  device::launch(over_runs(stream, rows, whole ? columns / width : columns),
                 whole ? add_bias_to_rows<width, T> : add_bias_to_rows<1, T>, rows, columns, bias, y);
}

}  // namespace convoy::exec::cuda
