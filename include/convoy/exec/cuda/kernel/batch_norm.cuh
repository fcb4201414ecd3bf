// Batch normalization of [positions, channels], with the operations around it, in f32 (Ioffe and Szegedy,
// 2015): the statistics in two kernels, then normalization (+ addend) (+ ReLU) in one pass; backward through
// all of it in two passes. The biased variance normalizes; the unbiased one updates the running variance.
//
// Sums that come with the input become statistics in f64. Subtracting the square of the mean then loses no
// digit, but the f32 rounding of the sums remains: about mean^2 / variance * 2^-24 of the variance. That is
// less than rounding an input whose mean is far from 0 costs, in f16 (11 bits) or in bf16 (8 bits).
//
// Other statistics are computed for groups of four rows around the group's own mean. Groups are merged by the
// formula of Chan, Golub and LeVeque (1979), so that a mean far from 0 loses no precision.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/columns.cuh>
#include <convoy/exec/running_statistics.hpp>

namespace convoy::exec::cuda {

/// One batch norm over a batch. Pointers that do not apply are null; those of values are in device memory and
/// start at multiples of 64 bytes.
template <class T>
struct BatchNormTask {
  std::int64_t positions = 0;  ///< rows * height * width, at least 1
  int channels = 0;
  float epsilon = 0, momentum = 0;
  bool relu = false;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  const T* x = nullptr;
  const float* sums = nullptr;  ///< [2][channels]: sums of x and its squares, if x's maker computed them
  const T* addend = nullptr;    ///< added before the ReLU
  T* y = nullptr;               ///< backward reads it only if there are both an addend and a ReLU
  float* mean = nullptr;        ///< [channels] of the batch: written by training, read by backward
  float* inverse = nullptr;     ///< [channels] 1 / sqrt(variance + epsilon), likewise
  /// [2][channels]: scale and shift of each channel, if the reader of y computes y = scale x + shift itself
  f16* scale_shift = nullptr;
  void* scratch = nullptr;  ///< batch_norm_scratch bytes, used only within one call
  // Backward. The gradient of y is dy + second.
  const T* dy = nullptr;
  const T* second = nullptr;
  /// [2][channels]: the gradients of weight and bias, if the maker of dy computed them and masked dy
  const float* parameter_sums = nullptr;
  T* dx = nullptr;  ///< may be dy
  bool accumulate_dx = false;
  T* d_addend = nullptr;  ///< may be dy unless dx is
  bool accumulate_addend = false;
  float* d_weight = nullptr;  ///< null if frozen
  float* d_bias = nullptr;
  bool accumulate_parameters = false;
};

/// Statistics of W columns so far: the mean of n values and the sum of squared distances to it.
template <int W>
struct ColumnMoments {
  float n = 0;
  float mean[W] = {};
  float squares[W] = {};

  /// Merges the statistics of `count` more values, at least 1.
  __device__ void merge(float count, const float (&other_mean)[W], const float (&other_squares)[W]) {
    const float share = count / (n + count), cross = n * share;
    for (int k = 0; k < W; ++k) {
      const float apart = other_mean[k] - mean[k];
      mean[k] = fmaf(apart, share, mean[k]);
      squares[k] += fmaf(apart * apart, cross, other_squares[k]);
    }
    n += count;
  }
};

/// The mean of each channel over a chunk of positions, and the sum of squared distances to it.
template <class T, int W>
__global__ void __launch_bounds__(Columns::most_threads)
    batch_norm_moments(Columns c, const T* x, Partials<2> partials) {
  __shared__ float all[2][W][Columns::most_threads];
  __shared__ float counts[Columns::most_threads];
  const ColumnPlace place(c);
  ColumnMoments<W> mine;
  std::int64_t row = place.row;
  x += place.column;
  constexpr int group = 4;
  for (; row + (group - 1) * place.step < place.end; row += group * place.step) {
    float v[group][W], mean[W], squares[W];
    load_rows(v, x, row * c.columns, place.step * static_cast<std::int64_t>(c.columns));
    for (int k = 0; k < W; ++k) {
      mean[k] = ((v[0][k] + v[1][k]) + (v[2][k] + v[3][k])) * (1.0f / group);
      squares[k] = 0;
      for (int u = 0; u < group; ++u) squares[k] = fmaf(v[u][k] - mean[k], v[u][k] - mean[k], squares[k]);
    }
    mine.merge(group, mean, squares);
  }
  for (; row < place.end; row += place.step) {
    float v[W];
    load(v, x + row * c.columns);
    mine.merge(1, v, {});
  }
  counts[threadIdx.x] = mine.n;
  for (int k = 0; k < W; ++k) {
    all[0][k][threadIdx.x] = mine.mean[k];
    all[1][k][threadIdx.x] = mine.squares[k];
  }
  for (int half = c.lines() / 2; half > 0; half /= 2) {
    __syncthreads();
    const int from = static_cast<int>(threadIdx.x) + half * c.tile;
    if (place.line < half && counts[from] > 0) {
      float mean[W], squares[W];
      for (int k = 0; k < W; ++k) {
        mean[k] = all[0][k][from];
        squares[k] = all[1][k][from];
      }
      mine.merge(counts[from], mean, squares);
      counts[threadIdx.x] = mine.n;
      for (int k = 0; k < W; ++k) {
        all[0][k][threadIdx.x] = mine.mean[k];
        all[1][k][threadIdx.x] = mine.squares[k];
      }
    }
  }
  if (place.line > 0 || place.column >= c.columns) return;
  store(partials.at(static_cast<int>(blockIdx.y), 0, place.column), mine.mean);
  store(partials.at(static_cast<int>(blockIdx.y), 1, place.column), mine.squares);
}

/// Destination of the statistics of a batch.
struct BatchNormStatistics {
  float epsilon = 0, momentum = 0;
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  float* mean = nullptr;
  float* inverse = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  f16* scale_shift = nullptr;
  int channels = 0;

  template <class T>
  explicit BatchNormStatistics(const BatchNormTask<T>& t)
      : epsilon(t.epsilon),
        momentum(t.momentum),
        running_mean(t.running_mean),
        running_variance(t.running_variance),
        mean(t.mean),
        inverse(t.inverse),
        weight(t.weight),
        bias(t.bias),
        scale_shift(t.scale_shift),
        channels(t.channels) {}

  /// Stores the statistics of `count` values of a channel and updates its running statistics.
  __device__ void keep(int column, double count, double batch_mean, double variance) const {
    if (variance < 0) variance = 0;
    mean[column] = static_cast<float>(batch_mean);
    inverse[column] = static_cast<float>(1 / sqrt(variance + static_cast<double>(epsilon)));
    move_running(momentum, count, mean[column], variance, running_mean[column], running_variance[column]);
    if (scale_shift != nullptr) write_scale_shift(column, mean[column], inverse[column]);
  }
  /// What normalizes channel `column` with this mean and 1 / standard deviation. The shift is that of the
  /// rounded scale, so that a mean far from 0 is still mapped to the bias.
  __device__ void write_scale_shift(int column, float with_mean, float with_inverse) const {
    const f16 scale = device::narrow<f16>(weight[column] * with_inverse);
    scale_shift[column] = scale;
    scale_shift[channels + column] =
        device::narrow<f16>(fmaf(-with_mean, device::widen(scale), bias[column]));
  }
};

/// The scale and shift of each channel by the running statistics.
template <class = void>
__global__ void batch_norm_scale_shift(BatchNormStatistics statistics) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= statistics.channels) return;
  statistics.write_scale_shift(c, statistics.running_mean[c],
                               1.0f / sqrtf(statistics.running_variance[c] + statistics.epsilon));
}

/// Merges the chunks of a channel in f64, with means relative to that of the first chunk.
struct BatchNormFinish {
  Partials<2> partials;
  std::int64_t positions = 0, chunk_rows = 0;
  BatchNormStatistics statistics;
  /// [2][channels]: receives the sums of the values and of their squares, to which those of other ranks are
  /// added before the sums become statistics; null: the statistics are those of this batch.
  double* sums = nullptr;

  __device__ void take(double (&totals)[2], int chunk, int column) const {
    const std::int64_t left = positions - chunk * chunk_rows;
    const auto count = static_cast<double>(left < chunk_rows ? left : chunk_rows);
    const double apart =
        static_cast<double>(*partials.at(chunk, 0, column)) - static_cast<double>(*partials.at(0, 0, column));
    totals[0] += count * apart;
    totals[1] += static_cast<double>(*partials.at(chunk, 1, column)) + count * apart * apart;
  }
  __device__ void finish(int column, const double (&totals)[2]) const {
    const auto count = static_cast<double>(positions);
    const double apart = totals[0] / count;
    const double mean = static_cast<double>(*partials.at(0, 0, column)) + apart,
                 variance = totals[1] / count - apart * apart;
    if (sums == nullptr) return statistics.keep(column, count, mean, variance);
    sums[column] = count * mean;
    sums[partials.columns + column] = count * (variance + mean * mean);
  }
};

/// The statistics from the sums of `count` values per channel and of their squares; f64 is precise enough.
template <class Sum>
__global__ void batch_norm_statistics(int channels, const Sum* sums, double count,
                                      BatchNormStatistics statistics) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= channels) return;
  const double mean = static_cast<double>(sums[c]) / count;
  statistics.keep(c, count, mean, static_cast<double>(sums[channels + c]) / count - mean * mean);
}

/// y before the addend and the ReLU. Forward and backward compute the same bits, because backward masks by
/// its sign.
__device__ inline float normalize(float x, float mean, float scale, float bias) {
  return fmaf(x - mean, scale, bias);
}

/// What normalizes W neighboring channels: the running statistics if `evaluate`, else those of the batch.
template <int W>
struct ChannelScale {
  float mean[W], scale[W], bias[W];

  template <class T>
  __device__ ChannelScale(const BatchNormTask<T>& t, std::int64_t column, bool evaluate) {
    load(mean, (evaluate ? t.running_mean : t.mean) + column);
    load(scale, (evaluate ? t.running_variance : t.inverse) + column);
    if (evaluate)
      for (int k = 0; k < W; ++k) scale[k] = 1.0f / sqrtf(scale[k] + t.epsilon);
    load(bias, t.weight + column);
    for (int k = 0; k < W; ++k) scale[k] *= bias[k];
    load(bias, t.bias + column);
  }
};

/// y = normalized x (+ addend) (+ ReLU), by the running statistics if `evaluate`, else by those of the batch.
template <class T, int W>
__global__ void __launch_bounds__(Columns::most_threads)
    batch_norm_apply(Columns c, BatchNormTask<T> t, bool evaluate) {
  const ColumnPlace place(c);
  if (place.row >= place.end) return;
  const ChannelScale<W> of(t, place.column, evaluate);
  const std::int64_t stride = place.step * static_cast<std::int64_t>(c.columns);
  auto take = [&](auto together, std::int64_t at) {
    constexpr int U = decltype(together)::value;
    float v[U][W];
    load_rows(v, t.x, at, stride);
    for (int u = 0; u < U; ++u)
      for (int k = 0; k < W; ++k) v[u][k] = normalize(v[u][k], of.mean[k], of.scale[k], of.bias[k]);
    if (t.addend != nullptr) {
      float other[U][W];
      load_rows(other, t.addend, at, stride);
      for (int u = 0; u < U; ++u)
        for (int k = 0; k < W; ++k) v[u][k] += other[u][k];
    }
    if (t.relu)
      for (int u = 0; u < U; ++u)
        for (int k = 0; k < W; ++k) v[u][k] = v[u][k] < 0 ? 0.0f : v[u][k];
    for (int u = 0; u < U; ++u) store(t.y + at + u * stride, v[u]);
  };
  std::int64_t row = place.row, at = row * c.columns + place.column;
  for (; row + place.step < place.end; row += 2 * place.step, at += 2 * stride) take(Width<2>(), at);
  if (row < place.end) take(Width<1>(), at);
}

/// The gradient that reaches the batch norm in U rows: dy + second, masked by the ReLU. With an addend the
/// sign comes from y, else it is recomputed from x, which is read anyway.
template <class T, int U, int W>
__device__ void masked_gradient(float (&g)[U][W], const BatchNormTask<T>& t, std::int64_t at,
                                std::int64_t stride, const float (&x)[U][W], const ChannelScale<W>& of) {
  load_gradient(g, t.dy, t.second, at, stride);
  if (!t.relu) return;
  if (t.addend != nullptr) {
    float y[U][W];
    load_rows(y, t.y, at, stride);
    for (int u = 0; u < U; ++u)
      for (int k = 0; k < W; ++k) g[u][k] = y[u][k] > 0 ? g[u][k] : 0.0f;
  } else {
    // Rounded as y was: values too small for T are 0.
    for (int u = 0; u < U; ++u)
      for (int k = 0; k < W; ++k) {
        const T y = device::narrow<T>(normalize(x[u][k], of.mean[k], of.scale[k], of.bias[k]));
        g[u][k] = device::widen(y) > 0 ? g[u][k] : 0.0f;
      }
  }
}

/// The terms of the two sums of backward: the gradient, and the gradient times (x - mean). Also writes the
/// gradient to `masked` unless that is null.
template <class T>
struct BatchNormTerms {
  static constexpr int together = 2;
  BatchNormTask<T> task;
  T* masked = nullptr;

  template <int W>
  struct At {
    const BatchNormTask<T>& t;
    T* masked;
    std::int64_t column;
    ChannelScale<W> of;

    __device__ At(const BatchNormTerms& terms, std::int64_t first)
        : t(terms.task), masked(terms.masked), column(first), of(t, first, false) {}
    template <int U>
    __device__ void add(float (&sums)[2][W], std::int64_t row, int step) const {
      const std::int64_t at = row * t.channels + column,
                         stride = step * static_cast<std::int64_t>(t.channels);
      float x[U][W], g[U][W];
      load_rows(x, t.x, at, stride);
      masked_gradient(g, t, at, stride, x, of);
      if (masked != nullptr)
        for (int u = 0; u < U; ++u) store(masked + at + u * stride, g[u]);
      for (int u = 0; u < U; ++u)
        for (int k = 0; k < W; ++k) {
          sums[0][k] += g[u][k];
          sums[1][k] = fmaf(g[u][k], x[u][k] - of.mean[k], sums[1][k]);
        }
    }
  };
};

/// The coefficients of dx = scale g + slope (x - mean) + offset.
struct BatchNormSlopes {
  const float* weight = nullptr;
  const float* inverse = nullptr;
  float* slope = nullptr;
  float* offset = nullptr;

  /// From the sums of g and of g (x - mean) over `count` values of a channel.
  __device__ void keep(int column, double count, double sum, double dot) const {
    const double root = static_cast<double>(inverse[column]),
                 scale = root * static_cast<double>(weight[column]);
    slope[column] = static_cast<float>(-scale * root * root * dot / count);
    offset[column] = static_cast<float>(-scale * sum / count);
  }
};

/// The gradients of weight and bias, and the coefficients of dx.
struct BatchNormBackwardFinish : Partials<2> {
  std::int64_t positions = 0;
  BatchNormSlopes slopes;
  float* d_weight = nullptr;
  float* d_bias = nullptr;
  bool accumulate = false;
  /// [2][channels]: receives the two sums, to which those of other ranks are added before the sums become
  /// coefficients; null: the sums are those of this batch.
  double* sums = nullptr;

  __device__ void finish(int column, const double (&totals)[2]) const {
    const auto root = static_cast<double>(slopes.inverse[column]);
    if (sums == nullptr) {
      slopes.keep(column, static_cast<double>(positions), totals[0], totals[1]);
    } else {
      sums[column] = totals[0];
      sums[columns + column] = totals[1];
    }
    if (d_weight != nullptr)
      d_weight[column] = static_cast<float>(totals[1] * root) + (accumulate ? d_weight[column] : 0.0f);
    if (d_bias != nullptr)
      d_bias[column] = static_cast<float>(totals[0]) + (accumulate ? d_bias[column] : 0.0f);
  }
};

/// The same from the gradients of weight and bias, which are the two sums up to a factor.
template <class = void>
__global__ void batch_norm_take_sums(const float* of_parameters, BatchNormBackwardFinish finish) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= finish.columns) return;
  const double root = static_cast<double>(finish.slopes.inverse[c]);
  finish.finish(c, {static_cast<double>(of_parameters[finish.columns + c]),
                    static_cast<double>(of_parameters[c]) / root});
}

/// The coefficients from sums over `count` values per channel.
template <class = void>
__global__ void batch_norm_slopes(int channels, const double* sums, double count, BatchNormSlopes slopes) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c < channels) slopes.keep(c, count, sums[c], sums[channels + c]);
}

/// dx and the gradient of the addend.
template <class T, int W>
__global__ void __launch_bounds__(Columns::most_threads)
    batch_norm_gradients(Columns c, BatchNormTask<T> t, const float* slopes, const float* offsets) {
  const ColumnPlace place(c);
  if (place.row >= place.end) return;
  const ChannelScale<W> of(t, place.column, false);
  float slope[W] = {}, offset[W] = {};
  if (t.dx != nullptr) {
    load(slope, slopes + place.column);
    load(offset, offsets + place.column);
  }
  const std::int64_t stride = place.step * static_cast<std::int64_t>(c.columns);
  auto take = [&](auto together, std::int64_t at) {
    constexpr int U = decltype(together)::value;
    float x[U][W], g[U][W];
    load_rows(x, t.x, at, stride);
    masked_gradient(g, t, at, stride, x, of);
    for (int u = 0; u < U; ++u) {
      if (t.d_addend != nullptr) {
        float d[W];
        for (int k = 0; k < W; ++k) d[k] = g[u][k];
        store(t.d_addend + at + u * stride, d, t.accumulate_addend);
      }
      if (t.dx == nullptr) continue;
      for (int k = 0; k < W; ++k)
        g[u][k] = fmaf(g[u][k], of.scale[k], fmaf(x[u][k] - of.mean[k], slope[k], offset[k]));
      store(t.dx + at + u * stride, g[u], t.accumulate_dx);
    }
  };
  std::int64_t row = place.row, at = row * c.columns + place.column;
  for (; row + place.step < place.end; row += 2 * place.step, at += 2 * stride) take(Width<2>(), at);
  if (row < place.end) take(Width<1>(), at);
}

/// Bytes of scratch memory for one call.
template <class T>
std::int64_t batch_norm_scratch(std::int64_t positions, int channels) {
  return Partials<2>::bytes(share_columns<T>(positions, channels)) +
         2 * channels * static_cast<std::int64_t>(sizeof(float));
}

/// The sharing of a pass that writes no sums, where more blocks cost little.
template <class T>
Columns share_batch_norm_pass(const BatchNormTask<T>& t) {
  return share_columns<T>(t.positions, t.channels, Columns::processors * 8);
}

template <class T>
void launch_batch_norm_apply(cudaStream_t stream, const BatchNormTask<T>& t, bool evaluate) {
  constexpr int W = device::lanes<T>;
  const Columns c = share_batch_norm_pass(t);
  device::launch({stream, c.grid(), c.block()},
                 c.width == W ? batch_norm_apply<T, W> : batch_norm_apply<T, 1>, c, t, evaluate);
}

/// Launch with a thread for each channel.
inline device::Launch over_channels(cudaStream_t stream, int channels) {
  constexpr int threads = 128;
  return {stream, static_cast<unsigned>((channels + threads - 1) / threads), threads};
}

/// For a batch norm that involves no other rank.
struct NoSumAcross {
  double operator()(double*) const { return 0; }
};

/// Computes the statistics of a batch. With `sums`, memory for [2][channels], they are those of all ranks:
/// `sum_across(sums)` replaces the sums of this rank by those of all ranks, and returns the number of values
/// per channel over all ranks.
template <class T, class SumAcross>
void find_batch_norm_statistics(cudaStream_t stream, const BatchNormTask<T>& t, double* sums,
                                const SumAcross& sum_across) {
  constexpr int W = device::lanes<T>;
  const BatchNormStatistics statistics(t);
  // Sums that ranks exchange are computed in f64 from the beginning, which `t.sums` is not.
  if (t.sums != nullptr && sums == nullptr)
    return device::launch(over_channels(stream, t.channels), batch_norm_statistics<float>, t.channels, t.sums,
                          static_cast<double>(t.positions), statistics);
  const Columns c = share_columns<T>(t.positions, t.channels);
  const Partials<2> partials{static_cast<float*>(t.scratch), t.channels};
  device::launch({stream, c.grid(), c.block()},
                 c.width == W ? batch_norm_moments<T, W> : batch_norm_moments<T, 1>, c, t.x, partials);
  launch_finish<2>(stream, c, BatchNormFinish{partials, t.positions, c.chunk_rows, statistics, sums});
  if (sums == nullptr) return;
  const double count = sum_across(sums);
  device::launch(over_channels(stream, t.channels), batch_norm_statistics<double>, t.channels, sums, count,
                 statistics);
}

/// y, or its scales and shifts, by the statistics of the batch, which are stored in `mean` and `inverse`;
/// also updates the running statistics. `sums` and `sum_across` as for find_batch_norm_statistics.
template <class T, class SumAcross = NoSumAcross>
void batch_norm_forward_train(cudaStream_t stream, const BatchNormTask<T>& t, double* sums = nullptr,
                              const SumAcross& sum_across = {}) {
  find_batch_norm_statistics(stream, t, sums, sum_across);
  if (t.scale_shift == nullptr) launch_batch_norm_apply(stream, t, false);
}

/// y, or its scales and shifts, by the running statistics.
template <class T>
void batch_norm_forward_evaluate(cudaStream_t stream, const BatchNormTask<T>& t) {
  if (t.scale_shift == nullptr)
    launch_batch_norm_apply(stream, t, true);
  else
    device::launch(over_channels(stream, t.channels), batch_norm_scale_shift<>, BatchNormStatistics(t));
}

/// dx, the gradient of the addend, and this rank's gradients of weight and bias; `sums` and `sum_across` as
/// for find_batch_norm_statistics. The gradient of the addend is the gradient that reaches the batch norm:
/// unless it accumulates, the first pass writes it there and the second reads it instead of recomputing it.
template <class T, class SumAcross = NoSumAcross>
void batch_norm_backward(cudaStream_t stream, const BatchNormTask<T>& t, double* sums = nullptr,
                         const SumAcross& sum_across = {}) {
  constexpr int W = device::lanes<T>;
  const Columns c = share_columns<T>(t.positions, t.channels);
  const Partials<2> partials{static_cast<float*>(t.scratch), t.channels};
  float* slope = partials.values + Partials<2>::bytes(c) / static_cast<std::int64_t>(sizeof(float));
  float* offset = slope + t.channels;
  BatchNormTask<T> left = t;
  if (t.parameter_sums != nullptr) left.relu = false;
  if (t.dx != nullptr || t.d_weight != nullptr || t.d_bias != nullptr) {
    const BatchNormSlopes slopes{t.weight, t.inverse, slope, offset};
    const BatchNormBackwardFinish finish{
        partials, t.positions, slopes, t.d_weight, t.d_bias, t.accumulate_parameters, sums};
    const bool summed = t.parameter_sums != nullptr;
    T* const masked = t.accumulate_addend || summed ? nullptr : t.d_addend;
    if (summed)
      device::launch(over_channels(stream, t.channels), batch_norm_take_sums<>, t.parameter_sums, finish);
    else
      sum_columns<T>(stream, c, BatchNormTerms<T>{t, masked}, partials, finish);
    if (sums != nullptr && t.dx != nullptr) {
      const double count = sum_across(sums);
      device::launch(over_channels(stream, t.channels), batch_norm_slopes<>, t.channels, sums, count, slopes);
    }
    if (masked != nullptr) {
      left.dy = masked;
      left.second = nullptr;
      left.relu = false;
      left.d_addend = nullptr;
    }
  }
  if (left.dx == nullptr && left.d_addend == nullptr) return;
  const Columns pass = share_batch_norm_pass(left);
  device::launch({stream, pass.grid(), pass.block()},
                 pass.width == W ? batch_norm_gradients<T, W> : batch_norm_gradients<T, 1>, pass, left, slope,
                 offset);
}

}  // namespace convoy::exec::cuda
