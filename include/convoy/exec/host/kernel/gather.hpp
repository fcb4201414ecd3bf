// Gathers: positions of each row's sequence [positions, features] by index, and gradients scattered to these
// positions.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

struct GatherTask {
  std::int64_t rows = 0, positions = 0, features = 0;
  std::int64_t named = 0;        ///< positions gathered from each row
  const i32* numbers = nullptr;  ///< [rows, named], each in [0, positions)
};

/// y[r, i] = x[r, numbers[r, i]].
inline void gather_positions(const GatherTask& t, const float* x, float* y, int threads) {
  const std::int64_t count = t.rows * t.named;
  parallel(count * t.features < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(count, thread, team);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      std::copy_n(x + (i / t.named * t.positions + t.numbers[i]) * t.features, t.features,
                  y + i * t.features);
  });
}

/// dx[r, numbers[r, i]] += dy[r, i] + second[r, i] in the order of i, after setting dx to zero unless it
/// accumulates. Each row is handled by one thread.
inline void scatter_positions(const GatherTask& t, const float* dy, const float* second, float* dx,
                              bool accumulate, int threads) {
  const float* const none = nullptr;
  const std::int64_t row = t.positions * t.features;
  parallel(t.rows * row < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(t.rows, thread, team);
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      if (!accumulate) std::fill_n(dx + r * row, row, 0.0f);
      for (std::int64_t i = r * t.named; i < (r + 1) * t.named; ++i)
        simd::run<PassLoop>(std::int64_t{0}, t.features, dy + i * t.features,
                            second == nullptr ? none : second + i * t.features, none,
                            dx + r * row + t.numbers[i] * t.features, true);
    }
  });
}

}  // namespace convoy::exec::host
