// Embeddings in plain loops.
#pragma once

#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Embedding> {
  /// Calls `visit(to, from)` with the index of each element of the value and of the weight element that it
  /// copies.
  template <class Visit>
  static void for_each(const reference::Frame<T>& f, Visit&& visit) {
    const std::int64_t features = f.parameter_shape(0)[1];
    const auto ids = static_cast<std::int64_t>(f.size(0));
    for (std::int64_t i = 0; i < ids; ++i)
      for (std::int64_t k = 0; k < features; ++k) visit(i * features + k, f.integers(0)[i] * features + k);
  }
  static void forward(const reference::Frame<T>& f) {
    for_each(f, [&](std::int64_t to, std::int64_t from) { f.y()[to] = f.w(0)[from]; });
  }
  static void backward(const reference::Frame<T>& f) {
    if (T* dw = f.dw(0)) for_each(f, [&](std::int64_t to, std::int64_t from) { dw[from] += f.dy()[to]; });
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Embedding);

}  // namespace convoy::exec
