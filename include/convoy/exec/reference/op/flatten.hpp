// Flatten as a copy.
#pragma once

#include <algorithm>
#include <cstddef>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Flatten> {
  static void forward(const reference::Frame<T>& f) { std::copy_n(f.x(0), f.size(), f.y()); }
  static void backward(const reference::Frame<T>& f) {
    T* dx = f.dx(0);
    for (std::size_t i = 0; dx != nullptr && i < f.size(); ++i) dx[i] += f.dy()[i];
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Flatten);

}  // namespace convoy::exec
