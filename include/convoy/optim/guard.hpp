// Guard: what is decided about the whole gradient, or measured of it, before anything is updated from it.
#pragma once

#include <cmath>
#include <cstdint>

#include <convoy/core/error.hpp>
#include <convoy/core/hd.hpp>

namespace convoy::optim {

struct Guard {
  float max_norm = 0;  ///< of the gradient over all parameters (Pascanu et al., "On the difficulty of
                       ///< training recurrent neural networks", 2013); larger ones are scaled down; 0: any
  bool skip_not_finite = false;  ///< a step whose gradient has an infinity or a NaN changes nothing
  bool measure = false;  ///< the norm is made known (train::StepReport::gradient_norm) though nothing else
                         ///< asks for it: a pass over the gradient, and no update before all of it is there

  static constexpr void fields(auto& self, auto&& field) {
    field("max_norm", self.max_norm);
    field("skip_not_finite", self.skip_not_finite);
    field("measure", self.measure);
  }

  /// Whether there is anything to decide.
  constexpr bool decides() const { return max_norm > 0 || skip_not_finite || measure; }

  /// Throws ConfigError when a field makes no sense.
  void check() const {
    if (!(max_norm >= 0)) fail<ConfigError>("clipping: the largest norm ", max_norm, " is negative");
  }
};

/// What was decided, in memory of the space. The updates of a step read it there.
struct Verdict {
  double norm = 0;           ///< of the gradient before clipping
  std::int64_t skipped = 0;  ///< steps so far that changed nothing
  float factor = 1;          ///< on every gradient
  std::int32_t apply = 1;    ///< 0: this step changes nothing
};

/// Whether a step with this verdict, or without any, is applied, with the factor on its gradients if so.
CONVOY_HD inline bool applies(const Verdict* verdict, float& scale) {
  if (verdict == nullptr) return true;
  scale *= verdict->factor;
  return verdict->apply != 0;
}

/// The verdict on a gradient whose elements' squares sum to `squares`; clips as
/// torch.nn.utils.clip_grad_norm_.
CONVOY_HD inline void judge(const Guard& guard, double squares, Verdict& verdict) {
  // The square of an f32 and any sum of them is finite in f64, so the sum is finite if all elements are.
  const bool finite = std::isfinite(squares);
  verdict.norm = std::sqrt(squares);
  verdict.apply = finite || !guard.skip_not_finite ? 1 : 0;
  verdict.skipped += 1 - verdict.apply;
  verdict.factor = 1;
  if (guard.max_norm > 0) {
    const double factor = static_cast<double>(guard.max_norm) / (verdict.norm + 1e-6);
    verdict.factor = factor > 1 ? 1.0f : static_cast<float>(factor);  // one that is NaN stays so
  }
}

}  // namespace convoy::optim
