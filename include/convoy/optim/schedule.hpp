// Schedules: the learning rate as a function of the step.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>

namespace convoy::optim {

enum class Decay : unsigned char { none, linear, cosine, polynomial, steps, milestones };

/// All decays, in the order in which `--help` lists them.
inline constexpr std::array decays = {Decay::none,       Decay::linear, Decay::cosine,
                                      Decay::polynomial, Decay::steps,  Decay::milestones};

constexpr std::string_view name_of(Decay decay) {
  switch (decay) {
    case Decay::none:
      return "none";
    case Decay::linear:
      return "linear";
    case Decay::cosine:
      return "cosine";
    case Decay::polynomial:
      return "polynomial";
    case Decay::steps:
      return "steps";
    case Decay::milestones:
      return "milestones";
  }
  return "?";
}

/// The decay of this name; throws ConfigError for an unknown name.
inline Decay decay_of(std::string_view name) {
  for (const Decay decay : decays)
    if (name_of(decay) == name) return decay;
  fail<ConfigError>("schedule: there is no decay called ", name);
}

/// A learning-rate schedule, as a factor on the learning rate at each step: a linear warm-up from 1/warmup,
/// then a decay over the remaining steps. Steps are the trainer's optimizer steps, counted from 0. A field
/// that the decay does not use has no effect: milestones alone, without Decay::milestones, reduce nothing.
struct Schedule {
  std::int64_t warmup = 0;  ///< steps (Goyal et al., "Accurate, Large Minibatch SGD", 2017)
  Decay decay = Decay::none;
  std::int64_t total = 0;  ///< steps of the whole run, the warm-up included; needed by linear, cosine and
                           ///< polynomial
  float end = 0;           ///< the factor from step `total` on, for these three
  float power = 2;         ///< for Decay::polynomial: exponent of the remaining fraction; 1 is linear
  std::int64_t every = 0;  ///< steps between reductions, for Decay::steps, counted from the end of the
                           ///< warm-up
  std::vector<std::int64_t> milestones = {};  ///< the steps of the reductions, for Decay::milestones; counted
                                              ///< from 0, the warm-up included
  float gamma = 0.1f;                         ///< the factor of each reduction, for both
  bool scale_with_world = false;  ///< multiplies the rate by the world size (the linear scaling rule)

  static constexpr void fields(auto& self, auto&& field) {
    field("warmup", self.warmup);
    field("decay", self.decay);
    field("total", self.total);
    field("end", self.end);
    field("power", self.power);
    field("every", self.every);
    field("milestones", self.milestones);
    field("gamma", self.gamma);
    field("scale_with_world", self.scale_with_world);
  }

  /// A warm-up over a fraction `share` of the run, then linear decay to zero. BERT is trained with a tenth
  /// (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019).
  static Schedule warmed_up_linear(std::int64_t total, double share = 0.1) {
    return {.warmup = static_cast<std::int64_t>(share * static_cast<double>(total)),
            .decay = Decay::linear,
            .total = total};
  }

  /// The factor at `step`, counting from 0, for a world of `world` ranks.
  double factor(std::int64_t step, int world) const {
    double f = scale_with_world ? world : 1;
    if (step < warmup) return f * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const auto done = static_cast<double>(step - warmup);
    const auto rest = static_cast<double>(std::max<std::int64_t>(1, total - warmup));
    const double progress = std::min(1.0, done / rest), last = static_cast<double>(end);
    // From 1 at the end of the warm-up to `end`.
    const auto down = [&](double left) { return f * (last + (1 - last) * left); };
    const auto reduced = [&](std::int64_t times) {
      return f * std::pow(static_cast<double>(gamma), static_cast<double>(times));
    };
    switch (decay) {
      case Decay::none:
        return f;
      case Decay::linear:
        return down(1 - progress);
      case Decay::cosine:
        return down(0.5 * (1 + std::cos(3.14159265358979323846 * progress)));
      case Decay::polynomial:
        return down(std::pow(1 - progress, static_cast<double>(power)));
      case Decay::steps:
        return reduced(every > 0 ? (step - warmup) / every : 0);
      case Decay::milestones:
        return reduced(std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin());
    }
    return f;
  }

  /// Throws ConfigError for an invalid field.
  void check() const {
    if (warmup < 0) fail<ConfigError>("schedule: the warm-up of ", warmup, " steps is negative");
    const bool lasts = decay == Decay::linear || decay == Decay::cosine || decay == Decay::polynomial;
    if (lasts && total <= warmup)
      fail<ConfigError>("schedule: a decay needs a total of more steps than the warm-up of ", warmup,
                        ", not ", total);
    if (lasts && (!is_finite(end) || end < 0))
      fail<ConfigError>("schedule: the factor at the end must be a number of at least 0, not ", end);
    if (decay == Decay::polynomial && !(power > 0))
      fail<ConfigError>("schedule: a polynomial decay needs a positive power, not ", power);
    if (decay == Decay::steps && every <= 0)
      fail<ConfigError>("schedule: a decay in steps needs a positive interval, not ", every);
    if (decay == Decay::milestones && milestones.empty())
      fail<ConfigError>("schedule: a decay at milestones needs at least one of them");
    if ((decay == Decay::steps || decay == Decay::milestones) && !(is_finite(gamma) && gamma >= 0))
      fail<ConfigError>("schedule: the factor of each reduction must be 0 or more, not ", gamma);
    if (!std::is_sorted(milestones.begin(), milestones.end()))
      fail<ConfigError>("schedule: milestones must be in ascending order");
    if (decay == Decay::milestones && milestones.front() < 0)
      fail<ConfigError>("schedule: the milestone ", milestones.front(), " is negative");
  }
};

}  // namespace convoy::optim
