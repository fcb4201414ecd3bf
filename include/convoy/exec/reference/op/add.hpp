// Addition in plain loops.
#pragma once

#include <cstddef>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Add> {
  static void forward(const reference::Frame<T>& f) {
    for (std::size_t i = 0; i < f.size(); ++i) f.y()[i] = f.x(0)[i] + f.x(1)[i];
  }
  static void backward(const reference::Frame<T>& f) {
    for (int k = 0; k < 2; ++k)
      if (T* dx = f.dx(k))
        for (std::size_t i = 0; i < f.size(); ++i) dx[i] += f.dy()[i];
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Add);

}  // namespace convoy::exec
