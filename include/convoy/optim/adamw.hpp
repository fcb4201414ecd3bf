// AdamW: Adam with a weight decay that does not pass through the moments (Loshchilov and Hutter, "Decoupled
// Weight Decay Regularization", 2019), as torch.optim.AdamW computes it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <convoy/optim/adam.hpp>

namespace convoy::optim {

/// Adam with decoupled weight decay, with PyTorch's defaults.
struct AdamW {
  struct Options {
    using Rule = AdamW;
    float lr = 1e-3f;
    float beta1 = 0.9f;
    float beta2 = 0.999f;
    float epsilon = 1e-8f;
    float weight_decay = 1e-2f;  ///< a step subtracts lr * weight_decay times the parameter
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("beta1", self.beta1);
      field("beta2", self.beta2);
      field("epsilon", self.epsilon);
      field("weight_decay", self.weight_decay);
    }
  };
  struct Constants {
    Adam::Constants adam;  ///< without decay
    float decay;
  };
  static constexpr std::string_view name = "adamw";
  static constexpr int slots = Adam::slots;
  static constexpr std::array<std::string_view, 2> slot_names = Adam::slot_names;

  static void check(const Options& o) { detail::check_moments(name, o); }

  CONVOY_HD static Constants at(const Options& o, std::int64_t step, float lr) {
    return {Adam::at({lr, o.beta1, o.beta2, o.epsilon, 0.0f}, step, lr), lr * o.weight_decay};
  }

  /// p -= lr decay p, then Adam's step.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[2],
                                                                     const Constants& k) {
    // Multiplying by 1 - lr decay instead would round that factor and lose the last digits of a small decay.
    p = p - k.decay * p;
    Adam::update(p, g, state, k.adam);
  }
};

}  // namespace convoy::optim
