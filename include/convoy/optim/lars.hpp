// LARS: a learning rate for each tensor, proportional to the ratio of the norms of its parameters and its
// gradient (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <convoy/core/error.hpp>
#include <convoy/optim/rule.hpp>

namespace convoy::optim {

/// Momentum with a rate for each tensor, in proportion to its norm over that of its gradient.
struct Lars {
  struct Options {
    using Rule = Lars;
    float lr = 1.0f;
    float momentum = 0.9f;
    float weight_decay = 0;
    float trust = 1e-3f;    ///< the trust coefficient
    bool scale_all = true;  ///< also scale tensors without weight decay; if false, their trust ratio is 1, as
                            ///< is common for biases and normalization
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("momentum", self.momentum);
      field("weight_decay", self.weight_decay);
      field("trust", self.trust);
      field("scale_all", self.scale_all);
    }
  };
  struct Constants {
    float rate, momentum, decay;
  };
  static constexpr std::string_view name = "lars";
  static constexpr int slots = 1;
  static constexpr std::array<std::string_view, 1> slot_names = {"momentum_buffer"};
  static constexpr bool per_tensor_norms = true;

  static void check(const Options& o) {
    if (!(o.trust > 0))
      fail<ConfigError>("optimizer ", name, ": the trust coefficient ", o.trust, " is not positive");
    if (!(o.momentum >= 0))
      fail<ConfigError>("optimizer ", name, ": the momentum must be 0 or more, not ", o.momentum);
  }

  /// The rate is lr trust |p| / (|g| + decay |p|); lr if |p| or the denominator is 0 or the tensor is not
  /// scaled.
  CONVOY_HD static constexpr Constants at(const Options& o, std::int64_t, float lr, const Norms& norms) {
    const float length = norms.gradient + o.weight_decay * norms.parameter;
    const bool scales = norms.parameter > 0 && length > 0 && (o.scale_all || o.weight_decay > 0);
    return {scales ? lr * o.trust * norms.parameter / length : lr, o.momentum, o.weight_decay};
  }

  /// v = momentum v + rate (g + decay p);  p -= v.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[1],
                                                                     const Constants& k) {
    state[0] = k.momentum * state[0] + k.rate * (g + k.decay * p);
    p = p - state[0];
  }
};

}  // namespace convoy::optim
