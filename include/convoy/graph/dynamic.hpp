// DynamicPlan: the same passes for a model that is described at run time.
#pragma once

#include <unordered_set>
#include <vector>

#include <convoy/graph/plan.hpp>

namespace convoy {

/// Traces `define(g)` at run time and owns the tables of the resulting plan. Throws ModelError where plan_of
/// would not compile.
class DynamicPlan {
 public:
  template <class Define>
  explicit DynamicPlan(Define&& define, const BucketOptions& bucket_options = {}) {
    graph::Builder<graph::DynamicTables> g;
    define(g);
    if (const auto fault = g.fault(); fault.kind != graph::FaultKind::none) graph::raise(fault);
    tables_ = std::move(g.tables());
    const graph::Graph view = tables_.view();
    std::unordered_set<std::string_view> names;
    for (const auto& node : tables_.nodes)
      if (!names.insert(node.name.view()).second)
        graph::raise({graph::FaultKind::name_taken, node.name, {}, {}});

    const auto n = static_cast<std::size_t>(view.node_count);
    std::vector<int> consumer(n), uses(n);
    steps_.resize(n);
    step_of_.resize(n);
    const int step_count = graph::fuse(view, steps_.data(), step_of_.data(), consumer.data(), uses.data());
    steps_.resize(static_cast<std::size_t>(step_count));
    taps_.resize(n);
    graph::find_live_taps(view, taps_.data());
    const auto parameters = static_cast<std::size_t>(view.parameter_count);
    slots_.resize(parameters);
    order_.resize(parameters);
    buckets_.resize(parameters);
    int exchanged = 0;
    plan_.sizes = graph::lay_out(view, steps_.data(), step_count, taps_.data(), slots_.data(), order_.data(),
                                 exchanged);
    order_.resize(static_cast<std::size_t>(exchanged));
    buckets_.resize(static_cast<std::size_t>(graph::make_buckets(
        slots_.data(), order_.data(), exchanged, plan_.sizes.exchanged, bucket_options, buckets_.data())));
    prices_.resize(n);
    for (std::size_t i = 0; i < n; ++i)
      plan_.price += prices_[i] = graph::price_of(view, static_cast<int>(i));
    lifetimes_.resize(static_cast<std::size_t>(step_count * graph::values_per_step));
    graph::find_lifetimes(view, steps_.data(), step_count, step_of_.data(), true, lifetimes_.data());
    plan_.training_bytes = graph::pack(lifetimes_, 2 * step_count - 1, offsets_);

    plan_.graph = view;
    plan_.nodes = tables_.nodes;
    plan_.parameter_list = tables_.parameters;
    plan_.statistic_list = tables_.statistics;
    plan_.outputs = tables_.outputs;
    plan_.metrics = tables_.metrics;
    plan_.losses = tables_.losses;
    plan_.steps = steps_;
    plan_.step_of = step_of_;
    plan_.taps = taps_;
    plan_.slots = slots_;
    plan_.exchange_order = order_;
    plan_.buckets = buckets_;
    plan_.prices = prices_;
    plan_.lifetimes = lifetimes_;
    plan_.offsets = offsets_;
    plan_.fingerprint = graph::fingerprint(view);
  }
  DynamicPlan(const DynamicPlan&) = delete;
  DynamicPlan& operator=(const DynamicPlan&) = delete;

  const Plan& plan() const { return plan_; }
  operator const Plan&() const { return plan_; }

 private:
  graph::DynamicTables tables_;
  std::vector<graph::Step> steps_;
  std::vector<int> step_of_, order_;
  std::vector<graph::Taps> taps_;
  std::vector<graph::Slot> slots_;
  std::vector<Range> buckets_;
  std::vector<graph::Price> prices_;
  std::vector<graph::Lifetime> lifetimes_;
  std::vector<std::int64_t> offsets_;
  Plan plan_;
};

}  // namespace convoy
