// LAMB: moves each tensor in the direction of Adam's step plus weight decay, by a length proportional to the
// norm of its parameters (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76
// minutes", 2020).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <convoy/optim/adam.hpp>

namespace convoy::optim {

/// Adam with a rate for each tensor, in proportion to its norm over that of its direction.
struct Lamb {
  struct Options {
    using Rule = Lamb;
    float lr = 1e-3f;
    float beta1 = 0.9f;
    float beta2 = 0.999f;
    float epsilon = 1e-6f;
    float weight_decay = 1e-2f;
    bool scale_all = true;  ///< also scale tensors without weight decay; if false, their trust ratio is 1, as
                            ///< is common for biases and normalization
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("beta1", self.beta1);
      field("beta2", self.beta2);
      field("epsilon", self.epsilon);
      field("weight_decay", self.weight_decay);
      field("scale_all", self.scale_all);
    }
  };
  struct Constants {
    Adam::Constants adam;  ///< without decay, at a rate of 1
    float decay, rate;
  };
  static constexpr std::string_view name = "lamb";
  static constexpr int slots = Adam::slots;
  static constexpr std::array<std::string_view, 2> slot_names = Adam::slot_names;
  static constexpr bool per_tensor_norms = true;

  static void check(const Options& o) { detail::check_moments(name, o); }

  /// The rate is lr |p| / |d|; lr if a norm is 0 or the tensor is not scaled.
  CONVOY_HD static Constants at(const Options& o, std::int64_t step, float lr, const Norms& norms) {
    const bool scales = norms.parameter > 0 && norms.gradient > 0 && (o.scale_all || o.weight_decay > 0);
    return {Adam::at({1.0f, o.beta1, o.beta2, o.epsilon, 0.0f}, step, 1.0f), o.weight_decay,
            scales ? lr * norms.parameter / norms.gradient : lr};
  }

  /// d = m^ / (sqrt(v^) + epsilon) + decay p, with Adam's moments.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void direction(V& d, const V& p, const V& g,
                                                                        V (&state)[2], const Constants& k) {
    V moved{};  // Adam's step from 0
    Adam::update(moved, g, state, k.adam);
    d = k.decay * p - moved;
  }

  /// p -= rate d.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[2],
                                                                     const Constants& k) {
    V d{};
    direction(d, p, g, state, k);
    p = p - k.rate * d;
  }
};

}  // namespace convoy::optim
