// Schedules: the learning rate as a function of the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include <convoy/core/error.hpp>

namespace convoy::optim {

enum class Decay : unsigned char { none, linear, cosine, steps };

constexpr std::string_view name_of(Decay decay) {
  switch (decay) {
    case Decay::none:
      return "none";
    case Decay::linear:
      return "linear";
    case Decay::cosine:
      return "cosine";
    case Decay::steps:
      return "steps";
  }
  return "?";
}

/// The factor on the learning rate at each step: a linear warm-up from 1/warmup, then a decay over the
/// remaining steps.
struct Schedule {
  std::int64_t warmup = 0;  ///< steps (Goyal et al., "Accurate, Large Minibatch SGD", 2017)
  Decay decay = Decay::none;
  std::int64_t total = 0;         ///< steps of the whole run; needed by linear and cosine, which end at zero
  std::int64_t every = 0;         ///< steps between reductions, for Decay::steps
  float gamma = 0.1f;             ///< the reduction, for Decay::steps
  bool scale_with_world = false;  ///< multiplies the rate by the world size (the linear scaling rule)

  static constexpr void fields(auto& self, auto&& field) {
    field("warmup", self.warmup);
    field("decay", self.decay);
    field("total", self.total);
    field("every", self.every);
    field("gamma", self.gamma);
    field("scale_with_world", self.scale_with_world);
  }

  /// The factor at `step`, counting from 0, for a world of `world` ranks.
  double factor(std::int64_t step, int world) const {
    double f = scale_with_world ? world : 1;
    if (step < warmup) return f * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const auto done = static_cast<double>(step - warmup);
    const auto rest = static_cast<double>(std::max<std::int64_t>(1, total - warmup));
    const double progress = std::min(1.0, done / rest);
    switch (decay) {
      case Decay::none:
        return f;
      case Decay::linear:
        return f * (1 - progress);
      case Decay::cosine:
        return f * 0.5 * (1 + std::cos(3.14159265358979323846 * progress));
      case Decay::steps:
        return f * std::pow(static_cast<double>(gamma),
                            every > 0 ? static_cast<double>((step - warmup) / every) : 0);
    }
    return f;
  }

  /// Throws ConfigError when a field makes no sense.
  void check() const {
    if (warmup < 0) fail<ConfigError>("schedule: the warm-up of ", warmup, " steps is negative");
    if ((decay == Decay::linear || decay == Decay::cosine) && total <= warmup)
      fail<ConfigError>("schedule: a decay needs a total of more steps than the warm-up of ", warmup,
                        ", not ", total);
    if (decay == Decay::steps && every <= 0)
      fail<ConfigError>("schedule: a decay in steps needs a positive interval, not ", every);
  }
};

}  // namespace convoy::optim
