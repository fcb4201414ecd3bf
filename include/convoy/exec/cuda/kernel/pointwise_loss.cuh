// Losses of one number per row: means over the elements of a value and its target, in f32.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// (x - t)^2. A loss has `loss`, and the derivatives in x and in its target.
struct SquaredError {
  __device__ static float loss(float x, float t) { return (x - t) * (x - t); }
  __device__ static float slope(float x, float t) { return 2.0f * (x - t); }
  __device__ static float target_slope(float x, float t) { return 2.0f * (t - x); }
};

/// max(x, 0) - x t + log(1 + e^-|x|): binary cross-entropy of a logit, in a form that does not overflow.
struct LogitError {
  __device__ static float loss(float x, float t) {
    return (x < 0 ? 0.0f : x) - x * t + log1pf(expf(-fabsf(x)));
  }
  __device__ static float slope(float x, float t) { return 1.0f / (1.0f + expf(-x)) - t; }
  __device__ static float target_slope(float x, float) { return -x; }
};

/// The loss of rows of n elements. Pointers that do not apply are null; those of values are in device memory
/// and start at multiples of 64 bytes.
template <class T>
struct PointwiseLossTask {
  std::int64_t rows = 0;  ///< at least 1
  std::int64_t n = 0;
  const T* x = nullptr;
  const T* target = nullptr;
  float* losses = nullptr;  ///< [rows]
  // Backward.
  const float* d_losses = nullptr;  ///< [rows]
  T* dx = nullptr;                  ///< null: not wanted
  bool accumulate_dx = false;
  T* d_target = nullptr;  ///< null: not wanted
  bool accumulate_target = false;
};

/// losses[r] = the mean of F over row r.
template <class F, class T, int threads>
__global__ void __launch_bounds__(team_block<threads>) pointwise_losses(PointwiseLossTask<T> t) {
  __shared__ float scratch[32];
  using Row = Team<threads>;
  for (std::int64_t row = Row::first_row(); row < t.rows; row += Row::row_step()) {
    const std::int64_t begin = row * t.n;
    float sum = 0;
    for_each_piece<T, threads>(begin, t.n, [&](auto width, std::int64_t i) {
      constexpr int W = decltype(width)::value;
      float x[W], target[W];
      load(x, t.x + begin + i);
      load(target, t.target + begin + i);
      for (int k = 0; k < W; ++k) sum += F::loss(x[k], target[k]);
    });
    sum = Row::sum(sum, scratch);
    if (Row::thread() == 0) t.losses[row] = sum / static_cast<float>(t.n);
  }
}

/// d (+)= d_losses / n times the derivative of F, in x and in the target. Blocks that differ only in y share
/// a row.
template <class F, class T, int threads>
__global__ void __launch_bounds__(team_block<threads>) pointwise_slopes(PointwiseLossTask<T> t) {
  using Row = Team<threads>;
  const int thread = static_cast<int>(blockIdx.y) * threads + Row::thread();
  const int step = static_cast<int>(gridDim.y) * threads;
  for (std::int64_t row = Row::first_row(); row < t.rows; row += Row::row_step()) {
    const std::int64_t begin = row * t.n;
    const float factor = t.d_losses[row] / static_cast<float>(t.n);
    const auto visit = [&](auto width, std::int64_t i) {
      constexpr int W = decltype(width)::value;
      float x[W], target[W], d[W];
      load(x, t.x + begin + i);
      load(target, t.target + begin + i);
      if (t.dx != nullptr) {
        for (int k = 0; k < W; ++k) d[k] = factor * F::slope(x[k], target[k]);
        store(t.dx + begin + i, d, t.accumulate_dx);
      }
      if (t.d_target != nullptr) {
        for (int k = 0; k < W; ++k) d[k] = factor * F::target_slope(x[k], target[k]);
        store(t.d_target + begin + i, d, t.accumulate_target);
      }
    };
    for_each_piece<T, threads>(begin, t.n, visit, thread, step);
  }
}

/// Rows of more elements than this are computed by blocks, others by warps.
inline constexpr int pointwise_loss_warp = 1024;

template <class F, class T>
void pointwise_loss_forward(cudaStream_t stream, const PointwiseLossTask<T>& t) {
  if (t.n <= pointwise_loss_warp)
    device::launch({stream, Team<32>::blocks(t.rows), team_block<32>}, pointwise_losses<F, T, 32>, t);
  else
    device::launch({stream, Team<1024>::blocks(t.rows), team_block<1024>}, pointwise_losses<F, T, 1024>, t);
}

template <class F, class T>
void pointwise_loss_backward(cudaStream_t stream, const PointwiseLossTask<T>& t) {
  if (t.n <= pointwise_loss_warp) {
    device::launch({stream, Team<32>::blocks(t.rows), team_block<32>}, pointwise_slopes<F, T, 32>, t);
  } else {
    const dim3 grid(Team<256>::blocks(t.rows), device::blocks_for(t.n / device::lanes<T>, 256, 64));
    device::launch({stream, grid, team_block<256>}, pointwise_slopes<F, T, 256>, t);
  }
}

}  // namespace convoy::exec::cuda
