// Ema: a rule that also keeps a moving average of the parameters (Polyak and Juditsky, "Acceleration of
// Stochastic Approximation by Averaging", 1992), as torch.optim.swa_utils.AveragedModel does with
// get_ema_avg_fn.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <convoy/core/error.hpp>
#include <convoy/optim/decorator.hpp>

namespace convoy::optim {

/// Updates parameters exactly as rule R does, and keeps an exponential moving average of them. Training,
/// `evaluate` and `save_weights` use the parameters, except within train::with_averages. The averages are
/// state: `visit_state` visits them as `optimizer.ema.<name>`, and checkpoints keep them. The average of a
/// parameter is its state "ema", which starts as the parameters after the first step. Frozen parameters and
/// dead taps that do not decay are never updated: they equal their average, and their state stays 0. A
/// training that resumes must therefore freeze the same parameters: the average of one that is no longer
/// frozen would start from 0.
template <class R>
struct Ema : detail::Decorator<R> {
  using Base = detail::Decorator<R>;
  static constexpr int slots = Base::slots;

  struct Options {
    using Rule = Ema;
    typename R::Options rule = {};
    float keep = 0.999f;  ///< the weight of the previous average in a step
    static constexpr void fields(auto& self, auto&& field) {
      field("rule", self.rule);
      field("keep", self.keep);
    }
  };
  struct Constants {
    typename R::Constants rule;
    float take;
  };
  static constexpr auto characters = detail::bracketed<R::name.size() + 5>("ema", R::name);
  static constexpr std::string_view name{characters.data(), characters.size()};
  static constexpr auto slot_names = Base::names_with("ema");

  static void check(const Options& o) {
    Base::check_rule(o.rule);
    if (!(o.keep >= 0 && o.keep <= 1))
      fail<ConfigError>("optimizer ", name, ": keep must be from 0 to 1, not ", o.keep);
  }

  /// `norms` is passed if R uses norms.
  template <class... N>
  CONVOY_HD static Constants at(const Options& o, std::int64_t step, float lr, const N&... norms) {
    return {R::at(o.rule, step, lr, norms...), step == 1 ? 1.0f : 1 - o.keep};
  }

  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void direction(
      V& d, const V& p, const V& g, V (&state)[slots], const Constants& k) requires(detail::HasDirection<R>) {
    Base::inner_direction(d, p, g, state, k.rule);
  }

  /// R's step, then average += (1 - keep) (p - average).
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[slots],
                                                                     const Constants& k) {
    Base::inner_update(p, g, state, k.rule);
    state[Base::own] = state[Base::own] + k.take * (p - state[Base::own]);
  }
};

}  // namespace convoy::optim
