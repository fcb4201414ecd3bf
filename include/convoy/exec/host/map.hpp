// Map: the memory layout of a batch of images. One description, and so one set of loops, for every layout
// whose innermost part is a block of contiguous channels: nChw16c, nChw8c, nhwc with whole blocks.
#pragma once

#include <cstdint>

#include <convoy/exec/host/layout.hpp>
#include <convoy/graph/node.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::exec::host {

/// The order in which a Host keeps images: channels in blocks of `lanes`, and the blocks of a position either
/// apart (nChw16c) or, if they are whole, adjacent (nhwc).
struct ImageOrder {
  int lanes = 1;
  bool channels_last = false;
};

/// An image layout with channels in blocks of `lanes`; the lanes past the last channel are zero. Strides are
/// in elements.
struct Map {
  int rows = 0, channels = 0, height = 0, width = 0;
  int lanes = 1, blocks = 0;
  bool channels_last = false;
  std::int64_t row_stride = 0, block_stride = 0, position_stride = 0;

  std::int64_t positions() const { return static_cast<std::int64_t>(height) * width; }
  /// Elements in memory, padding lanes included.
  std::int64_t elements() const { return rows * blocks * positions() * lanes; }
  /// Elements of one channel over the batch.
  std::int64_t count() const { return rows * positions(); }
  /// Whether the order in memory is that of the plain layout.
  bool is_plain() const { return positions() == 1 && channels % lanes == 0; }
};

/// The layout nhwc if the order has channels last and they fill whole blocks, else nChw16c or nChw8c.
[[gnu::cold]] inline Map blocked_map(int rows, const Shape& shape, const ImageOrder& order) {
  Map map{rows, shape[0], shape[1], shape[2], order.lanes, (shape[0] + order.lanes - 1) / order.lanes};
  map.channels_last = order.channels_last && shape[0] % order.lanes == 0;
  map.position_stride = map.channels_last ? shape[0] : order.lanes;
  map.block_stride = map.channels_last ? order.lanes : map.positions() * order.lanes;
  map.row_stride = map.positions() * map.blocks * order.lanes;
  return map;
}

[[gnu::cold]] inline dnnl_format_tag_t tag_of(const Map& map) {
  return map.channels_last ? dnnl_nhwc : map.lanes == 16 ? dnnl_nChw16c : dnnl_nChw8c;
}

/// Runs a loop in vectors no wider than `lanes`.
template <class Loop, class... Args>
void run_in_lanes([[maybe_unused]] int lanes, Args... args) {
#if defined(__x86_64__)
  if (lanes < 16 && simd::isa() == simd::Isa::avx512) return simd::run_avx2<Loop>(args...);
#endif
  simd::run<Loop>(args...);
}

[[gnu::cold]] inline Layout describe_blocked(const Map& map, dnnl_data_type_t type = dnnl_f32) {
  return {{map.rows, map.channels, map.height, map.width}, tag_of(map), type};
}

/// The plain descriptor of a batch of values: nchw for images, [rows, elements] for everything else.
[[gnu::cold]] inline Layout describe_plain(int rows, const graph::Node& node) {
  const Shape& shape = node.shape;
  if (node.kind == Kind::image) return {{rows, shape[0], shape[1], shape[2]}, dnnl_nchw};
  return {{rows, shape.size()}, dnnl_ab};
}

}  // namespace convoy::exec::host
