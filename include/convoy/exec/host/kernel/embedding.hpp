// Embeddings: rows gathered from a weight [entries, features], and gradients scattered to these rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

/// y[i] = weight[ids[i]].
inline void gather_rows(int threads, std::int64_t count, std::int64_t features, const i32* ids,
                        const float* weight, float* y) {
  parallel(count * features < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(count, thread, team);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      std::copy_n(weight + ids[i] * features, features, y + i * features);
  });
}

/// d_weight[ids[i]] += dy[i] + second[i] for features [begin, end).
struct ScatterLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, std::int64_t count,
                                std::int64_t features, const i32* ids, const float* dy, const float* second,
                                float* d_weight) {
    for (std::int64_t id = 0; id < count; ++id) {
      const float* from = dy + id * features;
      const float* other_from = second == nullptr ? nullptr : second + id * features;
      float* to = d_weight + ids[id] * features;
      CONVOY_FOR_VECTORS(W, begin, end, {
        V g, other;
        simd::load(g, to + i);
        simd::load(other, from + i);
        g += other;
        if (other_from != nullptr) {
          simd::load(other, other_from + i);
          g += other;
        }
        simd::store(to + i, g);
      })
    }
  }
};

/// Adds the gradient, after setting it to zero if `assign`. Threads share the features, so that the order of
/// each sum is fixed.
inline void scatter_rows(int threads, std::int64_t count, std::int64_t entries, std::int64_t features,
                         const i32* ids, const float* dy, const float* second, float* d_weight, bool assign) {
  if (assign)
    parallel(entries * features < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
      const Range range = share(entries * features, thread, team, 1024);
      std::fill(d_weight + range.begin, d_weight + range.end, 0.0f);
    });
  parallel(count * features < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(features, thread, team, 16);
    simd::run<ScatterLoop>(range.begin, range.end, count, features, ids, dy, second, d_weight);
  });
}

}  // namespace convoy::exec::host
