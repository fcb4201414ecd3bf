// Linear layers in plain loops: x [rows, in], weight [out, in], y [rows, out].
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// y = x weight^T + bias; `bias` may be null.
template <class T>
void multiply(int rows, int in, int out, const T* x, const T* weight, const T* bias, T* y) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) {
      T sum = bias == nullptr ? T(0) : bias[o];
      for (std::int64_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[r * in + i];
      y[r * out + o] = sum;
    }
}

/// Adds to dx the gradient of the input.
template <class T>
void multiply_backward_input(int rows, int in, int out, const T* weight, const T* dy, T* dx) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) dx[r * in + i] += weight[o * in + i] * dy[r * out + o];
}

/// Adds to dweight the gradient of the weight.
template <class T>
void multiply_backward_weight(int rows, int in, int out, const T* x, const T* dy, T* dweight) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) dweight[o * in + i] += x[r * in + i] * dy[r * out + o];
}

/// Adds to dbias the gradient of the bias.
template <class T>
void multiply_backward_bias(int rows, int out, const T* dy, T* dbias) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) dbias[o] += dy[r * out + o];
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Linear> {
  static int in(const reference::Frame<T>& f) { return f.shape(0).last(); }
  static int out(const reference::Frame<T>& f) { return f.node().shape.last(); }
  /// The rows of the batch, times the positions if the value is a sequence.
  static int vectors(const reference::Frame<T>& f) {
    return static_cast<int>(f.size() / static_cast<std::size_t>(out(f)));
  }
  static void forward(const reference::Frame<T>& f) {
    reference::multiply(vectors(f), in(f), out(f), f.x(0), f.w(0), f.w(1), f.y());
  }
  static void backward(const reference::Frame<T>& f) {
    if (T* dx = f.dx(0)) reference::multiply_backward_input(vectors(f), in(f), out(f), f.w(0), f.dy(), dx);
    if (T* dw = f.dw(0)) reference::multiply_backward_weight(vectors(f), in(f), out(f), f.x(0), f.dy(), dw);
    if (T* db = f.dw(1)) reference::multiply_backward_bias(vectors(f), out(f), f.dy(), db);
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Linear);

}  // namespace convoy::exec
