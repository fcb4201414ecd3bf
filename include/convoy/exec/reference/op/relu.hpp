// Rectified linear units in plain loops.
#pragma once

#include <cstddef>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Relu> {
  static void forward(const reference::Frame<T>& f) {
    for (std::size_t i = 0; i < f.size(); ++i) f.y()[i] = f.x(0)[i] < 0 ? T(0) : f.x(0)[i];  // NaN stays NaN
  }
  static void backward(const reference::Frame<T>& f) {
    T* dx = f.dx(0);
    for (std::size_t i = 0; dx != nullptr && i < f.size(); ++i)
      if (f.y()[i] > 0) dx[i] += f.dy()[i];
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Relu);

}  // namespace convoy::exec
