// Config: what a Trainer is told at construction.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include <convoy/core/fields.hpp>
#include <convoy/graph/pass/buckets.hpp>
#include <convoy/optim/groups.hpp>
#include <convoy/optim/guard.hpp>
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

/// Everything has a default; ranks must agree on what is not marked local below, and `open` checks that they
/// do.
template <class Optimizer, class Exec>
struct Config {
  int batch = 32;      ///< rows of one rank in one micro-step; their mean where the Comm has unequal shares
  int accumulate = 1;  ///< micro-steps whose gradients are summed before they are exchanged and applied
  typename detail::OptionsOf<Optimizer>::type optimizer = {};
  optim::Schedule schedule = {};
  std::vector<optim::GroupOptions> groups = {};  ///< parameters with options of their own, by name
  bool decay_all = false;  ///< decays biases and normalisation too, as PyTorch does with one parameter group
  optim::Guard guard =
      {};  ///< what is decided about a whole gradient before it is applied: clipping, skipping
  std::optional<graph::BucketOptions> buckets = {};  ///< none: the model's own
  bool unsharded = false;                            ///< every rank reads all data, in an order of its own
  bool overlap = true;                               ///< exchange buckets while backward goes on
  bool sync_batch_norm = false;  ///< batch norms go by the rows of all ranks, as PyTorch's SyncBatchNorm
  typename detail::OptionsOf<Exec>::type exec = {};
  std::uint64_t seed = 0;  ///< of the initial parameters, of the shuffle, and of what a pass draws at random
  Timeline* timeline = nullptr;  ///< records the steps of this rank

  static constexpr void fields(auto& self, auto&& field) {
    field("batch", self.batch);
    field("accumulate", self.accumulate);
    field("optimizer", self.optimizer);
    field("schedule", self.schedule);
    field("groups", self.groups);
    field("decay_all", self.decay_all);
    field("guard", self.guard);
    field("buckets", self.buckets);
    field("unsharded", self.unsharded);
    field("overlap", self.overlap);
    field("sync_batch_norm", self.sync_batch_norm);
    field("exec", self.exec);
    field("seed", self.seed);
    field("timeline", self.timeline, fields::local);
  }
};

}  // namespace convoy::train
