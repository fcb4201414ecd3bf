// Layer normalization in plain loops.
#pragma once

#include <cmath>
#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// The mean of a vector, and 1 / sqrt(variance + epsilon) with its biased variance.
template <class T>
struct Moments {
  T mean = 0, inverse = 0;
  Moments(const T* x, std::int64_t features, T epsilon) {
    for (std::int64_t i = 0; i < features; ++i) mean += x[i];
    mean /= static_cast<T>(features);
    T variance = 0;
    for (std::int64_t i = 0; i < features; ++i) variance += (x[i] - mean) * (x[i] - mean);
    inverse = T(1) / std::sqrt(variance / static_cast<T>(features) + epsilon);
  }
};

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::LayerNorm> {
  static std::int64_t features(const reference::Frame<T>& f) { return f.node().shape.last(); }
  static std::int64_t vectors(const reference::Frame<T>& f) {
    return static_cast<std::int64_t>(f.size()) / features(f);
  }
  static T epsilon(const reference::Frame<T>& f) {
    return static_cast<T>(f.template attributes<graph::LayerNorm>().epsilon);
  }
  static void forward(const reference::Frame<T>& f) {
    const std::int64_t n = features(f);
    const T *weight = f.w(0), *bias = f.w(1);
    for (std::int64_t v = 0; v < vectors(f); ++v) {
      const T* x = f.x(0) + v * n;
      const reference::Moments<T> moments(x, n, epsilon(f));
      for (std::int64_t i = 0; i < n; ++i)
        f.y()[v * n + i] =
            (x[i] - moments.mean) * moments.inverse * weight[i] + (bias == nullptr ? T(0) : bias[i]);
    }
  }
  static void backward(const reference::Frame<T>& f) {
    const std::int64_t n = features(f);
    const T* weight = f.w(0);
    T *dx = f.dx(0), *dw = f.dw(0), *db = f.dw(1);
    for (std::int64_t v = 0; v < vectors(f); ++v) {
      const T *x = f.x(0) + v * n, *dy = f.dy() + v * n;
      const reference::Moments<T> moments(x, n, epsilon(f));
      auto normal = [&](std::int64_t i) { return (x[i] - moments.mean) * moments.inverse; };
      T sum = 0, dot = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        sum += dy[i] * weight[i];
        dot += dy[i] * weight[i] * normal(i);
        if (dw != nullptr) dw[i] += dy[i] * normal(i);
        if (db != nullptr) db[i] += dy[i];
      }
      const T count = static_cast<T>(n);
      for (std::int64_t i = 0; dx != nullptr && i < n; ++i)
        dx[v * n + i] += moments.inverse * (dy[i] * weight[i] - sum / count - normal(i) * dot / count);
    }
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(LayerNorm);

}  // namespace convoy::exec
