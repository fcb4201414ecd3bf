// Arenas: translates a plan for code that only knows arenas: how parameters are updated, how gradients are
// split into buckets, and in which space they are stored. Brings arenas to the host.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
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

/// Makes the space of an Exec, whose arenas the Comm can use without copying.
template <class Space, class Comm>
Space make_space(Comm& comm) {
  if constexpr (std::constructible_from<Space, std::pmr::memory_resource*>)
    return Space(comm::arena_memory<Space>(comm));
  else
    return Space();
}

/// Calls `visit(values)` with the values of an arena in host memory, and writes them back afterwards.
template <class Space, class Visit>
void on_host(Space& space, std::span<float> arena, Visit&& visit) {
  if constexpr (Space::addressable) {
    visit(arena);
  } else {
    std::vector<float> values(arena.size());
    space.read(values.data(), arena.data(), arena.size_bytes());
    visit(std::span<float>(values));
    space.write(arena.data(), values.data(), arena.size_bytes());
  }
}

/// The optimizer's description of a plan's parameters, in the order of the arena.
struct TensorGroups {
  std::vector<optim::ArenaTensor> tensors;
  std::vector<optim::Group> groups;
};
/// Throws ConfigError for a group that matches no parameter, or whose scale or decay is negative or not
/// finite.
TensorGroups tensor_groups(const Plan& plan, const std::vector<optim::GroupOptions>& groups, bool decay_all);

/// For each parameter, whether rules for matrices (Muon) update it as one: every parameter of two or more
/// extents, with a row for each index of the first extent, but not the parameters of operations that look up
/// vectors in them (embeddings) or of the last layer before a loss.
std::vector<bool> are_matrices(const Plan& plan);

/// The plan's buckets, or those of `options` if given. Throws ConfigError if a size is not positive.
std::vector<Range> make_buckets(const Plan& plan, const std::optional<graph::BucketOptions>& options);

/// Makes the optimizer of a plan's parameters, in the order of the arena.
template <class Rule, class Space, class Config>
optim::Arena<Rule, Space> make_optimizer(Space& space, const Plan& plan, const Config& config) {
  const TensorGroups all = tensor_groups(plan, config.groups, config.decay_all);
  return {space, config.optimizer, all.tensors, all.groups, config.guard};
}

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION TensorGroups tensor_groups(const Plan& plan, const std::vector<optim::GroupOptions>& groups,
                                           bool decay_all) {
  std::vector<optim::GroupedParameter> names;
  for (const int p : plan.exchange_order)
    names.push_back({plan.parameter(p).name.view(), plan.parameter(p).group == Group::decay});
  optim::Groups of = optim::group(names, groups, decay_all);
  TensorGroups all{{}, std::move(of.list)};
  const std::vector<bool> matrices = are_matrices(plan);
  for (std::size_t i = 0; i < plan.exchange_order.size(); ++i) {
    const int p = plan.exchange_order[i];
    const graph::Slot& slot = plan.slot(p);
    const std::int64_t rows = matrices[static_cast<std::size_t>(p)] ? plan.parameter(p).shape[0] : 0;
    all.tensors.push_back({slot.live, slot.dead, of.of[i], rows});
  }
  return all;
}

CONVOY_FUNCTION std::vector<bool> are_matrices(const Plan& plan) {
  std::vector<bool> are;
  for (const graph::Parameter& parameter : plan.parameter_list) are.push_back(parameter.shape.rank > 1);
  const auto by_element = [&](int n) {
    for (int k = 0; k < plan.node(n).uses; ++k)
      are[static_cast<std::size_t>(plan.graph.parameter(n, k))] = false;
  };
  for (int n = 0; n < plan.graph.count.nodes; ++n)
    if (graph::operation_looks_up[static_cast<std::size_t>(plan.node(n).op)]) by_element(n);
  // From each loss back to the layers that it reads, through what has no parameters: operations of one value
  // and, where the losses of rows are weighted or added up, operations on numbers.
  const auto computed = [&](int n) {
    int count = 0;
    for (int i = 0; i < plan.node(n).inputs; ++i) count += !plan.node(plan.graph.input(n, i)).given;
    return count;
  };
  std::vector<char> reached(plan.nodes.size());
  std::vector<int> open;
  for (const graph::Loss& loss : plan.losses) open.push_back(loss.node);
  while (!open.empty()) {
    const int n = open.back();
    open.pop_back();
    for (int i = 0; i < plan.node(n).inputs; ++i) {
      const int x = plan.graph.input(n, i);
      if (reached[static_cast<std::size_t>(x)]++ > 0) continue;
      by_element(x);
      if (plan.node(x).uses == 0 && (plan.node(x).kind == Kind::number || computed(x) == 1))
        open.push_back(x);
    }
  }
  return are;
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
