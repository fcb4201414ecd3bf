// Position embeddings: one table is added to each row of a batch. Its gradient is the sum over the rows, like
// that of a bias with as many columns.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/reduce.cuh>

namespace convoy::exec::cuda {

template <int V, class T>
__global__ void add_to_rows_of(int rows, std::int64_t row, const T* x, const float* table, T* y) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (at >= row) return;
  float added[V];
  load(added, table + at);
  for (int r = static_cast<int>(blockIdx.y); r < rows; r += static_cast<int>(gridDim.y)) {
    float v[V];
    load(v, x + r * row + at);
    for (int k = 0; k < V; ++k) v[k] += added[k];
    store(y + r * row + at, v);
  }
}

/// y[r] = x[r] + table, for `rows` rows of `row` elements.
template <class T>
void add_to_rows(cudaStream_t stream, int rows, std::int64_t row, const T* x, const float* table, T* y) {
  constexpr int width = device::lanes<T>;
  const bool whole = row % width == 0;
  device::launch(over_images(stream, rows, whole ? row / width : row),
                 whole ? add_to_rows_of<width, T> : add_to_rows_of<1, T>, rows, row, x, table, y);
}

/// d_table (+)= the sum of dy[r] + second[r]; `second` may be null, and `scratch` has
/// `column_sums_scratch<T>(rows, row, row)` bytes.
template <class T>
void sum_rows(cudaStream_t stream, int rows, int row, const T* dy, const T* second, float* d_table,
              bool accumulate, void* scratch) {
  column_sums<T>(stream, rows, row, row, dy, d_table, accumulate, scratch);
  if (second != nullptr) column_sums<T>(stream, rows, row, row, second, d_table, true, scratch);
}

}  // namespace convoy::exec::cuda
