// Linear layers in plain loops: x [rows, in], weight [out, in], y [rows, out].
#pragma once

#include <cstdint>

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
