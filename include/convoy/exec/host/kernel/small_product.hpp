// Products of matrices that fit into a cache, and transposes into the order they read. Vectors run along
// columns: rows of the result and of the right operand have room for a multiple of `column_grain` columns,
// and the padding may hold any finite values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <convoy/parallel/simd.hpp>

namespace convoy::exec::host {

/// The number of columns in the widest vector.
inline constexpr int column_grain = 16;
constexpr std::int64_t padded_columns(std::int64_t columns) {
  return (columns + column_grain - 1) / column_grain * column_grain;
}

/// C = A B, C += A B, or C = C factors + A B with one factor per column. C is [m, n]; the inner extent is k.
/// A is stored row-major, or column-major if `a_by_columns`.
struct SmallProduct {
  enum class Into { assign, add, scale };
  int m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t a_step = 0;  ///< stride between rows, or between columns
  bool a_by_columns = false;
  const float* b = nullptr;
  std::int64_t b_step = 0;
  float* c = nullptr;
  std::int64_t c_step = 0;
  Into into = Into::assign;
  const float* factors = nullptr;
};

struct SmallProductLoop {
  /// R rows by C vectors of columns.
  template <int W, int R, int C, bool by_columns>
  CONVOY_INLINE static void tile(const SmallProduct& p, int row, int column) {
    using V = simd::Vec<float, W>;
    V sum[R][C] = {};
    const float* a = p.a + (by_columns ? row : row * p.a_step);
    const float* b = p.b + column;
    for (int k = 0; k < p.k; ++k, b += p.b_step) {
      V right[C];
      CONVOY_UNROLL
      for (int c = 0; c < C; ++c) simd::load(right[c], b + c * W);
      CONVOY_UNROLL
      for (int r = 0; r < R; ++r) {
        const float left = by_columns ? a[r] : a[r * p.a_step + k];
        CONVOY_UNROLL
        for (int c = 0; c < C; ++c) sum[r][c] += right[c] * left;
      }
      if (by_columns) a += p.a_step;
    }
    float* to = p.c + row * p.c_step + column;
    if (p.into != SmallProduct::Into::assign) {
      CONVOY_UNROLL
      for (int c = 0; c < C; ++c) {
        V factor = V{} + 1.0f, before;
        if (p.into == SmallProduct::Into::scale) simd::load(factor, p.factors + column + c * W);
        CONVOY_UNROLL
        for (int r = 0; r < R; ++r) {
          simd::load(before, to + r * p.c_step + c * W);
          sum[r][c] += before * factor;
        }
      }
    }
    CONVOY_UNROLL
    for (int r = 0; r < R; ++r) {
      CONVOY_UNROLL
      for (int c = 0; c < C; ++c) simd::store(to + r * p.c_step + c * W, sum[r][c]);
    }
  }
  template <int W, int C, bool by_columns>
  CONVOY_INLINE static void panel(const SmallProduct& p, int column) {
    constexpr int most = W == 16 ? 8 : W == 8 ? 6 : 4;  // as many sums as fit into registers
    int row = 0;
    for (; row + most <= p.m; row += most) tile<W, most, C, by_columns>(p, row, column);
    if constexpr (most > 4)
      for (; row + 4 <= p.m; row += 4) tile<W, 4, C, by_columns>(p, row, column);
    for (; row + 2 <= p.m; row += 2) tile<W, 2, C, by_columns>(p, row, column);
    for (; row < p.m; ++row) tile<W, 1, C, by_columns>(p, row, column);
  }
  template <int W, bool by_columns>
  CONVOY_INLINE static void panels(const SmallProduct& p) {
    int column = 0;
    for (; column + W < p.n; column += 2 * W) panel<W, 2, by_columns>(p, column);
    for (; column < p.n; column += W) panel<W, 1, by_columns>(p, column);
  }
  template <int W>
  CONVOY_INLINE static void run(const SmallProduct* p) {
    if (p->a_by_columns)
      panels<W, true>(*p);
    else
      panels<W, false>(*p);
  }
};

inline void multiply(const SmallProduct& product) { simd::run<SmallProductLoop>(&product); }

/// One step of transposing W vectors: swaps the off-diagonal blocks of `apart` x `apart` elements. It
/// recurses over the powers of two below W, so that exchange<W, 1> transposes the vectors.
template <int W, int apart, std::size_t... lane>
CONVOY_INLINE void exchange(simd::Vec<float, W> (&x)[W], std::index_sequence<lane...> lanes) {
  if constexpr (apart < W) {
    CONVOY_UNROLL
    for (int r = 0; r < W; ++r) {
      if ((r & apart) != 0) continue;
      const simd::Vec<float, W> low = x[r], high = x[r + apart];
      x[r] = __builtin_shufflevector(low, high, (lane & apart ? W + lane - apart : lane)...);
      x[r + apart] = __builtin_shufflevector(low, high, (lane & apart ? W + lane : lane + apart)...);
    }
    exchange<W, 2 * apart>(x, lanes);
  }
}

struct TransposeLoop {
  template <int W>
  CONVOY_INLINE static void run(const float* from, std::int64_t from_step, int rows, int columns, float* to,
                                std::int64_t to_step, float factor, const float* factors) {
    using V = simd::Vec<float, W>;
    const int whole_rows = rows / W * W, whole_columns = columns / W * W;
    for (int c = 0; c < whole_columns; c += W) {
      V scale = V{} + factor, other;
      if (factors != nullptr) {
        simd::load(other, factors + c);
        scale *= other;
      }
      for (int r = 0; r < whole_rows; r += W) {
        V x[W];
        CONVOY_UNROLL
        for (int i = 0; i < W; ++i) {
          simd::load(x[i], from + (r + i) * from_step + c);
          x[i] *= scale;
        }
        exchange<W, 1>(x, std::make_index_sequence<W>{});
        CONVOY_UNROLL
        for (int i = 0; i < W; ++i) simd::store(to + (c + i) * to_step + r, x[i]);
      }
    }
    for (int c = 0; c < columns; ++c) {
      const float scale = factors == nullptr ? factor : factor * factors[c];
      for (int r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
        to[c * to_step + r] = from[r * from_step + c] * scale;
    }
  }
};

/// to[c, r] = factor * from[r, c], times factors[c] unless `factors` is null.
inline void transpose(const float* from, std::int64_t from_step, int rows, int columns, float* to,
                      std::int64_t to_step, float factor, const float* factors = nullptr) {
  simd::run<TransposeLoop>(from, from_step, rows, columns, to, to_step, factor, factors);
}

}  // namespace convoy::exec::host
