// Arenas: what a plan means to those who know arenas only: how its parameters are updated, how its gradients
// are cut into buckets, and in which space they lie.
#pragma once

#include <concepts>
#include <optional>
#include <vector>

#include <convoy/graph/plan.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/optim/groups.hpp>

namespace convoy::train {

/// The space of an Exec; on the host memory comes from where the Comm need not copy.
template <class Space, class Comm>
Space make_space(Comm& comm) {
  if constexpr (std::same_as<Space, memory::Host>)
    return memory::Host(comm.memory());
  else
    return Space();
}

/// The optimizer of a plan's parameters in the order of the arena.
template <class Rule, class Space, class Config>
optim::Arena<Rule, Space> make_optimizer(Space& space, const Plan& plan, const Config& config) {
  std::vector<optim::GroupedParameter> names;
  for (const int p : plan.exchange_order)
    names.push_back({plan.parameter(p).name.view(), plan.parameter(p).group == Group::decay});
  const optim::Groups groups = optim::group(names, config.groups, config.decay_all);
  std::vector<optim::ArenaTensor> tensors;
  for (std::size_t i = 0; i < plan.exchange_order.size(); ++i) {
    const graph::Slot& slot = plan.slot(plan.exchange_order[i]);
    tensors.push_back({slot.live, slot.dead, groups.of[i]});
  }
  return {space, config.optimizer, tensors, groups.list, config.guard};
}

/// The plan's buckets, or those that `options` ask for.
inline std::vector<Range> make_buckets(const Plan& plan, const std::optional<graph::BucketOptions>& options) {
  if (!options) return {plan.buckets.begin(), plan.buckets.end()};
  if (options->first < 1 || options->others < 1)
    fail<ConfigError>("trainer: buckets of ", options->first, " and ", options->others,
                      " bytes; both must be positive");
  std::vector<Range> buckets(plan.exchange_order.size());
  buckets.resize(static_cast<std::size_t>(graph::make_buckets(
      plan.slots.data(), plan.exchange_order.data(), static_cast<int>(plan.exchange_order.size()),
      plan.sizes.exchanged, *options, buckets.data())));
  return buckets;
}

}  // namespace convoy::train
