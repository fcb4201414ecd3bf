// Gathers in plain loops.
#pragma once

#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Gather> {
  /// Calls `visit(to, from)` with the index of each element of the value and of the sequence element that it
  /// copies.
  template <class Visit>
  static void for_each(const reference::Frame<T>& f, Visit&& visit) {
    const std::int64_t features = f.shape(0)[1], positions = f.shape(0)[0];
    const std::int64_t named = f.shape(1).size();
    for (std::int64_t i = 0; i < f.rows() * named; ++i)
      for (std::int64_t k = 0; k < features; ++k)
        visit(i * features + k, (i / named * positions + f.integers(1)[i]) * features + k);
  }
  static void forward(const reference::Frame<T>& f) {
    for_each(f, [&](std::int64_t to, std::int64_t from) { f.y()[to] = f.x(0)[from]; });
  }
  static void backward(const reference::Frame<T>& f) {
    if (T* dx = f.dx(0)) for_each(f, [&](std::int64_t to, std::int64_t from) { dx[from] += f.dy()[to]; });
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Gather);

}  // namespace convoy::exec
