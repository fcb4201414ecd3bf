// Batch normalisation in plain loops over [rows, channels, map] (Ioffe and Szegedy, 2015), with PyTorch's
// conventions: the biased variance normalises, the unbiased one moves the running variance.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// The extents of one batch normalisation.
struct Normalization {
  int rows = 0, channels = 0;
  std::int64_t map = 1;  ///< elements of one channel of one row

  std::int64_t count() const { return rows * map; }
};

/// Calls `visit(i)` with the index of each element of channel `channel`.
template <class Visit>
void for_each_in_channel(const Normalization& n, int channel, Visit&& visit) {
  for (std::int64_t r = 0; r < n.rows; ++r)
    for (std::int64_t i = 0; i < n.map; ++i) visit((r * n.channels + channel) * n.map + i);
}

/// Writes the mean and the biased variance of each channel.
template <class T>
void measure(const Normalization& n, const T* x, T* mean, T* variance) {
  const auto count = static_cast<T>(n.count());
  for (int c = 0; c < n.channels; ++c) {
    T sum = 0, squares = 0;
    for_each_in_channel(n, c, [&](std::int64_t i) { sum += x[i]; });
    mean[c] = sum / count;
    for_each_in_channel(n, c, [&](std::int64_t i) { squares += (x[i] - mean[c]) * (x[i] - mean[c]); });
    variance[c] = squares / count;
  }
}

/// Moves the running statistics towards those of a batch: running += momentum * (batch - running). A single
/// value a channel (one row of a 1x1 map) has no unbiased variance, so it leaves the running variance as it
/// is; PyTorch refuses such a batch.
template <class T>
void move_running(const Normalization& n, T momentum, const T* mean, const T* variance, T* running_mean,
                  T* running_variance) {
  const auto count = static_cast<T>(n.count());
  for (int c = 0; c < n.channels; ++c) {
    running_mean[c] += momentum * (mean[c] - running_mean[c]);
    if (n.count() > 1)
      running_variance[c] += momentum * (variance[c] * count / (count - 1) - running_variance[c]);
  }
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

/// Gradients through `normalize` with the statistics of its own batch. Adds to dx, dweight and dbias; each
/// may be null.
template <class T>
void normalize_backward(const Normalization& n, T epsilon, const T* x, const T* mean, const T* variance,
                        const T* weight, const T* dy, T* dx, T* dweight, T* dbias) {
  const auto count = static_cast<T>(n.count());
  for (int c = 0; c < n.channels; ++c) {
    const T inverse = T(1) / std::sqrt(variance[c] + epsilon);
    T sum = 0, dot = 0;  // of dy, and of dy with the normalised x
    for_each_in_channel(n, c, [&](std::int64_t i) {
      sum += dy[i];
      dot += dy[i] * (x[i] - mean[c]) * inverse;
    });
    if (dweight != nullptr) dweight[c] += dot;
    if (dbias != nullptr) dbias[c] += sum;
    if (dx == nullptr) continue;
    for_each_in_channel(n, c, [&](std::int64_t i) {
      dx[i] += weight[c] * inverse * (dy[i] - sum / count - (x[i] - mean[c]) * inverse * dot / count);
    });
  }
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::BatchNorm> {
  static reference::Normalization extents(const reference::Frame<T>& f) {
    const Shape& shape = f.node().shape;
    return {f.rows(), shape[0], static_cast<std::int64_t>(shape[1]) * shape[2]};
  }
  static void forward(const reference::Frame<T>& f) {
    const auto n = extents(f);
    const auto [epsilon, momentum] = f.template attributes<graph::BatchNorm>();
    const T *mean = f.statistic(0), *variance = f.statistic(1);
    if (f.pass().mode == Mode::train) {
      std::vector<T>& kept = f.kept();  // the batch's means, then its variances
      kept.resize(static_cast<std::size_t>(2 * n.channels));
      T *batch_mean = kept.data(), *batch_variance = kept.data() + n.channels;
      reference::measure(n, f.x(0), batch_mean, batch_variance);
      reference::move_running(n, static_cast<T>(momentum), batch_mean, batch_variance, f.statistic(0),
                              f.statistic(1));
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
