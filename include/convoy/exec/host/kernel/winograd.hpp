// Winograd's algorithm F(4x4, 3x3) (Lavin and Gray, 2016): a 3x3 convolution with stride 1 over tiles of 4x4
// results takes 36 multiplications for each pair of channels instead of 144. Tiles of 6x6 values and filters
// are transformed to 36 points, where the convolution is a product of matrices per point.
//
// The tiles are polynomials in each direction, multiplied by their values at 0, a, -a, b, -b and infinity.
// A product a b near 1 keeps the transforms' factors, and so rounding errors, small.
//
// All transforms are in f32, whatever the type of the images. Filters stay in panels, as in
// exec/host/kernel/taps.hpp: [out / 32][tap][in][32]; transformed ones are [point][out / 32][in][32].
#pragma once

#include <cstdint>

#include <convoy/exec/host/kernel/taps.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/pixels.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::exec::host {

/// The transforms in one direction.
struct Winograd {
  static constexpr int results = 4, taps = 3, width = 6, points = width * width;
  static constexpr float a = 0.625f, b = 1.5f, a2 = a * a, b2 = b * b;
  /// What a filter's value at a point is divided by.
  static constexpr float at_0 = a2 * b2, at_a = 2 * a2 * (a2 - b2), at_b = 2 * b2 * (b2 - a2);

  /// Six values of a tile to the six points.
  template <class V>
  CONVOY_INLINE static void data(V (&v)[width]) {
    const V even_a = v[4] - v[2] * b2, odd_a = (v[3] - v[1] * b2) * a;
    const V even_b = v[4] - v[2] * a2, odd_b = (v[3] - v[1] * a2) * b;
    const V last = v[5] - v[3] * (a2 + b2) + v[1] * (a2 * b2);
    v[0] = v[4] - v[2] * (a2 + b2) + v[0] * (a2 * b2);
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
    v[5] = last;
  }
  /// Three taps, v[0] to v[2], to the six points.
  template <class V>
  CONVOY_INLINE static void filter(V (&v)[width]) {
    const V even_a = v[0] * (1 / at_a) + v[2] * (a2 / at_a), odd_a = v[1] * (a / at_a);
    const V even_b = v[0] * (1 / at_b) + v[2] * (b2 / at_b), odd_b = v[1] * (b / at_b);
    v[0] *= 1 / at_0;
    v[5] = v[2];
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
  }
  /// The six points to the four results, v[0] to v[3].
  template <class V>
  CONVOY_INLINE static void result(V (&v)[width]) {
    const V even_a = v[1] + v[2], odd_a = (v[1] - v[2]) * a;
    const V even_b = v[3] + v[4], odd_b = (v[3] - v[4]) * b;
    v[0] += even_a + even_b;
    v[1] = odd_a + odd_b;
    v[2] = even_a * a2 + even_b * b2;
    v[3] = odd_a * a2 + odd_b * b2 + v[5];
  }
  /// The transpose of `result`: gradients of four results, v[0] to v[3], to the six points.
  template <class V>
  CONVOY_INLINE static void result_gradient(V (&v)[width]) {
    const V even_a = v[0] + v[2] * a2, odd_a = (v[1] + v[3] * a2) * a;
    const V even_b = v[0] + v[2] * b2, odd_b = (v[1] + v[3] * b2) * b;
    v[5] = v[3];
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
  }
  /// The transpose of `filter`: gradients at the six points to those of the three taps, v[0] to v[2].
  template <class V>
  CONVOY_INLINE static void filter_gradient(V (&v)[width]) {
    const V even_a = (v[1] + v[2]) * (1 / at_a), odd_a = (v[1] - v[2]) * (a / at_a);
    const V even_b = (v[3] + v[4]) * (1 / at_b), odd_b = (v[3] - v[4]) * (b / at_b);
    v[0] = v[0] * (1 / at_0) + even_a + even_b;
    v[1] = odd_a + odd_b;
    v[2] = even_a * a2 + even_b * b2 + v[5];
  }
};

/// Tiles of a map, of `Winograd::results` squared positions each; those at the lower and right edge may reach
/// beyond it.
struct WinogradTiles {
  Map map;
  std::int64_t down() const { return (map.height + Winograd::results - 1) / Winograd::results; }
  std::int64_t right() const { return (map.width + Winograd::results - 1) / Winograd::results; }
  std::int64_t count() const { return map.rows * down() * right(); }

  struct Tile {
    std::int64_t image;  ///< the element at which the image begins
    int top, left;       ///< the first position of the tile
  };
  Tile operator[](std::int64_t tile) const {
    const std::int64_t in_row = tile % (down() * right());
    return {tile / (down() * right()) * map.row_stride,
            static_cast<int>(in_row / right()) * Winograd::results,
            static_cast<int>(in_row % right()) * Winograd::results};
  }
};

/// Transforms tiles of an image in the layout of a Map to matrices at the 36 points, or back.
struct WinogradTransform {
  WinogradTiles tiles;
  Pixels image;
  std::int64_t first = 0;  ///< the first tile
  int count = 0;           ///< of tiles
  /// The value of channel c of tile t at a point is matrices[point * point_step + t * tile_step +
  /// c / panel_width * panel_step + c % panel_width].
  float* matrices = nullptr;
  std::int64_t point_step = 0, tile_step = 0, panel_step = panel_width;
};

/// Applies a transform to the columns of a square of vectors and then to its rows: `from` values each way
/// become `to`. `read(v, y, x)` sets a value, which is zero before, and `write(v, y, x)` takes a result.
template <int W, int from, int to, class Transform, class Read, class Write>
CONVOY_INLINE void transform_square(Transform transform, Read read, Write write) {
  using V = simd::Vec<float, W>;
  V half[to][Winograd::width];
  for (int x = 0; x < from; ++x) {
    V v[Winograd::width] = {};
    CONVOY_UNROLL
    for (int y = 0; y < from; ++y) read(v[y], y, x);
    transform(v);
    CONVOY_UNROLL
    for (int y = 0; y < to; ++y) half[y][x] = v[y];
  }
  for (int y = 0; y < to; ++y) {
    transform(half[y]);
    CONVOY_UNROLL
    for (int x = 0; x < to; ++x) write(half[y][x], y, x);
  }
}

/// Calls `visit(image, matrices, tile)` for each vector of channels of each tile: the element of the image at
/// which the vector's channels begin, and its address at the first point.
template <int W, class Visit>
CONVOY_INLINE void for_each_tile(const WinogradTransform& t, Visit visit) {
  const Map& map = t.tiles.map;
  for (int i = 0; i < t.count; ++i) {
    const WinogradTiles::Tile tile = t.tiles[t.first + i];
    for (int c = 0; c < map.channels; c += W)
      visit(tile.image + c / map.lanes * map.block_stride + c % map.lanes,
            t.matrices + i * t.tile_step + c / panel_width * t.panel_step + c % panel_width, tile);
  }
}

/// Transforms the 6x6 positions that the results of each tile read, with zeros outside of the map.
struct WinogradDataLoop {
  template <int W>
  CONVOY_INLINE static void run(const WinogradTransform* task) {
    using V = simd::Vec<float, W>;
    const WinogradTransform& t = *task;
    const Map& map = t.tiles.map;
    for_each_tile<W>(
        t, [&](std::int64_t at, float* matrices, const WinogradTiles::Tile& tile)
               __attribute__((always_inline)) {
                 transform_square<W, Winograd::width, Winograd::width>(
                     [](V(&v)[Winograd::width]) __attribute__((always_inline)) { Winograd::data(v); },
                     [&](V & v, int y, int x) __attribute__((always_inline)) {
                       const int line = tile.top + y - 1, column = tile.left + x - 1;
                       if (line >= 0 && line < map.height && column >= 0 && column < map.width)
                         load<true>(v, t.image,
                                    at + (static_cast<std::int64_t>(line) * map.width + column) *
                                             map.position_stride);
                     },
                     [&](const V& v, int y, int x) __attribute__((always_inline)) {
                       simd::store(matrices + (y * Winograd::width + x) * t.point_step, v);
                     });
               });
  }
};

/// Transforms the gradient of the results of each tile, with zeros outside of the map.
struct WinogradResultGradientLoop {
  template <int W>
  CONVOY_INLINE static void run(const WinogradTransform* task) {
    using V = simd::Vec<float, W>;
    const WinogradTransform& t = *task;
    const Map& map = t.tiles.map;
    for_each_tile<W>(
        t, [&](std::int64_t at, float* matrices,
               const WinogradTiles::Tile& tile) __attribute__((always_inline)) {
          transform_square<W, Winograd::results, Winograd::width>(
              [](V(&v)[Winograd::width]) __attribute__((always_inline)) { Winograd::result_gradient(v); },
              [&](V & v, int y, int x) __attribute__((always_inline)) {
                const int line = tile.top + y, column = tile.left + x;
                if (line < map.height && column < map.width)
                  load<true>(
                      v, t.image,
                      at + (static_cast<std::int64_t>(line) * map.width + column) * map.position_stride);
              },
              [&](const V& v, int y, int x) __attribute__((always_inline)) {
                simd::store(matrices + (y * Winograd::width + x) * t.point_step, v);
              });
        });
  }
};

/// Transforms the values at the points to the results of each tile that lie within the map.
struct WinogradResultLoop {
  template <int W>
  CONVOY_INLINE static void run(const WinogradTransform* task) {
    using V = simd::Vec<float, W>;
    const WinogradTransform& t = *task;
    const Map& map = t.tiles.map;
    for_each_tile<W>(
        t, [&](std::int64_t at, float* matrices,
               const WinogradTiles::Tile& tile) __attribute__((always_inline)) {
          transform_square<W, Winograd::width, Winograd::results>(
              [](V(&v)[Winograd::width]) __attribute__((always_inline)) { Winograd::result(v); },
              [&](V & v, int y, int x) __attribute__((always_inline)) {
                simd::load(v, matrices + (y * Winograd::width + x) * t.point_step);
              },
              [&](const V& v, int y, int x) __attribute__((always_inline)) {
                const int line = tile.top + y, column = tile.left + x;
                if (line < map.height && column < map.width)
                  store<true>(
                      t.image,
                      at + (static_cast<std::int64_t>(line) * map.width + column) * map.position_stride, v);
              });
        });
  }
};

/// The panel of a 3x3 filter, [tap][in][32], and what it becomes, [point][in][32].
struct WinogradFilter {
  float* panel = nullptr;
  float* transformed = nullptr;
  std::int64_t inputs = 0;
  std::int64_t point_step = 0;  ///< from one point of `transformed` to the next
  bool turned = false;          ///< the taps in reverse order, as backward multiplies them
};

struct WinogradFilterLoop {
  template <int W>
  CONVOY_INLINE static void run(const WinogradFilter* task) {
    using V = simd::Vec<float, W>;
    const WinogradFilter& f = *task;
    const std::int64_t size = f.inputs * panel_width;
    for (std::int64_t at = 0; at < size; at += W)
      transform_square<W, Winograd::taps, Winograd::width>(
          [](V(&v)[Winograd::width]) __attribute__((always_inline)) { Winograd::filter(v); },
          [&](V & v, int y, int x) __attribute__((always_inline)) {
            const int tap = y * Winograd::taps + x, last = Winograd::taps * Winograd::taps - 1;
            simd::load(v, f.panel + (f.turned ? last - tap : tap) * size + at);
          },
          [&](const V& v, int y, int x) __attribute__((always_inline)) {
            simd::store(f.transformed + (y * Winograd::width + x) * f.point_step + at, v);
          });
  }
};

/// The gradient of the panel from that of the transformed filter.
struct WinogradFilterGradientLoop {
  template <int W>
  CONVOY_INLINE static void run(const WinogradFilter* task) {
    using V = simd::Vec<float, W>;
    const WinogradFilter& f = *task;
    const std::int64_t size = f.inputs * panel_width;
    for (std::int64_t at = 0; at < size; at += W)
      transform_square<W, Winograd::width, Winograd::taps>(
          [](V(&v)[Winograd::width]) __attribute__((always_inline)) { Winograd::filter_gradient(v); },
          [&](V & v, int y, int x) __attribute__((always_inline)) {
            simd::load(v, f.transformed + (y * Winograd::width + x) * f.point_step + at);
          },
          [&](const V& v, int y, int x) __attribute__((always_inline)) {
            simd::store(f.panel + (y * Winograd::taps + x) * size + at, v);
          });
  }
};

}  // namespace convoy::exec::host
