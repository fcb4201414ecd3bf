// Batch normalization in plain loops over [rows, channels, map] (Ioffe and Szegedy, 2015), with PyTorch's
// conventions: the biased variance normalizes, the unbiased one updates the running variance.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/exec/reference/frame.hpp>
#include <convoy/exec/running_statistics.hpp>

namespace convoy::exec::reference {

/// The extents of one batch normalization, and the ranks that share its statistics.
struct Normalization {
  int rows = 0, channels = 0;
  std::int64_t map = 1;           ///< elements of one channel of one row
  AcrossRanks* across = nullptr;  ///< null: this rank alone

  std::int64_t own_count() const { return rows * map; }
  /// The count of all ranks; a collective call.
  std::int64_t count() const {
    double all[] = {static_cast<double>(own_count())};
    if (across != nullptr) across->sum(all);
    return static_cast<std::int64_t>(all[0]);
  }
  /// Replaces this rank's sums, one per channel, by those of all ranks.
  template <class T>
  void sum_across(T* sums) const {
    if (across == nullptr) return;
    std::vector<double> all(sums, sums + channels);
    across->sum(all);
    for (int c = 0; c < channels; ++c) sums[c] = static_cast<T>(all[static_cast<std::size_t>(c)]);
  }
};

/// Calls `visit(i)` with the index of each element of channel `channel`.
template <class Visit>
void for_each_in_channel(const Normalization& n, int channel, Visit&& visit) {
  for (std::int64_t r = 0; r < n.rows; ++r)
    for (std::int64_t i = 0; i < n.map; ++i) visit((r * n.channels + channel) * n.map + i);
}

/// Writes the mean and the biased variance of each channel over `count` values.
template <class T>
void measure(const Normalization& n, std::int64_t count, const T* x, T* mean, T* variance) {
  for (int c = 0; c < n.channels; ++c) {
    mean[c] = 0;
    for_each_in_channel(n, c, [&](std::int64_t i) { mean[c] += x[i]; });
  }
  n.sum_across(mean);
  for (int c = 0; c < n.channels; ++c) {
    mean[c] /= static_cast<T>(count);
    variance[c] = 0;
    for_each_in_channel(n, c, [&](std::int64_t i) { variance[c] += (x[i] - mean[c]) * (x[i] - mean[c]); });
  }
  n.sum_across(variance);
  for (int c = 0; c < n.channels; ++c) variance[c] /= static_cast<T>(count);
}

/// Moves the running statistics of all channels (exec/running_statistics.hpp).
template <class T>
void move_running(int channels, std::int64_t values, T momentum, const T* mean, const T* variance,
                  T* running_mean, T* running_variance) {
  for (int c = 0; c < channels; ++c)
    exec::move_running(momentum, static_cast<T>(values), mean[c], variance[c], running_mean[c],
                       running_variance[c]);
}

/// y = (x - mean) / sqrt(variance + epsilon) * weight + bias.
template <class T>
void normalize(const Normalization& n, T epsilon, const T* x, const T* mean, const T* variance,
               const T* weight, const T* bias, T* y) {
  for (int c = 0; c < n.channels; ++c) {
    const T inverse = T(1) / std::sqrt(variance[c] + epsilon);
    for_each_in_channel(n, c,
                        [&](std::int64_t i) { y[i] = (x[i] - mean[c]) * inverse * weight[c] + bias[c]; });
  }
}

/// Gradients through `normalize`, whose statistics are those of the batch, or of all ranks' batches. The
/// gradients of weight and bias are this rank's. Adds to dx, dweight and dbias; each may be null.
template <class T>
void normalize_backward(const Normalization& n, T epsilon, const T* x, const T* mean, const T* variance,
                        const T* weight, const T* dy, T* dx, T* dweight, T* dbias) {
  const auto channels = static_cast<std::size_t>(n.channels);
  std::vector<T> sum(channels), dot(channels);  // over dy, and over dy times the normalized x
  std::vector<T> inverse(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    inverse[c] = T(1) / std::sqrt(variance[c] + epsilon);
    for_each_in_channel(n, static_cast<int>(c), [&](std::int64_t i) {
      sum[c] += dy[i];
      dot[c] += dy[i] * (x[i] - mean[c]) * inverse[c];
    });
    if (dweight != nullptr) dweight[c] += dot[c];
    if (dbias != nullptr) dbias[c] += sum[c];
  }
  if (dx == nullptr) return;
  n.sum_across(sum.data());
  n.sum_across(dot.data());
  const auto count = static_cast<T>(n.count());
  for (std::size_t c = 0; c < channels; ++c)
    for_each_in_channel(n, static_cast<int>(c), [&](std::int64_t i) {
      dx[i] +=
          weight[c] * inverse[c] * (dy[i] - sum[c] / count - (x[i] - mean[c]) * inverse[c] * dot[c] / count);
    });
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::BatchNorm> {
  static reference::Normalization extents(const reference::Frame<T>& f) {
    const Shape& shape = f.node().shape;
    return {f.rows(), shape[0], static_cast<std::int64_t>(shape[1]) * shape[2], f.pass().across};
  }
  static void forward(const reference::Frame<T>& f) {
    const auto n = extents(f);
    const auto [epsilon, momentum] = f.template attributes<graph::BatchNorm>();
    const T *mean = f.statistic(0), *variance = f.statistic(1);
    if (f.pass().mode == Mode::train) {
      std::vector<T>& kept = f.kept();  // the batch's means, then its variances
      kept.resize(static_cast<std::size_t>(2 * n.channels));
      T *batch_mean = kept.data(), *batch_variance = kept.data() + n.channels;
      const std::int64_t count = n.count();
      reference::measure(n, count, f.x(0), batch_mean, batch_variance);
      reference::move_running(n.channels, count, static_cast<T>(momentum), batch_mean, batch_variance,
                              f.statistic(0), f.statistic(1));
      mean = batch_mean;
      variance = batch_variance;
    }
    reference::normalize(n, static_cast<T>(epsilon), f.x(0), mean, variance, f.w(0), f.w(1), f.y());
  }
  static void backward(const reference::Frame<T>& f) {
    const auto n = extents(f);
    const T* mean = f.kept().data();
    reference::normalize_backward(n, static_cast<T>(f.template attributes<graph::BatchNorm>().epsilon),
                                  f.x(0), mean, mean + n.channels, f.w(0), f.dy(), f.dx(0), f.dw(0), f.dw(1));
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(BatchNorm);

}  // namespace convoy::exec
