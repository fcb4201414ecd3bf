// Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015) with bias correction and L2 weight
// decay, as torch.optim.Adam computes it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include <convoy/core/error.hpp>
#include <convoy/optim/rule.hpp>

namespace convoy::optim {

namespace detail {

// For every rule with Adam's moments. An epsilon of 0 would divide 0 by 0 in parameters without gradients and
// in the gaps between tensors.
template <class O>
void check_moments(std::string_view name, const O& o) {
  if (!(o.beta1 >= 0 && o.beta1 < 1))
    fail<ConfigError>("optimizer ", name, ": beta1 must be from 0 to less than 1, not ", o.beta1);
  if (!(o.beta2 >= 0 && o.beta2 < 1))
    fail<ConfigError>("optimizer ", name, ": beta2 must be from 0 to less than 1, not ", o.beta2);
  if (!(o.epsilon > 0)) fail<ConfigError>("optimizer ", name, ": epsilon must be positive, not ", o.epsilon);
}

}  // namespace detail

/// Adam, with PyTorch's defaults. `weight_decay` is added to the gradient (L2); AdamW decouples it.
struct Adam {
  struct Options {
    using Rule = Adam;
    float lr = 1e-3f;
    float beta1 = 0.9f;
    float beta2 = 0.999f;
    float epsilon = 1e-8f;
    float weight_decay = 0;
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("beta1", self.beta1);
      field("beta2", self.beta2);
      field("epsilon", self.epsilon);
      field("weight_decay", self.weight_decay);
    }
  };
  struct Constants {
    float rate, keep1, take1, keep2, take2, epsilon, decay, correction2;
  };
  static constexpr std::string_view name = "adam";
  static constexpr int slots = 2;
  static constexpr std::array<std::string_view, 2> slot_names = {"exp_avg", "exp_avg_sq"};

  static void check(const Options& o) { detail::check_moments(name, o); }

  CONVOY_HD static Constants at(const Options& o, std::int64_t step, float lr) {
    const double t = static_cast<double>(step);
    const double correction1 = 1 - std::pow(static_cast<double>(o.beta1), t);
    const double correction2 = 1 - std::pow(static_cast<double>(o.beta2), t);
    return {static_cast<float>(static_cast<double>(lr) / correction1),
            o.beta1,
            1 - o.beta1,
            o.beta2,
            1 - o.beta2,
            o.epsilon,
            o.weight_decay,
            static_cast<float>(1 / std::sqrt(correction2))};
  }

  /// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr m^ / (sqrt(v^) + epsilon).
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[2],
                                                                     const Constants& k) {
    const V gradient = g + k.decay * p;
    const V first = k.keep1 * state[0] + k.take1 * gradient;
    const V second = k.keep2 * state[1] + k.take2 * (gradient * gradient);
    state[0] = first;
    state[1] = second;
    V root;
    square_root(root, second);
    p = p - k.rate * first / (root * k.correction2 + k.epsilon);
  }
};

}  // namespace convoy::optim
