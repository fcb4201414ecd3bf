// Arenas: what a plan means to those who know arenas only: how its parameters are updated, how its gradients
// are cut into buckets, and in which space they lie.
#pragma once

#include <concepts>
#include <optional>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/optim/groups.hpp>

#if CONVOY_DEFINITIONS
#include <utility>

#include <convoy/core/error.hpp>
#endif

namespace convoy::train {

/// The space of an Exec; on the host memory comes from where the Comm need not copy.
template <class Space, class Comm>
Space make_space(Comm& comm) {
  if constexpr (std::same_as<Space, memory::Host>)
    return memory::Host(comm.memory());
  else
    return Space();
}

/// What the optimizer of a plan's parameters has to know of them, in the order of the arena.
struct Treatments {
  std::vector<optim::ArenaTensor> tensors;
  std::vector<optim::Group> groups;
};
/// Throws ConfigError for a group that fits no parameter.
Treatments treatments(const Plan& plan, const std::vector<optim::GroupOptions>& groups, bool decay_all);

/// The plan's buckets, or those that `options` ask for. Throws ConfigError for sizes that are not positive.
std::vector<Range> make_buckets(const Plan& plan, const std::optional<graph::BucketOptions>& options);

/// The optimizer of a plan's parameters in the order of the arena.
template <class Rule, class Space, class Config>
optim::Arena<Rule, Space> make_optimizer(Space& space, const Plan& plan, const Config& config) {
  const Treatments all = treatments(plan, config.groups, config.decay_all);
  return {space, config.optimizer, all.tensors, all.groups, config.guard};
}

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Treatments treatments(const Plan& plan, const std::vector<optim::GroupOptions>& groups,
                                      bool decay_all) {
  std::vector<optim::GroupedParameter> names;
  for (const int p : plan.exchange_order)
    names.push_back({plan.parameter(p).name.view(), plan.parameter(p).group == Group::decay});
  optim::Groups of = optim::group(names, groups, decay_all);
  Treatments all{{}, std::move(of.list)};
  for (std::size_t i = 0; i < plan.exchange_order.size(); ++i) {
    const graph::Slot& slot = plan.slot(plan.exchange_order[i]);
    all.tensors.push_back({slot.live, slot.dead, of.of[i]});
  }
  return all;
}

CONVOY_FUNCTION std::vector<Range> make_buckets(const Plan& plan,
                                                const std::optional<graph::BucketOptions>& options) {
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
#endif

}  // namespace convoy::train
