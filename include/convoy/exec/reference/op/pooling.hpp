// Max and average pooling in plain loops over [rows, channels, height, width].
#pragma once

#include <cstdint>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// The extents of one pooling; `planes` is rows times channels.
struct Pooling {
  std::int64_t planes = 0;
  int height = 0, width = 0, out_height = 0, out_width = 0;
  graph::Window window;

  Pooling(const graph::Window& slides, const Shape& input, const Shape& output, int rows)
      : planes(static_cast<std::int64_t>(rows) * input[0]),
        height(input[1]),
        width(input[2]),
        out_height(output[1]),
        out_width(output[2]),
        window(slides) {}

  std::int64_t outputs() const { return planes * out_height * out_width; }
};

/// Calls `visit(x, y)` with the indices of each input element (padding left out) and of each output element
/// whose window contains it. Windows come in order, the elements of each from its upper left corner.
template <class Visit>
void for_each_in_windows(const Pooling& p, Visit&& visit) {
  for (std::int64_t plane = 0; plane < p.planes; ++plane)
    for (int out_y = 0; out_y < p.out_height; ++out_y)
      for (int out_x = 0; out_x < p.out_width; ++out_x)
        for (int tap_y = 0; tap_y < p.window.height; ++tap_y)
          for (int tap_x = 0; tap_x < p.window.width; ++tap_x) {
            const int in_y = out_y * p.window.stride - p.window.padding + tap_y;
            const int in_x = out_x * p.window.stride - p.window.padding + tap_x;
            if (in_y < 0 || in_y >= p.height || in_x < 0 || in_x >= p.width) continue;
            visit((plane * p.height + in_y) * p.width + in_x,
                  (plane * p.out_height + out_y) * p.out_width + out_x);
          }
}

/// Writes the largest element of each window, and its index to `from`; of equals the first. NaN wins, as in
/// PyTorch.
template <class T>
void pool_max(const Pooling& p, const T* x, T* y, std::int64_t* from) {
  for (std::int64_t i = 0; i < p.outputs(); ++i) from[i] = -1;
  for_each_in_windows(p, [&](std::int64_t at_x, std::int64_t at_y) {
    if (from[at_y] >= 0 && !(x[at_x] > y[at_y]) && x[at_x] == x[at_x]) return;
    y[at_y] = x[at_x];
    from[at_y] = at_x;
  });
}

/// Adds to dx the gradient of the input.
template <class T>
void pool_max_backward(const Pooling& p, const std::int64_t* from, const T* dy, T* dx) {
  for (std::int64_t i = 0; i < p.outputs(); ++i) dx[from[i]] += dy[i];
}

/// Writes the mean of each window; padding counts as zeros.
template <class T>
void pool_average(const Pooling& p, const T* x, T* y) {
  for (std::int64_t i = 0; i < p.outputs(); ++i) y[i] = 0;
  for_each_in_windows(p, [&](std::int64_t at_x, std::int64_t at_y) { y[at_y] += x[at_x]; });
  const auto area = static_cast<T>(p.window.height) * static_cast<T>(p.window.width);
  for (std::int64_t i = 0; i < p.outputs(); ++i) y[i] /= area;
}

/// Adds to dx the gradient of the input.
template <class T>
void pool_average_backward(const Pooling& p, const T* dy, T* dx) {
  const auto area = static_cast<T>(p.window.height) * static_cast<T>(p.window.width);
  for_each_in_windows(p, [&](std::int64_t at_x, std::int64_t at_y) { dx[at_x] += dy[at_y] / area; });
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::MaxPool> {
  static reference::Pooling extents(const reference::Frame<T>& f) {
    return {f.template attributes<graph::MaxPool>(), f.shape(0), f.node().shape, f.rows()};
  }
  static void forward(const reference::Frame<T>& f) {
    f.from().resize(f.size());
    reference::pool_max(extents(f), f.x(0), f.y(), f.from().data());
  }
  static void backward(const reference::Frame<T>& f) {
    if (T* dx = f.dx(0)) reference::pool_max_backward(extents(f), f.from().data(), f.dy(), dx);
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

template <class T>
struct Kernel<Reference<T>, graph::AvgPool> {
  static reference::Pooling extents(const reference::Frame<T>& f) {
    return {f.template attributes<graph::AvgPool>(), f.shape(0), f.node().shape, f.rows()};
  }
  static void forward(const reference::Frame<T>& f) { reference::pool_average(extents(f), f.x(0), f.y()); }
  static void backward(const reference::Frame<T>& f) {
    if (T* dx = f.dx(0)) reference::pool_average_backward(extents(f), f.dy(), dx);
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(AvgPool);
CONVOY_REFERENCE(MaxPool);

}  // namespace convoy::exec
