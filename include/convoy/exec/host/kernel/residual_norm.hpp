// Layer normalization of a sum with optional dropout of one summand: each vector is summed and normalized
// while it is in cache, and so is its gradient.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/host/kernel/dropout.hpp>
#include <convoy/exec/host/kernel/layer_norm.hpp>

namespace convoy::exec::host {

/// A layer norm of x = addend + branch, with dropout of the branch if the task `drops`. In backward the
/// gradient of x overwrites dy: `dx` is `dy`, or null if it is not wanted.
struct ResidualNormTask : LayerNormTask {
  bool drops = false;
  Draws draws;
  DropoutRule rule{0};
  std::int64_t row_vectors = 1;  ///< vectors of a row of the batch
  const float* branch = nullptr;
  const float* addend = nullptr;
  float* sum = nullptr;       ///< x, written; may be y if no backward follows
  float* d_branch = nullptr;  ///< null: not wanted
  bool accumulate_branch = false;
  float* d_addend = nullptr;  ///< null: not wanted, or shared with dx
  bool accumulate_addend = false;
};

/// y = addend + from, with dropout of `from` if the task drops, for vector `v`; the pointers are at its first
/// element. `addend` may be null. The values written are added to `total`.
template <int W, class Sum>
CONVOY_INLINE void drop_vector(const ResidualNormTask& t, std::int64_t v, const float* from,
                               const float* addend, float* y, Sum& total) {
  if (!t.drops) {
    CONVOY_FOR_VECTORS(W, 0, t.features, {
      V sum, other;
      simd::load(sum, from + i);
      if (addend != nullptr) {
        simd::load(other, addend + i);
        sum += other;
      }
      simd::store(y + i, sum);
      total.add(sum);
    })
    return;
  }
  alignas(64) std::int32_t numbers[Draws::chunk];
  const std::int64_t row = v / t.row_vectors, begin = v % t.row_vectors * t.features;
  for (std::int64_t at = begin; at < begin + t.features;) {
    const std::int64_t chunk = at / Draws::chunk;
    const std::int64_t end = std::min((chunk + 1) * Draws::chunk, begin + t.features), i = at - begin;
    draw_chunk<W>(t.draws, t.draws.position + static_cast<std::uint64_t>(row), chunk, numbers);
    drop_part<W>(t.rule, numbers + at % Draws::chunk, end - at, from + i, nullptr,
                 addend == nullptr ? nullptr : addend + i, y + i, total);
    at = end;
  }
}

/// Vectors [begin, end).
struct ResidualNormLoop {
  template <int W>
  CONVOY_INLINE static void run(const ResidualNormTask* task, std::int64_t begin, std::int64_t end) {
    const ResidualNormTask t = *task;
    for (std::int64_t v = begin; v < end; ++v) {
      const std::int64_t at = v * t.features;
      Total<W> total;
      drop_vector<W>(t, v, t.branch + at, t.addend + at, t.sum + at, total);
      normalize_vector<W>(t, v, total.sum());
    }
  }
};
struct ResidualNormBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(const ResidualNormTask* task, std::int64_t begin, std::int64_t end,
                                float* partial) {
    const ResidualNormTask t = *task;
    for (std::int64_t v = begin; v < end; ++v) {
      normalize_vector_backward<W>(t, v, partial);
      const std::int64_t at = v * t.features;
      if (t.d_addend != nullptr)
        PassLoop::run<W>(at, at + t.features, t.dx, nullptr, nullptr, t.d_addend, t.accumulate_addend);
      Ignored ignored;
      if (t.d_branch != nullptr)
        drop_vector<W>(t, v, t.dx + at, t.accumulate_branch ? t.d_branch + at : nullptr, t.d_branch + at,
                       ignored);
    }
  }
};

}  // namespace convoy::exec::host
