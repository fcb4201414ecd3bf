// Means over positions in plain loops.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Mean> {
  /// Calls `visit(to, from, length)` with the index of each element of the value, of each sequence element
  /// that it averages, and the number of those.
  template <class Visit>
  static void for_each(const reference::Frame<T>& f, Visit&& visit) {
    const std::int64_t features = f.shape(0)[1], positions = f.shape(0)[0];
    for (std::int64_t r = 0; r < f.rows(); ++r) {
      const std::int64_t length = f.inputs() > 1 ? f.integers(1)[r] : positions;
      for (std::int64_t p = 0; p < length; ++p)
        for (std::int64_t k = 0; k < features; ++k)
          visit(r * features + k, (r * positions + p) * features + k, static_cast<T>(length));
    }
  }
  static void forward(const reference::Frame<T>& f) {
    std::fill_n(f.y(), f.size(), T(0));
    for_each(f, [&](std::int64_t to, std::int64_t from, T length) { f.y()[to] += f.x(0)[from] / length; });
  }
  static void backward(const reference::Frame<T>& f) {
    if (T* dx = f.dx(0))
      for_each(f, [&](std::int64_t to, std::int64_t from, T length) { dx[from] += f.dy()[to] / length; });
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Mean);

}  // namespace convoy::exec
