// Config: the options of a Trainer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/core/call.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/graph/pass/buckets.hpp>
#include <convoy/optim/groups.hpp>
#include <convoy/optim/guard.hpp>
#include <convoy/optim/schedule.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy::train {

namespace detail {

// Substituted for the options of an invalid policy, so that its diagnostic stays the only error.
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

/// Callback that receives the name of an option and its value as text.
using OptionVisit = Call<void(std::string_view name, const std::string& text)>;

/// The options of a Trainer, all with defaults. Ranks must agree on every field that is not marked local,
/// here or in the nested options. The constructor compares them.
template <class Optimizer, class Exec>
struct Config {
  int batch = 32;      ///< rows per rank in a micro-step; the mean over ranks if the Comm has unequal shares
  int accumulate = 1;  ///< micro-steps whose gradients are summed before the exchange and the update
                       ///< (gradient accumulation)
  typename detail::OptionsOf<Optimizer>::type optimizer = {};
  optim::Schedule schedule = {};
  std::vector<optim::GroupOptions> groups = {};  ///< options for parameters selected by name
  bool decay_all = false;   ///< decays biases and normalization too, as PyTorch does with one parameter group
  optim::Guard guard = {};  ///< gradient clipping, skipping of steps
  std::optional<graph::BucketOptions> buckets = {};  ///< target sizes in bytes; none: the model's own
  bool unsharded = false;                            ///< every rank reads all data, each in its own order
  bool overlap = true;                               ///< exchange buckets during backward
  bool sync_batch_norm = false;  ///< batch statistics over the rows of all ranks, as PyTorch's SyncBatchNorm
  typename detail::OptionsOf<Exec>::type exec = {};
  std::uint64_t seed = 0;        ///< of the initial parameters, the shuffle, and random numbers in a pass
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
