// Dead taps: filter taps that only ever meet padding. On a 1x1 map a padded 3x3 convolution has one live tap
// of nine; the other eight never contribute, and their gradients are exactly zero.
#pragma once

#include <convoy/graph/node.hpp>

namespace convoy::graph {

/// The live taps of a convolution: a rectangle of its kernel, half open.
struct Taps {
  int top = 0, bottom = 0, left = 0, right = 0;
  constexpr int height() const { return bottom - top; }
  constexpr int width() const { return right - left; }
  constexpr int count() const { return height() * width(); }
  friend constexpr bool operator==(const Taps&, const Taps&) = default;
};

/// The first and one past the last tap along an axis that meets the input at some position.
constexpr void live_range(int extent, int kernel, int stride, int padding, int positions, int& first,
                          int& end) {
  first = kernel;
  end = 0;
  for (int o = 0; o < positions; ++o) {
    const int low = padding - o * stride, high = low + extent;
    first = low > 0 ? (low < first ? low : first) : 0;
    end = high < kernel ? (high > end ? high : end) : kernel;
    if (first == 0 && end == kernel) break;
  }
}

/// The live taps of one convolution over an input of `in`.
constexpr Taps live_taps(const Window& w, const Shape& in, const Shape& out) {
  Taps taps;
  live_range(in[1], w.height, w.stride, w.padding, out[1], taps.top, taps.bottom);
  live_range(in[2], w.width, w.stride, w.padding, out[2], taps.left, taps.right);
  return taps;
}

/// Pairs of (output position, tap) along an axis that meet the input rather than padding.
constexpr int meetings(int extent, int kernel, int stride, int padding, int positions) {
  int total = 0;
  for (int o = 0; o < positions; ++o) {
    const int start = o * stride - padding;
    const int low = start < 0 ? 0 : start, high = start + kernel < extent ? start + kernel : extent;
    if (high > low) total += high - low;
  }
  return total;
}

/// Writes the live taps of each node (empty for what is no convolution).
constexpr void find_live_taps(const Graph& g, Taps* taps) {
  for (int n = 0; n < g.node_count; ++n) {
    taps[n] = {};
    if (g.nodes[n].op == Op::conv2d)
      taps[n] = live_taps(g.nodes[n].window, g.nodes[g.nodes[n].input[0]].shape, g.nodes[n].shape);
  }
}

}  // namespace convoy::graph
