// Means over the first positions of each row's sequence.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

struct MeanTask {
  std::int64_t rows = 0, positions = 0, features = 0;
  const i32* lengths = nullptr;  ///< of each row; null: all positions

  std::int64_t length(std::int64_t r) const { return lengths == nullptr ? positions : lengths[r]; }
};

/// y = the mean over `length` positions of x, for one row.
struct MeanLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, std::int64_t length,
                                std::int64_t features, const float* x, float* y) {
    const float part = 1.0f / static_cast<float>(length);
    CONVOY_FOR_VECTORS(W, begin, end, {
      V sum{};
      V at;
      for (std::int64_t p = 0; p < length; ++p) {
        simd::load(at, x + p * features + i);
        sum += at;
      }
      sum *= part;
      simd::store(y + i, sum);
    })
  }
};

/// dx (+)= (dy + second) / length at one position.
struct MeanBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, std::int64_t length, const float* dy,
                                const float* second, float* dx, bool accumulate) {
    const float part = 1.0f / static_cast<float>(length);
    CONVOY_FOR_VECTORS(W, begin, end, {
      V g;
      V other;
      simd::load(g, dy + i);
      if (second != nullptr) {
        simd::load(other, second + i);
        g += other;
      }
      g *= part;
      if (accumulate) {
        simd::load(other, dx + i);
        g += other;
      }
      simd::store(dx + i, g);
    })
  }
};

inline void mean_forward(const MeanTask& t, const float* x, float* y, int threads) {
  const std::int64_t row = t.positions * t.features;
  parallel(t.rows * row < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(t.rows, thread, team);
    for (std::int64_t r = range.begin; r < range.end; ++r)
      simd::run<MeanLoop>(std::int64_t{0}, t.features, t.length(r), t.features, x + r * row,
                          y + r * t.features);
  });
}

/// Gradients past the length of a row are zero.
inline void mean_backward(const MeanTask& t, const float* dy, const float* second, float* dx, bool accumulate,
                          int threads) {
  const std::int64_t row = t.positions * t.features;
  parallel(t.rows * row < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(t.rows, thread, team);
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      const std::int64_t length = t.length(r);
      for (std::int64_t p = 0; p < length; ++p)
        simd::run<MeanBackwardLoop>(std::int64_t{0}, t.features, length, dy + r * t.features,
                                    second == nullptr ? second : second + r * t.features,
                                    dx + r * row + p * t.features, accumulate);
      if (!accumulate)
        std::fill_n(dx + r * row + length * t.features, (t.positions - length) * t.features, 0.0f);
    }
  });
}

}  // namespace convoy::exec::host
