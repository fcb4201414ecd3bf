// Copies between images and matrices that have a row for each position: im2col, for a tap of a filter and
// some channels at a time, and back.
#pragma once

#include <cstdint>

#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/pixels.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::exec::host {

/// Positions of a map in rows and columns `step` apart, of every image of a batch. Those outside of the map
/// are padding.
struct PositionGrid {
  int top = 0, left = 0, step = 1, down = 0, right = 0;

  std::int64_t count(const Map& map) const { return map.rows * static_cast<std::int64_t>(down) * right; }
};

/// The elements of a map at which positions [first, first + count) of a grid begin; -1 for padding.
inline void locate(const PositionGrid& grid, const Map& map, std::int64_t first, int count,
                   std::int64_t* elements) {
  auto column = static_cast<int>(first % grid.right);
  auto line = static_cast<int>(first / grid.right % grid.down);
  std::int64_t row = first / grid.right / grid.down;
  for (int i = 0; i < count; ++i) {
    const int y = grid.top + line * grid.step, x = grid.left + column * grid.step;
    elements[i] =
        y < 0 || y >= map.height || x < 0 || x >= map.width
            ? -1
            : row * map.row_stride + (static_cast<std::int64_t>(y) * map.width + x) * map.position_stride;
    if (++column < grid.right) continue;
    column = 0;
    if (++line < grid.down) continue;
    line = 0;
    ++row;
  }
}

/// Channels of positions and a matrix of f32 in rows `step` apart. Columns are in panels of `panel`, which
/// are `panel_step` apart.
struct PositionMatrix {
  const Map* map = nullptr;
  Pixels image;
  const std::int64_t* elements = nullptr;  ///< see locate()
  int count = 0;                           ///< of positions
  int channel = 0, channels = 0;           ///< the first one and their number, multiples of the map's lanes
  float* matrix = nullptr;
  std::int64_t step = 0, panel = 0, panel_step = 0;
};

/// Calls `visit(element of the image, address in the matrix)` for each vector, in the order of the image.
template <int W, class Visit>
CONVOY_INLINE void for_each_vector(const PositionMatrix& m, Visit visit) {
  const Map& map = *m.map;
  const auto at = [&](int c) {
    return (m.channel + c) / map.lanes * map.block_stride + (m.channel + c) % map.lanes;
  };
  const auto column = [&](int c) { return m.matrix + c / m.panel * m.panel_step + c % m.panel; };
  if (map.channels_last) {
    for (int i = 0; i < m.count; ++i)
      for (int c = 0; c < m.channels; c += W)
        visit(m.elements[i] < 0 ? -1 : m.elements[i] + at(c), column(c) + i * m.step);
  } else {
    for (int c = 0; c < m.channels; c += W)
      for (int i = 0; i < m.count; ++i)
        visit(m.elements[i] < 0 ? -1 : m.elements[i] + at(c), column(c) + i * m.step);
  }
}

/// Fills the matrix from the image, with zeros for padding.
struct Im2colLoop {
  template <int W>
  CONVOY_INLINE static void run(const PositionMatrix* task) {
    const PositionMatrix& m = *task;
    for_each_vector<W>(
        m, [&](std::int64_t element, float* to) __attribute__((always_inline)) {
          simd::Vec<float, W> v = {};
          if (element >= 0) load<true>(v, m.image, element);
          simd::store(to, v);
        });
  }
};

/// Fills positions of the image, none of which is padding, from the matrix.
struct MatrixToImageLoop {
  template <int W>
  CONVOY_INLINE static void run(const PositionMatrix* task) {
    const PositionMatrix& m = *task;
    for_each_vector<W>(
        m, [&](std::int64_t element, const float* from) __attribute__((always_inline)) {
          simd::Vec<float, W> v;
          simd::load(v, from);
          store<true>(m.image, element, v);
        });
  }
};

}  // namespace convoy::exec::host
