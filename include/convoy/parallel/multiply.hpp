// multiply: matrix products in f32 by a team of threads, for code without an Exec.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/core/range.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy {

/// A matrix in memory: element (i, j) is data[i * down + j * across]. The transpose has the two strides
/// swapped.
struct Strided {
  const float* data = nullptr;
  std::int64_t down = 0, across = 1;
  Strided transposed() const { return {data, across, down}; }
};

namespace detail {

// Tiles of 6 rows by 2 vectors stay in registers. A tile's operands are packed in strips, ordered by the
// inner dimension; the operands of 256 elements of that dimension at a time stay in the first-level cache.
struct Tiles {
  static constexpr std::int64_t rows = 6, widest = 32, depth = 256, rows_at_once = 96;
  static std::int64_t strips(std::int64_t n, std::int64_t strip) { return (n + strip - 1) / strip; }
};

// Packs strips of `strip` rows of `from` [n, depth], with zeros behind its end.
template <std::int64_t strip>
CONVOY_INLINE void pack(Strided from, std::int64_t n, std::int64_t depth, Range strips, float* packed) {
  if (depth == 0) return;            // an empty matrix may have no memory
  constexpr std::int64_t line = 16;  // floats of a cache line, which is read at once if a row is contiguous
  for (std::int64_t s = strips.begin; s < strips.end; ++s) {
    float* const to = packed + s * strip * depth;
    const std::int64_t begin = s * strip, count = std::min(strip, n - begin);
    const float* const at = from.data + begin * from.down;
    if (count == strip && from.down == 1) {
      for (std::int64_t d = 0; d < depth; ++d) std::copy_n(at + d * from.across, strip, to + d * strip);
      continue;
    }
    if (count < strip) std::fill_n(to, strip * depth, 0.0f);
    for (std::int64_t first = 0; first < depth; first += line) {
      const std::int64_t last = std::min(depth, first + line);
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t d = first; d < last; ++d) to[d * strip + i] = at[i * from.down + d * from.across];
    }
  }
}

struct PackLoop {
  // Packs the strips of A and of B' that are a thread's share.
  template <int W>
  CONVOY_INLINE static void run(Strided a, std::int64_t m, float* packed_a, Strided b, std::int64_t n,
                                float* packed_b, std::int64_t k, int thread, int team) {
    pack<Tiles::rows>(a, m, k, share(Tiles::strips(m, Tiles::rows), thread, team), packed_a);
    pack<2 * W>(b.transposed(), n, k, share(Tiles::strips(n, 2 * W), thread, team), packed_b);
  }
};

struct MultiplyLoop {
  // Computes C for every `team`-th task from `thread` on; a task is some strips of A by one strip of B. If C
  // is symmetric, tiles that lie entirely above its diagonal are left out.
  template <int W>
  CONVOY_INLINE static void run(const float* a, const float* b, std::int64_t m, std::int64_t n,
                                std::int64_t k, float alpha, float beta, float* c, bool symmetric, int thread,
                                int team) {
    constexpr std::int64_t wide = 2 * W;
    const std::int64_t blocks = Tiles::strips(m, Tiles::rows_at_once);
    for (std::int64_t t = thread; t < Tiles::strips(n, wide) * blocks; t += team) {
      const std::int64_t column = t / blocks * wide, first = t % blocks * Tiles::rows_at_once;
      const std::int64_t last = std::min(m, first + Tiles::rows_at_once);
      // If k is 0, this loop runs once, for beta C.
      for (std::int64_t from = 0; from == 0 || from < k; from += Tiles::depth) {
        const std::int64_t depth = std::min(Tiles::depth, k - from);
        for (std::int64_t row = first; row < last; row += Tiles::rows)
          if (!symmetric || row + Tiles::rows > column)
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

/// The workspace of `multiply`, in floats.
inline std::int64_t multiply_work(std::int64_t m, std::int64_t n, std::int64_t k) {
  using detail::Tiles;
  return (Tiles::strips(m, Tiles::rows) * Tiles::rows + Tiles::strips(n, Tiles::widest) * Tiles::widest) * k;
}

/// Whether a product is known to be symmetric, as A A' is; if so, only one half of it is computed.
enum class Symmetry : unsigned char { none, symmetric };

/// C = alpha A B + beta C for A [m, k], B [k, n] and row-major C [m, n], which must not overlap A, B or
/// `work` (`multiply_work` floats). With beta 0 the previous values of C do not matter; for a symmetric
/// product they must be symmetric, too. The bits do not depend on the number of threads, but may depend on
/// `symmetry`: compilers may fuse another product with an addition at the edges of C than inside.
inline void multiply(int threads, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Strided a,
                     Strided b, float beta, float* c, float* work, Symmetry symmetry = Symmetry::none) {
  using detail::Tiles;
  float* const packed_a = work;
  float* const packed_b = work + Tiles::strips(m, Tiles::rows) * Tiles::rows * k;
  const bool symmetric = symmetry == Symmetry::symmetric;
  // Below this many multiplications, waking a team costs more than the product.
  if (m * n * k < (1 << 16)) threads = 1;
  parallel(threads, [&](int thread, int team) {
    simd::run<detail::PackLoop>(a, m, packed_a, b, n, packed_b, k, thread, team);
  });
  parallel(threads, [&](int thread, int team) {
    simd::run<detail::MultiplyLoop>(static_cast<const float*>(packed_a), static_cast<const float*>(packed_b),
                                    m, n, k, alpha, beta, c, symmetric, thread, team);
  });
  if (!symmetric) return;
  parallel(threads, [&](int thread, int team) {
    for (std::int64_t i = thread; i < m; i += team)
      for (std::int64_t j = i + 1; j < n; ++j) c[i * n + j] = c[j * n + i];
  });
}

}  // namespace convoy
