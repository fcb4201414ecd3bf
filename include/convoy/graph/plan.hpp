// Plan: a traced model and what every pass derives from it, as one flat constant. `plan_of<Model>` is that
// constant; `DynamicPlan` is the same for a model described at run time.
//
// Each pass is its own constant expression, because compilers limit the steps of one evaluation, not of all.
#pragma once

#include <bit>
#include <span>

#include <convoy/graph/builder.hpp>
#include <convoy/graph/pass/buckets.hpp>
#include <convoy/graph/pass/liveness.hpp>
#include <convoy/graph/price.hpp>

namespace convoy {

using graph::BucketOptions;
using graph::Group;
using graph::same;

/// What Exec, Comm and Trainer read. Spans point into tables that live as long as the program (plan_of) or as
/// the DynamicPlan.
struct Plan {
  graph::Graph graph;
  std::span<const graph::Node> nodes;
  std::span<const graph::Parameter> parameter_list;
  std::span<const graph::Statistic> statistic_list;
  std::span<const graph::Output> outputs;
  std::span<const graph::Metric> metrics;
  std::span<const int> losses;
  std::span<const graph::Step> steps;   ///< what is executed, in forward order
  std::span<const int> step_of;         ///< for each node; -1 for inputs and labels
  std::span<const graph::Taps> taps;    ///< for each node; live taps of convolutions
  std::span<const graph::Slot> slots;   ///< for each parameter
  std::span<const int> exchange_order;  ///< the parameters as they stand in the exchanged part of the arenas
  std::span<const Range>
      buckets;  ///< in elements of the gradient arena, in the order in which backward finishes them
  std::span<const graph::Price> prices;        ///< for each node
  std::span<const graph::Lifetime> lifetimes;  ///< graph::values_per_step a step, of one sample in training
  std::span<const std::int64_t> offsets;       ///< in the activation arena of one sample, for each lifetime
  graph::ArenaSizes sizes;
  graph::Price price;               ///< of all nodes
  std::int64_t training_bytes = 0;  ///< the activation arena of one sample in training
  std::uint64_t fingerprint = 0;    ///< of everything that ranks must agree on

  /// The number of learnable elements, frozen ones included.
  constexpr std::int64_t parameters() const {
    std::int64_t n = 0;
    for (const auto& p : parameter_list) n += p.shape.size();
    return n;
  }
  /// Elements that never meet anything but padding; neither exchanged nor updated.
  constexpr std::int64_t dead_parameters() const {
    std::int64_t n = 0;
    for (const auto& slot : slots) n += slot.dead.size();
    return n;
  }
  /// Multiply-accumulates of one sample forward, as published tables count them.
  constexpr std::int64_t macs() const { return price.macs; }
  /// FLOPs of one sample, forward and backward, of multiplications that meet input rather than padding.
  constexpr std::int64_t flops() const { return price.forward_flops + price.backward_flops; }
  /// Whether backward must compute a gradient for the value of node `n`.
  constexpr bool needs_gradient(int n) const {
    const auto op = nodes[static_cast<std::size_t>(n)].op;
    return op != graph::Op::input && op != graph::Op::label;
  }
  /// The node named `name`, or -1.
  constexpr int find(std::string_view name) const {
    for (std::size_t n = 0; n < nodes.size(); ++n)
      if (nodes[n].name == name) return static_cast<int>(n);
    return -1;
  }
};

namespace graph {

/// FNV-1a over the parts that ranks must agree on: operations, shapes, attributes, names, wiring.
constexpr std::uint64_t fingerprint(const Graph& g) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ull; };
  for (int n = 0; n < g.node_count; ++n) {
    const Node& node = g.nodes[n];
    mix(static_cast<std::uint64_t>(node.op));
    for (int i = 0; i < node.inputs; ++i) mix(static_cast<std::uint64_t>(node.input[i]));
    for (int i = 0; i < node.shape.rank; ++i) mix(static_cast<std::uint64_t>(node.shape[i]));
    mix(static_cast<std::uint64_t>(node.window.height) << 32 | static_cast<std::uint32_t>(node.window.width));
    mix(static_cast<std::uint64_t>(node.window.stride) << 32 |
        static_cast<std::uint32_t>(node.window.padding));
    mix(static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(node.epsilon)) << 32 |
        std::bit_cast<std::uint32_t>(node.momentum));
    mix(static_cast<std::uint64_t>(node.classes));
    mix(static_cast<std::uint64_t>(node.parameters));
    for (char c : node.name.view()) mix(static_cast<unsigned char>(c));
  }
  for (int p = 0; p < g.parameter_count; ++p) mix(static_cast<std::uint64_t>(g.parameters[p].group));
  for (int i = 0; i < g.loss_count; ++i) mix(static_cast<std::uint64_t>(g.losses[i]));
  return hash;
}

/// The first name that two nodes share, or an empty one. A hash table, so that it is linear.
template <int Capacity>
constexpr Name repeated_name(const Graph& g) {
  int table[Capacity] = {};
  for (int n = 0; n < g.node_count; ++n) {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (char c : g.nodes[n].name.view()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    auto at = static_cast<int>(hash % Capacity);
    for (; table[at] != 0; at = (at + 1) % Capacity)
      if (g.nodes[table[at] - 1].name == g.nodes[n].name) return g.nodes[n].name;
    table[at] = n + 1;
  }
  return {};
}

template <class Model>
constexpr BucketOptions bucket_options() {
  if constexpr (requires {
                  { Model::buckets } -> std::convertible_to<BucketOptions>;
                })
    return Model::buckets;
  else
    return {};
}

/// The first trace of a model: how large its tables are and whether it is well formed.
template <class Model>
struct Trace {
  struct Result {
    Counts counts;
    Fault fault;
  };
  static constexpr Result result = [] {
    Builder<Counter> g;
    Model::define(g);
    return Result{g.tables().counts, g.fault()};
  }();
  static constexpr Fault fault = result.fault;
  static constexpr bool sound = diagnose<Model, fault>();
};

/// The passes over one well-formed model as constants.
template <class Model>
struct StaticPlan {
  static constexpr Counts counts = Trace<Model>::result.counts;
  static constexpr StaticTables<counts> tables = [] {
    Builder<StaticTables<counts>> g;
    Model::define(g);
    return g.tables();
  }();
  static constexpr Graph graph = tables.view();

  static constexpr Fault name_fault = [] {
    const Name repeated = repeated_name<2 * counts.nodes + 1>(graph);
    return repeated.empty() ? Fault{} : Fault{FaultKind::name_taken, repeated, {}, {}};
  }();
  static constexpr bool names_are_unique = diagnose<Model, name_fault>();

  struct Fusion {
    Step steps[counts.nodes] = {};
    int step_of[counts.nodes] = {};
    int count = 0;
  };
  static constexpr Fusion fusion = [] {
    Fusion f;
    int consumer[counts.nodes] = {}, uses[counts.nodes] = {};
    f.count = fuse(graph, f.steps, f.step_of, consumer, uses);
    return f;
  }();

  struct AllTaps {
    Taps taps[counts.nodes] = {};
  };
  static constexpr AllTaps taps = [] {
    AllTaps t;
    find_live_taps(graph, t.taps);
    return t;
  }();

  static constexpr int parameter_room = counts.parameters > 0 ? counts.parameters : 1;
  struct Layout {
    Slot slots[parameter_room] = {};
    int order[parameter_room] = {};
    int exchanged = 0;
    ArenaSizes sizes;
  };
  static constexpr Layout layout = [] {
    Layout l;
    l.sizes = lay_out(graph, fusion.steps, fusion.count, taps.taps, l.slots, l.order, l.exchanged);
    return l;
  }();

  struct Buckets {
    Range buckets[parameter_room] = {};
    int count = 0;
  };
  static constexpr Buckets buckets = [] {
    Buckets b;
    b.count = make_buckets(layout.slots, layout.order, layout.exchanged, layout.sizes.exchanged,
                           bucket_options<Model>(), b.buckets);
    return b;
  }();

  struct Prices {
    Price prices[counts.nodes] = {};
    Price total;
  };
  static constexpr Prices prices = [] {
    Prices p;
    for (int n = 0; n < counts.nodes; ++n) p.total += p.prices[n] = price_of(graph, n);
    return p;
  }();

  static constexpr int value_count = fusion.count * values_per_step;
  struct Lifetimes {
    Lifetime values[value_count > 0 ? value_count : 1] = {};
  };
  static constexpr Lifetimes lifetimes = [] {
    Lifetimes l;
    find_lifetimes(graph, fusion.steps, fusion.count, fusion.step_of, true, l.values);
    return l;
  }();

  struct Arena {
    std::int64_t offsets[value_count > 0 ? value_count : 1] = {};
    std::int64_t bytes = 0;
  };
  static constexpr Arena arena = [] {
    Arena a;
    constexpr int moments = 2 * fusion.count + 1;
    int first_at[moments] = {}, release_at[moments] = {}, next_at[value_count + 1] = {},
        release_next[value_count + 1] = {};
    FreeBlock blocks[value_count + 1] = {};
    a.bytes = pack(lifetimes.values, value_count, 2 * fusion.count - 1, a.offsets, first_at, next_at,
                   release_at, release_next, blocks);
    return a;
  }();

  static constexpr std::uint64_t hash = fingerprint(graph);

  template <class T>
  static constexpr std::span<const T> table(const T* data, int count) {
    return {data, static_cast<std::size_t>(count)};
  }
  static constexpr Plan plan = {graph,
                                table(tables.nodes, counts.nodes),
                                table(tables.parameters, counts.parameters),
                                table(tables.statistics, counts.statistics),
                                table(tables.outputs, counts.outputs),
                                table(tables.metrics, counts.metrics),
                                table(tables.losses, counts.losses),
                                table(fusion.steps, fusion.count),
                                table(fusion.step_of, counts.nodes),
                                table(taps.taps, counts.nodes),
                                table(layout.slots, counts.parameters),
                                table(layout.order, layout.exchanged),
                                table(buckets.buckets, buckets.count),
                                table(prices.prices, counts.nodes),
                                table(lifetimes.values, value_count),
                                table(arena.offsets, value_count),
                                layout.sizes,
                                prices.total,
                                arena.bytes,
                                hash};
};

/// What stands in for the plan of a model that is not well formed, so that its diagnostic is the only error.
inline constexpr Plan no_plan = {};

/// Whether `Model` is well formed; if not, reading this gives the diagnostic. Whatever goes on to the passes
/// must read it first: a static member that nobody reads is never instantiated, and the passes over a faulty
/// model would bury the diagnostic under errors of their own.
template <class Model>
inline constexpr bool well_formed = [] {
  if constexpr (Trace<Model>::sound)
    return StaticPlan<Model>::names_are_unique;
  else
    return false;
}();

template <class Model>
constexpr const Plan& checked_plan() {
  if constexpr (well_formed<Model>)
    return StaticPlan<Model>::plan;
  else
    return no_plan;
}

}  // namespace graph

/// The plan of `Model`, a type with `static constexpr void define(auto& g)`, as a constant. A model that is
/// not well formed does not compile, and the message names the operation and both shapes.
template <class Model>
inline constexpr const Plan& plan_of = graph::checked_plan<Model>();

}  // namespace convoy
