// The step of a batch norm's running statistics, which every Exec makes with its own statistics of a batch.
#pragma once

#include <convoy/core/finite.hpp>
#include <convoy/core/hd.hpp>

namespace convoy::exec {

/// Moves the running statistics of a channel toward those of `count` values: running += momentum (batch -
/// running). `variance` is the biased variance; its unbiased estimate moves the running variance. A single
/// value (one row of a 1x1 map) has no unbiased variance, so the running variance stays unchanged; PyTorch
/// refuses such a batch. Statistics that are not finite move nothing: a step with such values may be
/// skipped, and a later one could not move a running statistic away from NaN.
template <class T, class Wide>
CONVOY_HD constexpr void move_running(T momentum, Wide count, T mean, Wide variance, T& running_mean,
                                      T& running_variance) {
  const bool unbiased = count > 1;
  const T estimate = unbiased ? static_cast<T>(variance * count / (count - 1)) : running_variance;
  if (!is_finite(mean) || !is_finite(estimate)) return;
  running_mean += momentum * (mean - running_mean);
  if (unbiased) running_variance += momentum * (estimate - running_variance);
}

}  // namespace convoy::exec
