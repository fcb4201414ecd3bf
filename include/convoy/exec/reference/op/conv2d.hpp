// Convolution in plain loops. Forward and both gradients use one walk over all products, so they agree on
// which input element each weight multiplies.
#pragma once

#include <cstdint>

#include <convoy/core/range.hpp>
#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// The extents of one convolution: input [rows, in, height, width], weight [out, in / groups, live taps],
/// output [rows, out, out_height, out_width].
struct Convolution {
  int in = 0, height = 0, width = 0;
  int out = 0, out_height = 0, out_width = 0;
  graph::Conv2d::Attributes window;
  graph::Taps taps;

  Convolution(const graph::Conv2d::Attributes& slides, const Shape& input, const Shape& output,
              const graph::Taps& live)
      : in(input[0]),
        height(input[1]),
        width(input[2]),
        out(output[0]),
        out_height(output[1]),
        out_width(output[2]),
        window(slides),
        taps(live) {}

  std::int64_t map() const { return static_cast<std::int64_t>(out_height) * out_width; }
};

/// The output positions [begin, end) along an axis at which the tap at distance `tap` from the first one
/// meets the input, not padding.
inline Range positions_of_tap(int tap, int extent, int stride, int padding, int positions) {
  const int low = padding - tap, high = low + extent;  // bounds of position * stride
  const int begin = low > 0 ? (low + stride - 1) / stride : 0;
  const int end = high > 0 ? (high + stride - 1) / stride : 0;
  return {begin, end < positions ? end : positions};
}

/// Calls `multiply(x, w, y, n)` for all products of an input element and a weight: input elements `x`,
/// `x` + stride, ... are multiplied by weight `w` for `n` consecutive output elements from `y`.
template <class Multiply>
void for_each_run(const Convolution& c, int rows, Multiply multiply) {
  const int stride = c.window.stride, padding = c.window.padding, dilation = c.window.dilation;
  const int in = c.in / c.window.groups, out = c.out / c.window.groups;  // of one group
  std::int64_t w = 0;
  for (std::int64_t o = 0; o < c.out; ++o)
    for (std::int64_t i = o / out * in; i < (o / out + 1) * in; ++i)
      for (int tap_y = c.taps.top; tap_y < c.taps.bottom; ++tap_y)
        for (int tap_x = c.taps.left; tap_x < c.taps.right; ++tap_x, ++w) {
          const Range down = positions_of_tap(tap_y * dilation, c.height, stride, padding, c.out_height);
          const Range right = positions_of_tap(tap_x * dilation, c.width, stride, padding, c.out_width);
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t y = down.begin; y < down.end; ++y) {
              const std::int64_t from =
                  ((r * c.in + i) * c.height + y * stride - padding + tap_y * dilation) * c.width;
              const std::int64_t to = ((r * c.out + o) * c.out_height + y) * c.out_width;
              multiply(from + right.begin * stride - padding + tap_x * dilation, w, to + right.begin,
                       right.end - right.begin);
            }
        }
}

/// y = x * w + bias; `bias` may be null.
template <class T>
void convolve(const Convolution& c, int rows, const T* x, const T* weight, const T* bias, T* y) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (int o = 0; o < c.out; ++o)
      for (std::int64_t i = 0; i < c.map(); ++i)
        y[(r * c.out + o) * c.map() + i] = bias == nullptr ? T(0) : bias[o];
  const int stride = c.window.stride;
  for_each_run(c, rows, [=](std::int64_t at_x, std::int64_t at_w, std::int64_t at_y, std::int64_t n) {
    const T w = weight[at_w];
    for (std::int64_t i = 0; i < n; ++i) y[at_y + i] += w * x[at_x + i * stride];
  });
}

/// Adds to dx the gradient of the input.
template <class T>
void convolve_backward_input(const Convolution& c, int rows, const T* weight, const T* dy, T* dx) {
  const int stride = c.window.stride;
  for_each_run(c, rows, [=](std::int64_t at_x, std::int64_t at_w, std::int64_t at_y, std::int64_t n) {
    const T w = weight[at_w];
    for (std::int64_t i = 0; i < n; ++i) dx[at_x + i * stride] += w * dy[at_y + i];
  });
}

/// Adds to dweight the gradient of the live weights.
template <class T>
void convolve_backward_weight(const Convolution& c, int rows, const T* x, const T* dy, T* dweight) {
  const int stride = c.window.stride;
  for_each_run(c, rows, [=](std::int64_t at_x, std::int64_t at_w, std::int64_t at_y, std::int64_t n) {
    T sum = dweight[at_w];
    for (std::int64_t i = 0; i < n; ++i) sum += x[at_x + i * stride] * dy[at_y + i];
    dweight[at_w] = sum;
  });
}

/// Adds to dbias the gradient of the bias.
template <class T>
void convolve_backward_bias(const Convolution& c, int rows, const T* dy, T* dbias) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (int o = 0; o < c.out; ++o)
      for (std::int64_t i = 0; i < c.map(); ++i) dbias[o] += dy[(r * c.out + o) * c.map() + i];
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Conv2d> {
  static reference::Convolution extents(const reference::Frame<T>& f) {
    return {f.template attributes<graph::Conv2d>(), f.shape(0), f.node().shape,
            f.plan().live_taps(f.parameter(0))};
  }
  static void forward(const reference::Frame<T>& f) {
    reference::convolve(extents(f), f.rows(), f.x(0), f.w(0), f.w(1), f.y());
  }
  static void backward(const reference::Frame<T>& f) {
    const auto c = extents(f);
    if (T* dx = f.dx(0)) reference::convolve_backward_input(c, f.rows(), f.w(0), f.dy(), dx);
    if (T* dw = f.dw(0)) reference::convolve_backward_weight(c, f.rows(), f.x(0), f.dy(), dw);
    if (T* db = f.dw(1)) reference::convolve_backward_bias(c, f.rows(), f.dy(), db);
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Conv2d);

}  // namespace convoy::exec
