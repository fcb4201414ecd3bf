// Weights of linear layers in the blocked layout that oneDNN multiplies. oneDNN's own copy takes twice the
// time of this one for long rows, [768, 3072], and nine tenths of it for short ones, [3072, 768] (oneDNN 2.6,
// Zen 5).
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/kernel/small_product.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/parallel/elements.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// A division of a matrix into blocks of `lines` rows by `pairs` pairs of columns, one row of blocks after
/// the other. A block holds its pairs in order, and for each pair both columns of each row: oneDNN's format
/// AB<pairs>b<lines>a2b.
struct WeightBlocks {
  int lines = 0, pairs = 0;
  explicit operator bool() const { return lines > 0; }
  /// Whether the blocks divide such a matrix evenly.
  bool cuts(std::int64_t rows, std::int64_t columns) const {
    return rows % lines == 0 && columns % (2 * pairs) == 0;
  }
};

struct WeightBlocksLoop {
  /// The columns of a row of blocks that are rounded at a time; they stay in the L1 cache.
  static constexpr int columns_at_once = 64, most_lines = 64;

  /// Rows of blocks [begin, end).
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, WeightBlocks blocks,
                                std::int64_t columns, const float* from, bf16* to) {
    // Each float holds a pair of bf16 columns of a row and is only moved.
    alignas(64) float tile[most_lines][columns_at_once / 2];
    for (std::int64_t a = begin; a < end; ++a)
      for (std::int64_t first = 0; first < columns; first += columns_at_once) {
        const int here =
            static_cast<int>(columns - first < columns_at_once ? columns - first : columns_at_once);
        for (int line = 0; line < blocks.lines; ++line) {
          const float* const row = from + (a * blocks.lines + line) * columns + first;
          auto* const rounded = reinterpret_cast<bf16*>(tile[line]);
          for (int k = 0; k < here; k += W) {
            simd::Vec<float, W> v;
            simd::load(v, row + k);
            simd::Elements<bf16, W>::store(rounded + k, v);
          }
        }
        auto* const out = reinterpret_cast<float*>(to + (a * columns + first) * blocks.lines);
        const int pairs = here / 2, whole = pairs / W * W;
        for (int pair = 0; pair < whole; pair += W)
          for (int line = 0; line < blocks.lines; line += W) {
            simd::Vec<float, W> x[W];
            CONVOY_UNROLL
            for (int i = 0; i < W; ++i) simd::load(x[i], &tile[line + i][pair]);
            exchange<W, 1>(x, std::make_index_sequence<W>{});
            CONVOY_UNROLL
            for (int i = 0; i < W; ++i) simd::store(out + (pair + i) * blocks.lines + line, x[i]);
          }
        for (int pair = whole; pair < pairs; ++pair)
          for (int line = 0; line < blocks.lines; ++line)
            std::memcpy(out + pair * blocks.lines + line, &tile[line][pair], sizeof(float));
      }
  }
};

/// Copies a matrix [rows, columns] into blocks, which must divide it evenly.
inline void copy_into_blocks(const WeightBlocks& blocks, std::int64_t rows, std::int64_t columns,
                             const float* from, bf16* to, int threads) {
  if (rows * columns < loop_tuning.worth_a_team) threads = 1;
  parallel(threads, [&](int thread, int team) {
    const Range range = share(rows / blocks.lines, thread, team);
    simd::run<WeightBlocksLoop>(range.begin, range.end, blocks, columns, from, to);
  });
}

}  // namespace convoy::exec::host
