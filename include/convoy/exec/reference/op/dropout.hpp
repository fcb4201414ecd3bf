// Dropout in plain loops.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/draws.hpp>
#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Dropout> {
  /// Calls `visit(i, factor)` for each element of the batch.
  template <class Visit>
  static void for_each(const reference::Frame<T>& f, Visit&& visit) {
    const DropoutRule rule(f.template attributes<graph::Dropout>().p);
    const Draws draws(f.pass(), f.node().name.view());
    const std::int64_t size = f.node().shape.size();
    for (std::int64_t r = 0; r < f.rows(); ++r)
      for (std::int64_t e = 0; e < size; ++e)
        visit(r * size + e, draws(r, e) < rule.threshold ? T(0) : static_cast<T>(rule.scale));
  }
  static void forward(const reference::Frame<T>& f) {
    if (f.pass().mode == Mode::evaluate)
      std::copy_n(f.x(0), f.size(), f.y());
    else
      for_each(f, [&](std::int64_t i, T factor) { f.y()[i] = factor * f.x(0)[i]; });
  }
  static void backward(const reference::Frame<T>& f) {
    if (T* dx = f.dx(0)) for_each(f, [&](std::int64_t i, T factor) { dx[i] += factor * f.dy()[i]; });
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Dropout);

}  // namespace convoy::exec
