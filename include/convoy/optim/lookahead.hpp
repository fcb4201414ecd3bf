// Lookahead: a rule updates fast weights, and slow weights follow them every few steps (Zhang, Lucas, Hinton
// and Ba, "Lookahead Optimizer: k steps forward, 1 step back", 2019).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <convoy/core/error.hpp>
#include <convoy/optim/decorator.hpp>

namespace convoy::optim {

/// Updates the parameters by rule R and resets them to the slow weights every few steps. The slow weights are
/// the state "slow", which starts as the parameters before the first step. The slow weights of frozen
/// parameters and of dead taps that do not decay stay 0. A training that resumes must therefore freeze and
/// decay the same parameters: one that is no longer frozen, and dead taps that decay only now, would be
/// pulled toward 0.
template <class R>
struct Lookahead : detail::Decorator<R> {
  using Base = detail::Decorator<R>;
  static constexpr int slots = Base::slots;

  struct Options {
    using Rule = Lookahead;
    typename R::Options rule = {};
    int every = 5;      ///< steps between synchronizations with the slow weights (the paper's k)
    float pull = 0.5f;  ///< how far the slow weights move toward the parameters (the paper's alpha)
    static constexpr void fields(auto& self, auto&& field) {
      field("rule", self.rule);
      field("every", self.every);
      field("pull", self.pull);
    }
  };
  struct Constants {
    typename R::Constants rule;
    float pull;
    bool begins, meets;
  };
  static constexpr auto characters = detail::bracketed<R::name.size() + 11>("lookahead", R::name);
  static constexpr std::string_view name{characters.data(), characters.size()};
  static constexpr auto slot_names = Base::names_with("slow");

  static void check(const Options& o) {
    Base::check_rule(o.rule);
    if (o.every < 1) fail<ConfigError>("optimizer ", name, ": every must be at least 1, not ", o.every);
    if (!(o.pull >= 0 && o.pull <= 1))
      fail<ConfigError>("optimizer ", name, ": pull must be from 0 to 1, not ", o.pull);
  }

  /// `norms` is passed if R uses norms.
  template <class... N>
  CONVOY_HD static Constants at(const Options& o, std::int64_t step, float lr, const N&... norms) {
    return {R::at(o.rule, step, lr, norms...), o.pull, step == 1, step % o.every == 0};
  }

  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void direction(
      V& d, const V& p, const V& g, V (&state)[slots], const Constants& k) requires(detail::HasDirection<R>) {
    Base::inner_direction(d, p, g, state, k.rule);
  }

  /// R's step; at a synchronization, then slow += pull (p - slow) and p = slow.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[slots],
                                                                     const Constants& k) {
    if (k.begins) state[Base::own] = p;
    Base::inner_update(p, g, state, k.rule);
    if (!k.meets) return;
    state[Base::own] = state[Base::own] + k.pull * (p - state[Base::own]);
    p = state[Base::own];
  }
};

}  // namespace convoy::optim
