// DynamicPlan: the plan of a model defined at run time, from the same passes as plan_of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/graph/plan.hpp>

namespace convoy {

/// Options for deriving a plan from a traced model.
struct PlanOptions {
  BucketOptions buckets = {};
  bool keep_dead_taps = false;  ///< computes, exchanges and updates filter taps that only ever meet padding,
                                ///< to reproduce published exchange sizes
};

/// Traces `define(g)` at run time and owns the tables of the resulting plan. Like plan_of, calls `define`
/// twice: once to count, once to fill the tables. Throws ModelError where plan_of would not compile, or if
/// the two calls define models of different sizes.
class DynamicPlan {
 public:
  template <class Define>
  explicit DynamicPlan(Define&& define, const BucketOptions& bucket_options = {}) {
    graph::Builder counting;
    define(counting);
    if (const auto fault = counting.fault(); fault.op != graph::Fault::none) graph::raise(fault);
    graph::Builder filling(make_room(counting.counts()), counting.counts());
    define(filling);
    if (filling.counts() != counting.counts())
      fail<ModelError>("model: the two calls of define made models of different sizes");
    derive({bucket_options});
  }
  /// Derives a new plan from an already traced model. Copies the tables of `traced`, which need not outlive
  /// this object.
  DynamicPlan(const Plan& traced, const PlanOptions& options);
  DynamicPlan(const DynamicPlan&) = delete;
  DynamicPlan& operator=(const DynamicPlan&) = delete;

  const Plan& plan() const { return plan_; }
  operator const Plan&() const { return plan_; }

 private:
  graph::Tables make_room(const graph::Counts& counts);
  // Computes the rest of the plan from the tables of the graph, in these steps.
  void derive(const PlanOptions& options);
  void expect_unique_names() const;
  void fuse();
  void lay_out_parameters(const PlanOptions& options);
  void price();
  void pack_values();
  void refer_to_tables();

  std::vector<graph::Node> nodes_;
  std::vector<int> edges_, uses_;
  std::vector<graph::Loss> losses_;
  std::vector<std::uint32_t> words_;
  std::vector<const graph::CustomCalls*> calls_;
  std::vector<graph::Parameter> parameters_;
  std::vector<graph::Statistic> statistics_;
  std::vector<graph::Output> outputs_;
  std::vector<graph::Metric> metrics_;
  std::vector<graph::Stage> stages_;
  std::vector<int> members_, stage_of_, order_;
  std::vector<graph::Taps> taps_;
  std::vector<graph::Slot> slots_;
  std::vector<Range> buckets_;
  std::vector<graph::Price> prices_;
  std::vector<graph::Lifetime> lifetimes_;
  std::vector<std::int64_t> offsets_;
  Plan plan_;
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION DynamicPlan::DynamicPlan(const Plan& traced, const PlanOptions& options) {
  const graph::Graph& g = traced.graph;
  const auto copy = [](auto& table, const auto* from, int count) { table.assign(from, from + count); };
  copy(nodes_, g.nodes, g.count.nodes);
  copy(edges_, g.edges, g.count.edges);
  copy(uses_, g.uses, g.count.uses);
  copy(words_, g.words, g.count.words);
  copy(calls_, g.calls, g.count.calls);
  copy(parameters_, g.parameters, g.count.parameters);
  copy(statistics_, g.statistics, g.count.statistics);
  copy(outputs_, g.outputs, g.count.outputs);
  copy(metrics_, g.metrics, g.count.metrics);
  copy(losses_, g.losses, g.count.losses);
  plan_.graph.count = g.count;
  derive(options);
}

CONVOY_FUNCTION graph::Tables DynamicPlan::make_room(const graph::Counts& counts) {
  const auto room = [](auto& table, int n) {
    table.resize(static_cast<std::size_t>(n));
    return table.data();
  };
  plan_.graph.count = counts;
  return {room(nodes_, counts.nodes),
          room(edges_, counts.edges),
          room(uses_, counts.uses),
          room(words_, counts.words),
          room(calls_, counts.calls),
          room(parameters_, counts.parameters),
          room(statistics_, counts.statistics),
          room(outputs_, counts.outputs),
          room(metrics_, counts.metrics),
          room(losses_, counts.losses)};
}

CONVOY_FUNCTION void DynamicPlan::derive(const PlanOptions& options) {
  plan_.graph = {nodes_.data(),   edges_.data(),      uses_.data(),       words_.data(),
                 calls_.data(),   parameters_.data(), statistics_.data(), outputs_.data(),
                 metrics_.data(), losses_.data(),     plan_.graph.count};
  expect_unique_names();
  fuse();
  lay_out_parameters(options);
  price();
  pack_values();
  refer_to_tables();
  plan_.used = graph::operations_used(plan_.graph);
  plan_.fingerprint = graph::fingerprint(plan_.graph);
}

CONVOY_FUNCTION void DynamicPlan::expect_unique_names() const {
  std::vector<int> table(static_cast<std::size_t>(graph::name_table_capacity(plan_.graph.count)));
  const Name repeated = graph::repeated_name(plan_.graph, table.data());
  if (!repeated.empty())
    graph::raise({graph::Fault::common, static_cast<int>(graph::Common::name_taken), repeated, {}, {}});
}

CONVOY_FUNCTION void DynamicPlan::fuse() {
  const std::size_t nodes = nodes_.size();
  std::vector<int> consumer(nodes), readers(nodes);
  stages_.resize(nodes);
  members_.resize(nodes);
  stage_of_.resize(nodes);
  const int stages = graph::fuse(plan_.graph, stages_.data(), members_.data(), stage_of_.data(),
                                 consumer.data(), readers.data());
  stages_.resize(static_cast<std::size_t>(stages));
  members_.resize(stages == 0 ? 0 : static_cast<std::size_t>(stages_.back().first + stages_.back().count));
}

CONVOY_FUNCTION void DynamicPlan::lay_out_parameters(const PlanOptions& options) {
  const std::size_t parameters = parameters_.size();
  taps_.resize(parameters);
  if (!options.keep_dead_taps) graph::find_live_taps(plan_.graph, taps_.data());
  slots_.resize(parameters);
  order_.resize(parameters);
  buckets_.resize(parameters);
  int exchanged = 0;
  plan_.sizes = graph::lay_out(plan_.graph, stages_.data(), static_cast<int>(stages_.size()), members_.data(),
                               taps_.data(), slots_.data(), order_.data(), exchanged);
  order_.resize(static_cast<std::size_t>(exchanged));
  buckets_.resize(static_cast<std::size_t>(graph::make_buckets(
      slots_.data(), order_.data(), exchanged, plan_.sizes.exchanged, options.buckets, buckets_.data())));
}

CONVOY_FUNCTION void DynamicPlan::price() {
  prices_.resize(nodes_.size());
  for (std::size_t n = 0; n < nodes_.size(); ++n)
    plan_.price += prices_[n] =
        graph::operation_prices[static_cast<std::size_t>(nodes_[n].op)](plan_.graph, static_cast<int>(n));
}

CONVOY_FUNCTION void DynamicPlan::pack_values() {
  const auto stages = static_cast<int>(stages_.size());
  lifetimes_.resize(nodes_.size() * graph::values_per_node);
  graph::find_lifetimes(plan_.graph, stages_.data(), stages, stage_of_.data(), true, lifetimes_.data());
  plan_.training_bytes = graph::pack(lifetimes_, 2 * stages - 1, offsets_);
}

CONVOY_FUNCTION void DynamicPlan::refer_to_tables() {
  plan_.nodes = nodes_;
  plan_.parameter_list = parameters_;
  plan_.statistic_list = statistics_;
  plan_.outputs = outputs_;
  plan_.metrics = metrics_;
  plan_.losses = losses_;
  plan_.stages = stages_;
  plan_.members = members_;
  plan_.stage_of = stage_of_;
  plan_.taps = taps_;
  plan_.slots = slots_;
  plan_.exchange_order = order_;
  plan_.buckets = buckets_;
  plan_.prices = prices_;
  plan_.lifetimes = lifetimes_;
  plan_.offsets = offsets_;
}

#endif

}  // namespace convoy
