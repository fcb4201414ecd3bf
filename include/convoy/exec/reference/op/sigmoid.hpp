// The logistic function in plain loops.
#pragma once

#include <cmath>
#include <cstddef>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Sigmoid> {
  static void forward(const reference::Frame<T>& f) {
    for (std::size_t i = 0; i < f.size(); ++i) f.y()[i] = T(1) / (T(1) + std::exp(-f.x(0)[i]));
  }
  static void backward(const reference::Frame<T>& f) {
    T* dx = f.dx(0);
    for (std::size_t i = 0; dx != nullptr && i < f.size(); ++i)
      dx[i] += f.dy()[i] * f.y()[i] * (T(1) - f.y()[i]);
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Sigmoid);

}  // namespace convoy::exec
