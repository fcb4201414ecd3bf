// Linear layers in plain loops: x [rows, in], weight [out, in], y [rows, out].
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// The sizes of the layers of a node.
struct LinearSizes {
  int rows = 0;  ///< of the batch, times the positions if the value is a sequence
  int in = 0, out = 0;
  int stride = 0;  ///< between the rows of y: the features of all layers
};

/// y = x weight^T + bias; `bias` may be null.
template <class T>
void multiply(const LinearSizes& s, const T* x, const T* weight, const T* bias, T* y) {
  for (std::int64_t r = 0; r < s.rows; ++r)
    for (std::int64_t o = 0; o < s.out; ++o) {
      T sum = bias == nullptr ? T(0) : bias[o];
      for (std::int64_t i = 0; i < s.in; ++i) sum += weight[o * s.in + i] * x[r * s.in + i];
      y[r * s.stride + o] = sum;
    }
}

/// Adds to dx the gradient of the input.
template <class T>
void multiply_backward_input(const LinearSizes& s, const T* weight, const T* dy, T* dx) {
  for (std::int64_t r = 0; r < s.rows; ++r)
    for (std::int64_t o = 0; o < s.out; ++o)
      for (std::int64_t i = 0; i < s.in; ++i) dx[r * s.in + i] += weight[o * s.in + i] * dy[r * s.stride + o];
}

/// Adds to dweight the gradient of the weight.
template <class T>
void multiply_backward_weight(const LinearSizes& s, const T* x, const T* dy, T* dweight) {
  for (std::int64_t r = 0; r < s.rows; ++r)
    for (std::int64_t o = 0; o < s.out; ++o)
      for (std::int64_t i = 0; i < s.in; ++i) dweight[o * s.in + i] += x[r * s.in + i] * dy[r * s.stride + o];
}

/// Adds to dbias the gradient of the bias.
template <class T>
void multiply_backward_bias(const LinearSizes& s, const T* dy, T* dbias) {
  for (std::int64_t r = 0; r < s.rows; ++r)
    for (std::int64_t o = 0; o < s.out; ++o) dbias[o] += dy[r * s.stride + o];
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Linear> {
  static int layers(const reference::Frame<T>& f) { return graph::Linear::layers(f.graph(), f.index()); }
  static reference::LinearSizes sizes(const reference::Frame<T>& f) {
    const int stride = f.node().shape.last();
    return {static_cast<int>(f.size() / static_cast<std::size_t>(stride)), f.shape(0).last(),
            stride / layers(f), stride};
  }
  static void forward(const reference::Frame<T>& f) {
    const reference::LinearSizes s = sizes(f);
    for (int k = 0; k < layers(f); ++k)
      reference::multiply(s, f.x(0), f.w(k), f.w(layers(f) + k), f.y() + k * s.out);
  }
  static void backward(const reference::Frame<T>& f) {
    const reference::LinearSizes s = sizes(f);
    for (int k = 0; k < layers(f); ++k) {
      const T* const dy = f.dy() + k * s.out;
      if (T* dx = f.dx(0)) reference::multiply_backward_input(s, f.w(k), dy, dx);
      if (T* dw = f.dw(k)) reference::multiply_backward_weight(s, f.x(0), dy, dw);
      if (T* db = f.dw(layers(f) + k)) reference::multiply_backward_bias(s, dy, db);
    }
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Linear);

}  // namespace convoy::exec
