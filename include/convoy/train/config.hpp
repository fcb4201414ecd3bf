// Config: what a Trainer is told at construction.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include <convoy/optim/groups.hpp>
#include <convoy/optim/schedule.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy::train {

namespace detail {

// Takes the place of options whose owner is not what it should be, so that the one diagnostic stays the only
// error.
struct AnyOptions {
  double lr = 0, beta1 = 0, beta2 = 0, epsilon = 0, momentum = 0, weight_decay = 0;
  int threads = 0;
  bool nesterov = false, canonical = false;
};

template <class T>
struct OptionsOf {
  using type = AnyOptions;
};
template <class T>
requires requires { typename T::Options; }
struct OptionsOf<T> {
  using type = typename T::Options;
};

}  // namespace detail

/// Everything has a default; ranks must agree on all but `exec.threads`, and `open` checks that they do.
template <class Optimizer, class Exec>
struct Config {
  int batch = 32;      ///< rows of one rank in one micro-step; their mean where the Comm has unequal shares
  int accumulate = 1;  ///< micro-steps whose gradients are summed before they are exchanged and applied
  typename detail::OptionsOf<Optimizer>::type optimizer = {};
  std::vector<optim::GroupOptions> groups = {};  ///< of parameters that are updated otherwise
  bool decay_all = false;  ///< decays biases and normalisation too, as PyTorch does with one parameter group
  optim::Schedule schedule = {};
  typename detail::OptionsOf<Exec>::type exec = {};
  std::uint64_t seed = 0;        ///< of the initial parameters and of the shuffle
  Timeline* timeline = nullptr;  ///< records the steps of this rank
};

}  // namespace convoy::train
