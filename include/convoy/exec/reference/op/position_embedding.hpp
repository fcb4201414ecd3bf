// Position embeddings in plain loops.
#pragma once

#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::PositionEmbedding> {
  static void forward(const reference::Frame<T>& f) {
    const std::int64_t row = f.node().shape.size();
    for (std::int64_t i = 0; i < f.rows() * row; ++i) f.y()[i] = f.x(0)[i] + f.w(0)[i % row];
  }
  static void backward(const reference::Frame<T>& f) {
    const std::int64_t row = f.node().shape.size();
    T *const dx = f.dx(0), *const dw = f.dw(0);
    for (std::int64_t i = 0; i < f.rows() * row; ++i) {
      if (dx != nullptr) dx[i] += f.dy()[i];
      if (dw != nullptr) dw[i % row] += f.dy()[i];
    }
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(PositionEmbedding);

}  // namespace convoy::exec
