// Window: the sliding window of convolutions and poolings. Dead taps of a convolution only ever meet padding:
// on a 1x1 map, a padded 3x3 convolution has one live tap of nine; the other eight never contribute, and
// their gradients are exactly zero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

/// The sliding window of a convolution or a pooling: extents of the kernel, one stride, one padding and one
/// dilation for both axes.
struct Window {
  int height = 0, width = 0, stride = 1, padding = 0;
  int dilation = 1;  ///< distance between adjacent taps

  /// The extent that `kernel` taps span, dilation included.
  constexpr std::int64_t reach(int kernel) const { return (std::int64_t{kernel} - 1) * dilation + 1; }
  /// The number of positions of a kernel of `kernel` taps along an axis of `extent`; 0 if it does not fit.
  constexpr int positions(int extent, int kernel) const {
    const std::int64_t room = extent + std::int64_t{2} * padding - reach(kernel);
    return room < 0 ? 0 : static_cast<int>(room / stride + 1);
  }
  friend constexpr bool operator==(const Window&, const Window&) = default;
};

/// Whether `x` is an image over which the window fits, all extents are positive, and the padding is at most
/// `most_padding`; reports a fault if not.
constexpr bool slides(Tracer& g, Tensor x, Shape extents, const Window& window, int most_padding = 1 << 20) {
  if (!g.image(x) || !g.positive(extents)) return false;
  if (window.padding < 0 || window.padding > most_padding) {
    g.report(Common::padding_is_wrong, {window.height, window.width}, {window.padding});
    return false;
  }
  if (window.positions(x.shape[1], window.height) > 0 && window.positions(x.shape[2], window.width) > 0)
    return true;
  const std::int64_t pad = std::int64_t{2} * window.padding;
  const auto shown = [](std::int64_t extent) {
    return static_cast<int>(std::min<std::int64_t>(extent, std::numeric_limits<int>::max()));
  };
  g.report(Common::window_does_not_fit, {shown(x.shape[1] + pad), shown(x.shape[2] + pad)},
           {shown(window.reach(window.height)), shown(window.reach(window.width))});
  return false;
}

/// The live taps of a convolution: a half-open rectangle of its kernel.
struct Taps {
  int top = 0, bottom = 0, left = 0, right = 0;
  constexpr int height() const { return bottom - top; }
  constexpr int width() const { return right - left; }
  constexpr int count() const { return height() * width(); }
  friend constexpr bool operator==(const Taps&, const Taps&) = default;
};

/// The number of taps, `dilation` apart, whose offset from the first is below `distance`.
constexpr int taps_below(int distance, int dilation) {
  return distance > 0 ? (distance - 1) / dilation + 1 : 0;
}

/// Writes the range [first, end) of the taps along an axis that meet the input at some position. With
/// dilation, some dead taps may count as live, so that the remaining convolution has no negative padding.
constexpr void live_range(int extent, int kernel, const Window& w, int positions, int& first, int& end) {
  first = kernel;
  end = 0;
  for (int o = 0; o < positions; ++o) {
    const int low = taps_below(w.padding - o * w.stride, w.dilation),
              high = taps_below(w.padding - o * w.stride + extent, w.dilation);
    first = low < first ? low : first;
    end = high < kernel ? (high > end ? high : end) : kernel;
    if (first == 0 && end == kernel) break;
  }
  if (w.padding - first * w.dilation < 0) first = w.padding / w.dilation;
  const int last = (positions - 1) * w.stride - w.padding;  // first tap's input index at the last position
  while (end < kernel && last + w.reach(end) - extent <= -w.stride) ++end;
}

/// The live taps of one convolution over an input of `in`.
constexpr Taps live_taps(const Window& w, const Shape& in, const Shape& out) {
  Taps taps;
  live_range(in[1], w.height, w, out[1], taps.top, taps.bottom);
  live_range(in[2], w.width, w, out[2], taps.left, taps.right);
  return taps;
}

/// The number of pairs (output position, tap) along an axis that meet the input rather than padding.
constexpr int meetings(int extent, int kernel, const Window& w, int positions) {
  int total = 0;
  for (int o = 0; o < positions; ++o) {
    const int before = w.padding - o * w.stride;
    const int low = taps_below(before, w.dilation), end = taps_below(before + extent, w.dilation);
    const int high = end < kernel ? end : kernel;
    if (high > low) total += high - low;
  }
  return total;
}

}  // namespace convoy::graph
