// Concatenation as copies.
#pragma once

#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Concat> {
  /// Calls `visit(i, x, y)` for each element `x` of each input `i` and its index `y` in the value. The joined
  /// runs are the channels of a row, or the features of each of its positions.
  template <class Visit>
  static void for_each(const reference::Frame<T>& f, Visit&& visit) {
    const bool image = f.node().kind == Kind::image;
    const std::int64_t runs = f.rows() * (f.node().kind == Kind::sequence ? f.node().shape[0] : 1);
    const auto all = static_cast<std::int64_t>(f.size()) / runs;
    std::int64_t offset = 0;
    for (int i = 0; i < f.inputs(); ++i) {
      const std::int64_t run = image ? f.shape(i).size() : f.shape(i).last();
      for (std::int64_t r = 0; r < runs; ++r)
        for (std::int64_t k = 0; k < run; ++k) visit(i, r * run + k, r * all + offset + k);
      offset += run;
    }
  }
  static void forward(const reference::Frame<T>& f) {
    for_each(f, [&](int i, std::int64_t x, std::int64_t y) { f.y()[y] = f.x(i)[x]; });
  }
  static void backward(const reference::Frame<T>& f) {
    for_each(f, [&](int i, std::int64_t x, std::int64_t y) {
      if (T* dx = f.dx(i)) dx[x] += f.dy()[y];
    });
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Concat);

}  // namespace convoy::exec
