// Stochastic gradient descent with momentum (Polyak, 1964), Nesterov's look-ahead (Sutskever et al., 2013)
// and L2 weight decay, by the formulas of torch.optim.SGD.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <convoy/core/error.hpp>
#include <convoy/optim/rule.hpp>

namespace convoy::optim {

/// Stochastic gradient descent. The defaults are not those of PyTorch, whose momentum is 0 and whose rate is
/// 1e-3. `weight_decay` is added to the gradient (L2).
struct Sgd {
  struct Options {
    using Rule = Sgd;
    float lr = 0.01f;
    float momentum = 0.9f;
    float weight_decay = 0;
    bool nesterov = false;
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("momentum", self.momentum);
      field("weight_decay", self.weight_decay);
      field("nesterov", self.nesterov);
    }
  };
  struct Constants {
    float lr, momentum, decay, ahead;
  };
  static constexpr std::string_view name = "sgd";
  static constexpr int slots = 1;
  static constexpr std::array<std::string_view, 1> slot_names = {"momentum_buffer"};

  static void check(const Options& o) {
    if (!(o.momentum >= 0))
      fail<ConfigError>("optimizer ", name, ": the momentum must be 0 or more, not ", o.momentum);
  }

  CONVOY_HD static constexpr Constants at(const Options& o, std::int64_t, float lr) {
    return {lr, o.momentum, o.weight_decay, o.nesterov ? 1.0f : 0.0f};
  }

  /// g' = g + decay p;  v = momentum v + g';  p -= lr (v, or g' + momentum v with Nesterov).
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[1],
                                                                     const Constants& k) {
    const V gradient = g + k.decay * p;
    const V velocity = k.momentum * state[0] + gradient;
    state[0] = velocity;
    p = p - k.lr * (velocity + k.ahead * (gradient + (k.momentum - 1.0f) * velocity));
  }
};

}  // namespace convoy::optim
