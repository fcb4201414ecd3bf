// multiply: products of matrices in f32 by a team of threads, for what computes without an Exec.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/core/range.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy {

/// A matrix in memory: element (i, j) is data[i * down + j * across]. A transpose is one with the two
/// swapped.
struct Strided {
  const float* data = nullptr;
  std::int64_t down = 0, across = 1;
  Strided transposed() const { return {data, across, down}; }
};

namespace detail {

// Tiles of 6 rows by 2 vectors stay in registers. What a tile is made of lies in strips, one element of the
// inner dimension after the other, and 256 of these at a time stay in the first cache.
struct Tiles {
  static constexpr std::int64_t rows = 6, widest = 32, depth = 256, rows_at_once = 96;
  static std::int64_t strips(std::int64_t n, std::int64_t strip) { return (n + strip - 1) / strip; }
};

// Strips of `strip` rows of `from` [n, depth], filled with zeros behind its end.
inline void pack(Strided from, std::int64_t n, std::int64_t depth, std::int64_t strip, Range strips,
                 float* packed) {
  for (std::int64_t s = strips.begin; s < strips.end; ++s) {
    float* to = packed + s * strip * depth;
    const std::int64_t begin = s * strip, count = std::min(strip, n - begin);
    const float* at = from.data + begin * from.down;
    for (std::int64_t d = 0; d < depth; ++d, to += strip) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = at[i * from.down + d * from.across];
      for (std::int64_t i = count; i < strip; ++i) to[i] = 0;
    }
  }
}

struct MultiplyLoop {
  // C of the tasks of a range: task t is some strips of A by one strip of B.
  template <int W>
  CONVOY_INLINE static void run(const float* a, const float* b, std::int64_t m, std::int64_t n,
                                std::int64_t k, float alpha, float beta, float* c, Range tasks) {
    constexpr std::int64_t wide = 2 * W;
    const std::int64_t blocks = Tiles::strips(m, Tiles::rows_at_once);
    for (std::int64_t t = tasks.begin; t < tasks.end; ++t) {
      const std::int64_t column = t / blocks * wide, first = t % blocks * Tiles::rows_at_once;
      const std::int64_t last = std::min(m, first + Tiles::rows_at_once);
      for (std::int64_t from = 0; from < k; from += Tiles::depth) {
        const std::int64_t depth = std::min(Tiles::depth, k - from);
        for (std::int64_t row = first; row < last; row += Tiles::rows)
          tile<W>(a + row * k + from * Tiles::rows, b + column * k + from * wide, depth, alpha,
                  from == 0 ? beta : 1.0f, c + row * n + column, n, std::min(Tiles::rows, m - row),
                  std::min(wide, n - column));
      }
    }
  }

  template <int W>
  CONVOY_INLINE static void tile(const float* a, const float* b, std::int64_t depth, float alpha, float beta,
                                 float* c, std::int64_t apart, std::int64_t rows, std::int64_t columns) {
    using V = simd::Vec<float, W>;
    constexpr int height = static_cast<int>(Tiles::rows);
    V sums[height][2] = {};
    for (std::int64_t d = 0; d < depth; ++d, a += height, b += 2 * W) {
      V left, right;
      simd::load(left, b);
      simd::load(right, b + W);
      CONVOY_UNROLL
      for (int i = 0; i < height; ++i) {
        sums[i][0] += a[i] * left;
        sums[i][1] += a[i] * right;
      }
    }
    if (rows == height && columns == 2 * W) {
      CONVOY_UNROLL
      for (int i = 0; i < height; ++i) {
        CONVOY_UNROLL
        for (int h = 0; h < 2; ++h) {
          float* const to = c + i * apart + h * W;
          V kept{};
          if (beta != 0) simd::load(kept, to);
          simd::store(to, beta * kept + alpha * sums[i][h]);
        }
      }
      return;
    }
    float edge[height][2 * W];
    CONVOY_UNROLL
    for (int i = 0; i < height; ++i) {
      simd::store(edge[i], sums[i][0]);
      simd::store(edge[i] + W, sums[i][1]);
    }
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        float& to = c[i * apart + j];
        to = (beta != 0 ? beta * to : 0.0f) + alpha * edge[i][j];
      }
  }
};

}  // namespace detail

/// How many floats `multiply` works in.
inline std::int64_t multiply_work(std::int64_t m, std::int64_t n, std::int64_t k) {
  using detail::Tiles;
  return (Tiles::strips(m, Tiles::rows) * Tiles::rows + Tiles::strips(n, Tiles::widest) * Tiles::widest) * k;
}

/// C = alpha A B + beta C for A [m, k], B [k, n] and C [m, n], which lies row after row apart from A, B and
/// `work`. With beta 0 what was in C does not matter. The bits depend on no number of threads.
inline void multiply(int threads, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Strided a,
                     Strided b, float beta, float* c, float* work) {
  using detail::Tiles;
  const std::int64_t wide = simd::isa() == simd::Isa::avx512 ? 32
                            : simd::isa() == simd::Isa::avx2 ? 16
                                                             : 8;  // as MultiplyLoop's
  float* const packed_a = work;
  float* const packed_b = work + Tiles::strips(m, Tiles::rows) * Tiles::rows * k;
  // Below this many multiplications waking a team costs more than they do.
  if (m * n * k < (1 << 16)) threads = 1;
  parallel(threads, [&](int thread, int team) {
    detail::pack(a, m, k, Tiles::rows, share(Tiles::strips(m, Tiles::rows), thread, team), packed_a);
    detail::pack(b.transposed(), n, k, wide, share(Tiles::strips(n, wide), thread, team), packed_b);
  });
  parallel(threads, [&](int thread, int team) {
    const std::int64_t tasks = Tiles::strips(n, wide) * Tiles::strips(m, Tiles::rows_at_once);
    simd::run<detail::MultiplyLoop>(static_cast<const float*>(packed_a), static_cast<const float*>(packed_b),
                                    m, n, k, alpha, beta, c, share(tasks, thread, team));
  });
}

}  // namespace convoy
