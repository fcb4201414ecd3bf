// Guard: checks of the whole gradient before any update: clipping, skipping a step, measuring the norm.
#pragma once

#include <cmath>
#include <cstdint>

#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
#include <convoy/core/hd.hpp>

namespace convoy::optim {

/// What is done with the gradient of a step, summed over micro-steps and ranks, before the update. Exchanges
/// in which no rank has the whole gradient, such as asynchronous servers, refuse a guard (ConfigError).
struct Guard {
  float max_norm = 0;  ///< clips the norm of the gradient over all parameters (Pascanu et al., "On the
                       ///< difficulty of training recurrent neural networks", 2013); 0: no clipping
  bool skip_not_finite = false;  ///< skips a step whose gradient has an infinity or a NaN. Without it, a loss
                                 ///< that is not finite ends the training (ExecError) after its update
  bool measure = false;  ///< reports the norm (train::StepReport::gradient_norm) even if nothing else needs
                         ///< it. Costs a pass over the gradient, and no update starts before the whole
                         ///< gradient has arrived

  static constexpr void fields(auto& self, auto&& field) {
    field("max_norm", self.max_norm);
    field("skip_not_finite", self.skip_not_finite);
    field("measure", self.measure);
  }

  /// Whether the guard needs the whole gradient.
  constexpr bool decides() const { return max_norm > 0 || skip_not_finite || measure; }

  /// Throws ConfigError for an invalid field.
  void check() const {
    if (is_nan(max_norm) || max_norm < 0)
      fail<ConfigError>("clipping: the largest norm must be a number of at least 0, not ", max_norm);
  }
};

/// The decision on a step, in memory of the space, where the step's updates read it.
struct Verdict {
  double norm = 0;           ///< of the gradient before clipping
  std::int64_t skipped = 0;  ///< number of skipped steps so far
  float factor = 1;          ///< for every gradient
  std::int32_t apply = 1;    ///< 0: this step is skipped
};

/// Whether a step is applied; multiplies `scale` by the verdict's factor. Without a verdict (null), a step is
/// applied as it is.
CONVOY_HD inline bool applies(const Verdict* verdict, float& scale) {
  if (verdict == nullptr) return true;
  scale *= verdict->factor;
  return verdict->apply != 0;
}

/// The verdict on a gradient whose elements' squares sum to `squares`; clips as
/// torch.nn.utils.clip_grad_norm_.
CONVOY_HD inline void judge(const Guard& guard, double squares, Verdict& verdict) {
  // The square of an f32 and any sum of them is finite in f64, so the sum is finite if all elements are.
  const bool finite = is_finite(squares);
  verdict.norm = std::sqrt(squares);
  verdict.apply = finite || !guard.skip_not_finite ? 1 : 0;
  verdict.skipped += 1 - verdict.apply;
  verdict.factor = 1;
  if (guard.max_norm > 0) {
    const double factor = static_cast<double>(guard.max_norm) / (verdict.norm + 1e-6);
    verdict.factor = factor > 1 ? 1.0f : static_cast<float>(factor);  // NaN stays NaN
  }
}

}  // namespace convoy::optim
