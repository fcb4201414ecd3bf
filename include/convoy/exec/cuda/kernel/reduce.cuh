// Sums over whole tensors and passes over arenas: the gradient of a bias, the loss of a batch, conversion of
// gradients between T and f32, and scaling of gradients with a check for infinities and NaN.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/columns.cuh>

namespace convoy::exec::cuda {

template <class T>
struct ColumnTerms {
  static constexpr int together = 4;
  const T* x = nullptr;
  int stride = 0;

  template <int W>
  struct At {
    const T* x;
    int stride;

    __device__ At(const ColumnTerms& terms, std::int64_t column)
        : x(terms.x + column), stride(terms.stride) {}
    template <int U>
    __device__ void add(float (&sums)[1][W], std::int64_t row, int step) const {
      float v[U][W];
      load_rows(v, x, row * stride, step * static_cast<std::int64_t>(stride));
      for (int u = 0; u < U; ++u)
        for (int k = 0; k < W; ++k) sums[0][k] += v[u][k];
    }
  };
};

struct ColumnSumFinish : Partials<1> {
  float* to = nullptr;
  int outputs = 0;  ///< the first columns, whose sums are wanted
  bool accumulate = false;

  __device__ void finish(int column, const double (&totals)[1]) const {
    if (column >= outputs) return;
    to[column] = static_cast<float>(totals[0]) + (accumulate ? to[column] : 0.0f);
  }
};

/// Shares the work of column_sums. Where rows have room behind them, vectors are read, eight times fewer than
/// elements of 16 bits. The sums of what lies in that room are left out in the end.
template <class T>
Columns share_column_sums(std::int64_t rows, int columns, int stride) {
  constexpr int W = device::lanes<T>;
  return share_columns<T>(rows, stride > columns ? (columns + W - 1) / W * W : columns);
}

/// Bytes of scratch memory for column_sums.
template <class T>
std::int64_t column_sums_scratch(std::int64_t rows, int columns, int stride) {
  return Partials<1>::bytes(share_column_sums<T>(rows, columns, stride));
}

/// to[c] (+)= the sum over rows of x[rows, columns]. Rows are `stride` elements apart: the number of columns,
/// or more and a multiple of the lanes of T; then elements behind a row are read, whatever they are.
template <class T>
void column_sums(cudaStream_t stream, std::int64_t rows, int columns, int stride, const T* x, float* to,
                 bool accumulate, void* scratch) {
  const Columns shared = share_column_sums<T>(rows, columns, stride);
  const Partials<1> partials{static_cast<float*>(scratch), shared.columns};
  sum_columns<T>(stream, shared, ColumnTerms<T>{x, stride}, partials,
                 ColumnSumFinish{partials, to, columns, accumulate});
}

/// Runs as one block.
template <int threads>
__global__ void __launch_bounds__(threads)
    vector_total(std::int64_t n, const float* x, double* to, bool accumulate) {
  __shared__ double scratch[32];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += threads) sum += static_cast<double>(x[i]);
  sum = device::block_sum<threads>(sum, scratch);
  if (threadIdx.x == 0) *to = accumulate ? *to + sum : sum;
}

/// *to (+)= the sum of n numbers, such as the losses of a batch. Runs as one block.
inline void sum_vector(cudaStream_t stream, std::int64_t n, const float* x, double* to, bool accumulate) {
  device::launch({stream, 1, 1024}, vector_total<1024>, n, x, to, accumulate);
}

inline constexpr int pass_threads = 256;

/// Calls `visit` for pieces of n elements of T as for_each_piece does, shared by all threads of the grid.
template <class T, class Visit>
__device__ void for_each_piece_of_grid(std::int64_t n, Visit visit) {
  for_each_piece<T, pass_threads>(0, n, visit, static_cast<int>(blockIdx.x * pass_threads + threadIdx.x),
                                  static_cast<int>(gridDim.x * pass_threads));
}
template <class T>
unsigned pass_blocks(std::int64_t n) {
  return device::blocks_for(n / device::lanes<T>, pass_threads, 132 * 16);
}

template <class T>
__global__ void __launch_bounds__(pass_threads)
    widen_pass(std::int64_t n, const T* from, float* to, const float* factor, bool accumulate) {
  const float by = factor == nullptr ? 1.0f : *factor;
  for_each_piece_of_grid<T>(n, [&](auto width, std::int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    load(v, from + i);
    for (int k = 0; k < W; ++k) v[k] *= by;
    store(to + i, v, accumulate);
  });
}

/// to (+)= *factor times from, for n elements that start at multiples of 16 bytes; `factor` is in device
/// memory, and null means 1.
template <class T>
void widen_values(cudaStream_t stream, std::int64_t n, const T* from, float* to, const float* factor,
                  bool accumulate) {
  device::launch({stream, pass_blocks<T>(n), pass_threads}, widen_pass<T>, n, from, to, factor, accumulate);
}

template <class T>
__global__ void __launch_bounds__(pass_threads) narrow_pass(std::int64_t n, const float* from, T* to) {
  for_each_piece_of_grid<T>(n, [&](auto width, std::int64_t i) {
    float v[decltype(width)::value];
    load(v, from + i);
    store(to + i, v);
  });
}

/// to = from, rounded, for n elements that start at multiples of 16 bytes.
template <class T>
void narrow_values(cudaStream_t stream, std::int64_t n, const float* from, T* to) {
  device::launch({stream, pass_blocks<T>(n), pass_threads}, narrow_pass<T>, n, from, to);
}

template <class T>
__global__ void __launch_bounds__(pass_threads)
    scale_pass(std::int64_t n, T* x, const float* factor, int* flag) {
  const float by = *factor;
  bool finite = true;
  for_each_piece_of_grid<T>(n, [&](auto width, std::int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    load(v, x + i);
    for (int k = 0; k < W; ++k) {
      v[k] *= by;
      // v - v is NaN if v is infinite or NaN.
      finite = finite && v[k] - v[k] == 0;
    }
    store(x + i, v);
  });
  if (!finite) *flag = 1;  // all writers write the same value
}

/// x *= *factor, for n elements that start at a multiple of 16 bytes. Sets *flag to 1 if a result is infinite
/// or NaN, and leaves it unchanged otherwise. `factor` and `flag` are in device memory.
inline void scale_and_check(cudaStream_t stream, std::int64_t n, float* x, const float* factor, int* flag) {
  device::launch({stream, pass_blocks<float>(n), pass_threads}, scale_pass<float>, n, x, factor, flag);
}

}  // namespace convoy::exec::cuda
