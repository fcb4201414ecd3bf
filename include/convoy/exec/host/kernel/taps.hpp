// Convolution over small maps as matrix products over images: each output position is the sum, over the taps
// that meet the input there, of [images x in] times [in x out]. Padding is never multiplied, and the inner
// loops run at the rate of the vector units because images, not positions, are the rows of a tile.
//
// Weights are stored in panels: [out / 32][tap][in][32]. Maps stay in blocks of channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <convoy/core/range.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

inline constexpr int panel_width = 32;

/// A position of a map and the tap that multiplies it: offsets within an image of the map and within a panel.
struct TapPair {
  std::int64_t from = 0, tap = 0;
};

/// y at one output position over all images: the sum over pairs of x[from] times panel[tap].
struct TapProduct {
  const float* x = nullptr;
  const float* panel = nullptr;
  float* y = nullptr;  ///< at the position, and at the panel's first channel
  std::int64_t x_row = 0, x_block = 0, y_row = 0, y_block = 0;
  int blocks = 0, lanes = 0, rows = 0;
  const TapPair* pairs = nullptr;
  int pair_count = 0;
  bool accumulate = false;  ///< y += instead of y =
};

struct TapProductLoop {
  /// R images by two vectors of the panel's channels, from `channel` on.
  template <int W, int R>
  CONVOY_INLINE static void tile(const TapProduct& t, int row, int channel) {
    using V = simd::Vec<float, W>;
    V sum[R][2] = {};
    float* y = t.y + row * t.y_row;
    const std::int64_t first = channel / t.lanes * t.y_block + channel % t.lanes;
    const std::int64_t second = (channel + W) / t.lanes * t.y_block + (channel + W) % t.lanes;
    if (t.accumulate) {
      CONVOY_UNROLL
      for (int r = 0; r < R; ++r) {
        simd::load(sum[r][0], y + r * t.y_row + first);
        simd::load(sum[r][1], y + r * t.y_row + second);
      }
    }
    const float* x = t.x + row * t.x_row;
    for (int p = 0; p < t.pair_count; ++p) {
      const float* b = t.panel + t.pairs[p].tap + channel;
      for (int block = 0; block < t.blocks; ++block) {
        const float* a = x + t.pairs[p].from + block * t.x_block;
        for (int k = 0; k < t.lanes; ++k, b += panel_width) {
          V b0, b1;
          simd::load(b0, b);
          simd::load(b1, b + W);
          CONVOY_UNROLL
          for (int r = 0; r < R; ++r) {
            const float s = a[r * t.x_row + k];
            sum[r][0] += b0 * s;
            sum[r][1] += b1 * s;
          }
        }
      }
    }
    CONVOY_UNROLL
    for (int r = 0; r < R; ++r) {
      simd::store(y + r * t.y_row + first, sum[r][0]);
      simd::store(y + r * t.y_row + second, sum[r][1]);
    }
  }

  template <int W>
  CONVOY_INLINE static void run(const TapProduct* task) {
    constexpr int most = W == 16 ? 8 : W == 8 ? 6 : 4;  // as many sums as fit into registers
    const TapProduct& t = *task;
    for (int channel = 0; channel < panel_width; channel += 2 * W) {
      int row = 0;
      for (; row + most <= t.rows; row += most) tile<W, most>(t, row, channel);
      for (; row + 4 <= t.rows; row += 4) tile<W, 4>(t, row, channel);
      for (; row < t.rows; ++row) tile<W, 1>(t, row, channel);
    }
  }
};

/// The gradient of one tap of a panel for one block of input channels, over some images:
/// dw[in][32] (+)= sum over images and pairs of x[from] (a column) times dy[to] (a row).
struct TapGradient {
  const float* x = nullptr;   ///< at the block of input channels
  const float* dy = nullptr;  ///< packed: [images][positions][32]
  float* dw = nullptr;
  std::int64_t x_row = 0, y_row = 0;
  int lanes = 0, rows = 0;
  const TapPair* pairs = nullptr;  ///< `tap` is the offset of the output position
  int pair_count = 0;
  bool accumulate = false;
};

struct TapGradientLoop {
  /// R input channels from `in` by two vectors of output channels from `channel`.
  template <int W, int R>
  CONVOY_INLINE static void tile(const TapGradient& t, int in, int channel) {
    using V = simd::Vec<float, W>;
    V sum[R][2] = {};
    float* dw = t.dw + in * panel_width + channel;
    if (t.accumulate) {
      CONVOY_UNROLL
      for (int r = 0; r < R; ++r) {
        simd::load(sum[r][0], dw + r * panel_width);
        simd::load(sum[r][1], dw + r * panel_width + W);
      }
    }
    for (int row = 0; row < t.rows; ++row) {
      const float* x = t.x + row * t.x_row + in;
      const float* dy = t.dy + row * t.y_row + channel;
      for (int p = 0; p < t.pair_count; ++p) {
        const float* a = x + t.pairs[p].from;
        const float* b = dy + t.pairs[p].tap;
        V b0, b1;
        simd::load(b0, b);
        simd::load(b1, b + W);
        CONVOY_UNROLL
        for (int r = 0; r < R; ++r) {
          const float s = a[r];
          sum[r][0] += b0 * s;
          sum[r][1] += b1 * s;
        }
      }
    }
    CONVOY_UNROLL
    for (int r = 0; r < R; ++r) {
      simd::store(dw + r * panel_width, sum[r][0]);
      simd::store(dw + r * panel_width + W, sum[r][1]);
    }
  }

  template <int W>
  CONVOY_INLINE static void run(const TapGradient* task) {
    constexpr int most = W == 16 ? 8 : 4;
    for (int in = 0; in < task->lanes; in += most)
      for (int channel = 0; channel < panel_width; channel += 2 * W) tile<W, most>(*task, in, channel);
  }
};

/// Gathers the channels of a panel: from blocks of `lanes` channels to [images][positions][32]. In their own
/// layout they are a power of two apart and would evict one another from the L1 cache.
inline void pack_panel(const float* from, const Map& map, int rows, float* to) {
  for (int row = 0; row < rows; ++row)
    for (std::int64_t position = 0; position < map.positions(); ++position)
      for (int channel = 0; channel < panel_width; channel += map.lanes, to += map.lanes)
        __builtin_memcpy(to,
                         from + row * map.row_stride + channel / map.lanes * map.block_stride +
                             position * map.position_stride,
                         static_cast<std::size_t>(map.lanes) * sizeof(float));
}

/// Transposes a square of a panel: 32 input by 32 output channels.
struct PanelTranspose {
  template <int W>
  CONVOY_INLINE static void run(const float* from, float* to) {
    using V = simd::Vec<float, W>;
    for (int row = 0; row < panel_width; row += W)
      for (int column = 0; column < panel_width; column += W) {
        V v[W];
        CONVOY_UNROLL
        for (int i = 0; i < W; ++i) simd::load(v[i], from + (row + i) * panel_width + column);
        exchange<W, 1>(v);
        if constexpr (W > 2) exchange<W, 2>(v);
        if constexpr (W > 4) exchange<W, 4>(v);
        if constexpr (W > 8) exchange<W, 8>(v);
        CONVOY_UNROLL
        for (int i = 0; i < W; ++i) simd::store(to + (column + i) * panel_width + row, v[i]);
      }
  }

 private:
  /// Swaps the off-diagonal quarters of every square of 2 S vectors by 2 S lanes.
  template <int W, int S>
  CONVOY_INLINE static void exchange(simd::Vec<float, W>* v) {
    CONVOY_UNROLL
    for (int i = 0; i < W; ++i)
      if ((i & S) == 0) exchange<S>(v[i], v[i + S], std::make_integer_sequence<int, W>{});
  }
  template <int S, class V, int... lane>
  CONVOY_INLINE static void exchange(V& a, V& b, std::integer_sequence<int, lane...>) {
    constexpr int width = sizeof...(lane);
    const V low = __builtin_shufflevector(a, b, ((lane & S) == 0 ? lane : width + lane - S)...);
    b = __builtin_shufflevector(a, b, ((lane & S) == 0 ? lane + S : width + lane)...);
    a = low;
  }
};

/// Transposes every tap of a filter in panels: w [out / 32][tap][in][32] to wt [in / 32][tap][out][32].
inline void transpose_panels(int threads, const float* w, std::int64_t in, std::int64_t out,
                             std::int64_t taps, float* wt) {
  parallel(threads, [&](int thread, int team) {
    const Range tasks = share(out / panel_width * taps, thread, team);
    for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
      const std::int64_t panel = task / taps, tap = task % taps;
      for (std::int64_t c = 0; c < in; c += panel_width)
        simd::run<PanelTranspose>(
            w + (task * in + c) * panel_width,
            wt + ((c / panel_width * taps + tap) * out + panel * panel_width) * panel_width);
    }
  });
}

}  // namespace convoy::exec::host
