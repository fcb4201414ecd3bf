// Binary cross-entropy of logits in plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::BceWithLogits> {
  static std::int64_t row(const reference::Frame<T>& f) { return f.shape(0).size(); }
  static void forward(const reference::Frame<T>& f) {
    const T *x = f.x(0), *target = f.x(1);
    for (std::int64_t r = 0; r < f.rows(); ++r) {
      T sum = 0;
      for (std::int64_t i = r * row(f); i < (r + 1) * row(f); ++i)
        sum += std::max(x[i], T(0)) - x[i] * target[i] + std::log1p(std::exp(-std::abs(x[i])));
      f.y()[r] = sum / static_cast<T>(row(f));
    }
  }
  static void backward(const reference::Frame<T>& f) {
    const T *x = f.x(0), *target = f.x(1);
    T *dx = f.dx(0), *d_target = f.dx(1);
    for (std::int64_t i = 0; i < f.rows() * row(f); ++i) {
      const T each = f.dy()[i / row(f)] / static_cast<T>(row(f));
      if (dx != nullptr) dx[i] += each * (T(1) / (T(1) + std::exp(-x[i])) - target[i]);
      if (d_target != nullptr) d_target[i] += each * (-x[i]);
    }
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(BceWithLogits);

}  // namespace convoy::exec
