// Position embeddings: one table added to each row of a batch; its gradient is the sum over the rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

/// y[r] = x[r] + table, for rows of `row` elements.
inline void add_to_rows(int threads, std::int64_t rows, std::int64_t row, const float* x, const float* table,
                        float* y) {
  parallel(rows * row < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(row, thread, team, 16);
    for (std::int64_t r = 0; r < rows; ++r)
      simd::run<AddLoop>(range.begin, range.end, x + r * row, table, y + r * row, false);
  });
}

/// d_table (+)= the sum of dy[r] + second[r], in the order of the rows. Threads share the elements, in pieces
/// whose sums stay in cache.
inline void sum_rows(int threads, std::int64_t rows, std::int64_t row, const float* dy, const float* second,
                     float* d_table, bool accumulate) {
  constexpr std::int64_t piece = 2048;
  const float* const none = nullptr;
  parallel(rows * row < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(row, thread, team, 16);
    for (std::int64_t begin = range.begin; begin < range.end; begin += piece)
      for (std::int64_t r = 0; r < rows; ++r)
        simd::run<PassLoop>(begin, std::min(begin + piece, range.end), dy + r * row,
                            second == nullptr ? none : second + r * row, none, d_table, accumulate || r > 0);
  });
}

}  // namespace convoy::exec::host
