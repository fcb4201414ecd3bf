// Plan: a traced model and the results of every pass, as one flat constant. `plan_of<Model>` is that
// constant; `DynamicPlan` is the same for a model defined at run time.
//
// Each pass is its own constant expression, because compilers limit the number of steps per evaluation.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <convoy/graph/builder.hpp>
#include <convoy/graph/pass/buckets.hpp>
#include <convoy/graph/pass/liveness.hpp>

namespace convoy {

using graph::BucketOptions;
using graph::GeluForm;
using graph::Group;
using graph::same;

/// The description of a model that Exec, Comm and Trainer read. The spans refer to tables that live as long
/// as the program (plan_of) or the DynamicPlan.
struct Plan {
  graph::Graph graph;
  std::span<const graph::Node> nodes;
  std::span<const graph::Parameter> parameter_list;
  std::span<const graph::Statistic> statistic_list;
  std::span<const graph::Output> outputs;
  std::span<const graph::Metric> metrics;
  std::span<const graph::Loss> losses;
  std::span<const graph::Stage> stages;  ///< the units of execution, in forward order
  std::span<const int> members;          ///< the nodes of the stages
  std::span<const int> stage_of;         ///< for each node; -1 for inputs and labels
  std::span<const graph::Taps> taps;    ///< for each parameter; the live taps if it is a convolution's weight
  std::span<const graph::Slot> slots;   ///< for each parameter
  std::span<const int> exchange_order;  ///< the parameters in the order of the exchanged part of the arenas
  std::span<const Range> buckets;       ///< in elements of the gradient arena, in the order in which backward
                                        ///< finishes them
  std::span<const graph::Price> prices;        ///< for each node
  std::span<const graph::Lifetime> lifetimes;  ///< graph::values_per_node per node, for one sample in
                                               ///< training
  std::span<const std::int64_t> offsets;       ///< for each lifetime, in the activation arena of one sample
  graph::ArenaSizes sizes;
  graph::Price price;               ///< of all nodes
  std::int64_t training_bytes = 0;  ///< the activation arena of one sample in training
  std::uint64_t used = 0;           ///< bit mask of the operations that occur
  std::uint64_t fingerprint = 0;    ///< hash of everything that ranks must agree on

  /// The number of learnable elements, frozen ones included.
  constexpr std::int64_t parameters() const {
    std::int64_t n = 0;
    for (const auto& p : parameter_list) n += p.shape.size();
    return n;
  }
  /// The number of weight elements that only ever meet padding; neither exchanged nor updated.
  constexpr std::int64_t dead_parameters() const {
    std::int64_t n = 0;
    for (const auto& slot : slots) n += slot.dead.size();
    return n;
  }
  /// Multiply-accumulates of one forward sample, as published tables count them.
  constexpr std::int64_t macs() const { return price.macs; }
  /// FLOPs of one sample, forward and backward, of multiplications that meet input rather than padding.
  constexpr std::int64_t flops() const { return price.forward_flops + price.backward_flops; }
  constexpr const graph::Node& node(int n) const { return nodes[static_cast<std::size_t>(n)]; }
  constexpr const graph::Parameter& parameter(int p) const {
    return parameter_list[static_cast<std::size_t>(p)];
  }
  constexpr const graph::Slot& slot(int p) const { return slots[static_cast<std::size_t>(p)]; }
  constexpr const graph::Stage& stage(int s) const { return stages[static_cast<std::size_t>(s)]; }
  /// Node `k` of stage `s`.
  constexpr int member(int s, int k) const { return members[static_cast<std::size_t>(stage(s).first + k)]; }
  /// The taps of a convolution's weight that are in the live part of its slot.
  constexpr graph::Taps live_taps(int p) const {
    const graph::Taps& live = taps[static_cast<std::size_t>(p)];
    const Shape& shape = parameter(p).shape;
    return live.count() > 0 ? live : graph::Taps{0, shape[2], 0, shape[3]};
  }
  /// Whether parameter `p` is exchanged and updated.
  constexpr bool trained(int p) const { return slot(p).live.end <= sizes.exchanged; }
  /// Whether backward must compute a gradient for the value of node `n`.
  constexpr bool needs_gradient(int n) const { return !node(n).given; }
  /// The values that every operation that takes input `n` as indices accepts; none if no operation does.
  constexpr std::optional<Range> indices(int n) const {
    std::optional<Range> accepted;
    for (int m = 0; m < graph.count.nodes; ++m) {
      const auto by = graph::operation_indices[static_cast<std::size_t>(node(m).op)](graph, m);
      if (by.input < 0 || graph.input(m, by.input) != n) continue;
      const Range all = accepted.value_or(Range{by.begin, by.end});
      accepted = Range{std::max<std::int64_t>(all.begin, by.begin), std::min<std::int64_t>(all.end, by.end)};
    }
    return accepted;
  }
  /// The node named `name`, or -1.
  constexpr int find(std::string_view name) const {
    for (std::size_t n = 0; n < nodes.size(); ++n)
      if (nodes[n].name == name) return static_cast<int>(n);
    return -1;
  }
};

namespace graph {

/// Hash of everything that ranks must agree on: operations, shapes, element types, attributes, names, wiring,
/// outputs, metrics, custom types. Outputs and metrics must agree because they decide which nodes are
/// computed together, and so the order of the arenas.
constexpr std::uint64_t fingerprint(const Graph& g) {
  std::uint64_t hash = hash_start;
  auto mix = [&](auto value) { hash = hash_of(static_cast<std::uint64_t>(value), hash); };
  auto mix_shape = [&](const Shape& shape) {
    mix(shape.rank);
    for (int i = 0; i < shape.rank; ++i) mix(shape[i]);
  };
  for (int n = 0; n < g.count.nodes; ++n) {
    const Node& node = g.nodes[n];
    hash = hash_of(operation_names[static_cast<std::size_t>(node.op)], hash);
    mix(node.dtype);
    mix(node.kind);
    mix_shape(node.shape);
    for (int i = 0; i < node.inputs; ++i) mix(g.input(n, i));
    for (int k = 0; k < node.uses; ++k) mix(g.parameter(n, k));
    for (int w = 0; w < node.words; ++w) mix(g.words[node.word + w]);
    if (node.call >= 0) mix(g.calls_of(n).identity);
    hash = hash_of(node.name.view(), hash);
  }
  for (int p = 0; p < g.count.parameters; ++p) {
    hash = hash_of(g.parameters[p].name.view(), hash);
    mix_shape(g.parameters[p].shape);
    mix(g.parameters[p].group);
  }
  mix(g.count.losses);
  for (int i = 0; i < g.count.losses; ++i) {
    mix(g.losses[i].node);
    mix(std::bit_cast<std::uint32_t>(g.losses[i].weight));
  }
  mix(g.count.outputs);
  for (int i = 0; i < g.count.outputs; ++i) {
    hash = hash_of(g.outputs[i].name.view(), hash);
    mix(g.outputs[i].node);
  }
  for (int i = 0; i < g.count.metrics; ++i) {
    const Metric& metric = g.metrics[i];
    hash = hash_of(metric.name.view(), hash);
    mix(metric.identity);
    for (int k = 0; k < metric.inputs; ++k) mix(g.edges[metric.input + k]);
  }
  return hash;
}

/// Bit mask of the operations that occur, by operation number.
constexpr std::uint64_t operations_used(const Graph& g) {
  std::uint64_t used = 0;
  for (int n = 0; n < g.count.nodes; ++n) used |= std::uint64_t{1} << g.nodes[n].op;
  return used;
}

/// The first name that occurs twice among `name_of(0)` to `name_of(count - 1)`, or an empty name. `table`, of
/// `capacity` > `count` entries, is scratch for a hash table, which makes the search linear.
template <class NameOf>
constexpr Name repeated_name(const NameOf& name_of, int count, int* table, int capacity) {
  for (int i = 0; i < capacity; ++i) table[i] = 0;
  for (int n = 0; n < count; ++n) {
    const Name& name = name_of(n);
    auto at = static_cast<int>(hash_of(name.view()) % static_cast<std::uint64_t>(capacity));
    for (; table[at] != 0; at = (at + 1) % capacity)
      if (name_of(table[at] - 1) == name) return name;
    table[at] = n + 1;
  }
  return {};
}

/// The number of entries of the scratch table below.
constexpr int name_table_capacity(const Counts& count) {
  int most = 0;
  for (const int named : {count.nodes, count.parameters + count.statistics, count.outputs, count.metrics})
    most = named > most ? named : most;
  return 2 * most + 1;
}
/// The first name that two operations, two outputs or two metrics have, or two of the parameters and running
/// statistics, which a file of weights holds together; or an empty name.
constexpr Name repeated_name(const Graph& g, int* table) {
  const int capacity = name_table_capacity(g.count), parameters = g.count.parameters;
  const auto find = [&](int count, const auto& name_of) {
    return repeated_name(name_of, count, table, capacity);
  };
  Name repeated = find(g.count.nodes, [&](int n) -> const Name& { return g.nodes[n].name; });
  if (repeated.empty())
    repeated = find(parameters + g.count.statistics, [&](int i) -> const Name& {
      return i < parameters ? g.parameters[i].name : g.statistics[i - parameters].name;
    });
  if (repeated.empty())
    repeated = find(g.count.outputs, [&](int i) -> const Name& { return g.outputs[i].name; });
  if (repeated.empty())
    repeated = find(g.count.metrics, [&](int i) -> const Name& { return g.metrics[i].name; });
  return repeated;
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

/// The first trace of a model: the sizes of its tables, and whether it is well formed.
template <class Model>
struct Trace {
  struct Result {
    Counts counts;
    Fault fault;
  };
  static constexpr Result run() {
    Builder g;
    Model::define(g);
    return {g.counts(), g.fault()};
  }
  static constexpr Result result = run();
  static constexpr Fault fault = result.fault;
  static constexpr bool sound = diagnose<Model, fault>();
};

/// Whether `define` can run at compile time. If not, the passes must not be instantiated: their errors would
/// bury those of `define`.
template <class Model>
concept RunsWhileCompiling = requires {
  typename std::bool_constant<(Trace<Model>::run(), true)>;
};

/// Tables of exact size; an empty table has one unused entry.
template <Counts N>
struct StaticTables {
  static constexpr int room(int n) { return n > 0 ? n : 1; }
  Node nodes[room(N.nodes)] = {};
  int edges[room(N.edges)] = {};
  int uses[room(N.uses)] = {};
  std::uint32_t words[room(N.words)] = {};
  const CustomCalls* calls[room(N.calls)] = {};
  Parameter parameters[room(N.parameters)] = {};
  Statistic statistics[room(N.statistics)] = {};
  Output outputs[room(N.outputs)] = {};
  Metric metrics[room(N.metrics)] = {};
  Loss losses[room(N.losses)] = {};

  constexpr Tables tables() {
    return {nodes, edges, uses, words, calls, parameters, statistics, outputs, metrics, losses};
  }
  constexpr Graph view() const {
    return {nodes, edges, uses, words, calls, parameters, statistics, outputs, metrics, losses, N};
  }
};

/// The results of the passes over one well-formed model, as constants.
template <class Model>
struct StaticPlan {
  static constexpr Counts counts = Trace<Model>::result.counts;
  static constexpr StaticTables<counts> tables = [] {
    StaticTables<counts> made;
    Builder g(made.tables(), counts);
    Model::define(g);
    return made;
  }();
  static constexpr Graph graph = tables.view();

  static constexpr Fault name_fault = [] {
    int table[name_table_capacity(counts)] = {};
    const Name repeated = repeated_name(graph, table);
    return repeated.empty() ? Fault{}
                            : Fault{Fault::common, static_cast<int>(Common::name_taken), repeated, {}, {}};
  }();
  static constexpr bool names_are_unique = diagnose<Model, name_fault>();

  struct Fusion {
    Stage stages[counts.nodes] = {};
    int members[counts.nodes] = {}, stage_of[counts.nodes] = {};
    int count = 0;
  };
  static constexpr Fusion fusion = [] {
    Fusion f;
    int consumer[counts.nodes] = {}, readers[counts.nodes] = {};
    f.count = fuse(graph, f.stages, f.members, f.stage_of, consumer, readers);
    return f;
  }();
  static constexpr int member_count =
      fusion.count > 0 ? fusion.stages[fusion.count - 1].first + fusion.stages[fusion.count - 1].count : 0;

  static constexpr int parameter_room = counts.parameters > 0 ? counts.parameters : 1;
  struct AllTaps {
    Taps taps[parameter_room] = {};
  };
  static constexpr AllTaps taps = [] {
    AllTaps t;
    find_live_taps(graph, t.taps);
    return t;
  }();

  struct Layout {
    Slot slots[parameter_room] = {};
    int order[parameter_room] = {};
    int exchanged = 0;
    ArenaSizes sizes;
  };
  static constexpr Layout layout = [] {
    Layout l;
    l.sizes =
        lay_out(graph, fusion.stages, fusion.count, fusion.members, taps.taps, l.slots, l.order, l.exchanged);
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
    Prices all;
    for (int n = 0; n < counts.nodes; ++n)
      all.total += all.prices[n] = operation_prices[static_cast<std::size_t>(graph.nodes[n].op)](graph, n);
    return all;
  }();

  static constexpr int value_count = counts.nodes * values_per_node;
  struct Lifetimes {
    Lifetime values[value_count > 0 ? value_count : 1] = {};
  };
  static constexpr Lifetimes lifetimes = [] {
    Lifetimes l;
    find_lifetimes(graph, fusion.stages, fusion.count, fusion.stage_of, true, l.values);
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
                                table(fusion.stages, fusion.count),
                                table(fusion.members, member_count),
                                table(fusion.stage_of, counts.nodes),
                                table(taps.taps, counts.parameters),
                                table(layout.slots, counts.parameters),
                                table(layout.order, layout.exchanged),
                                table(buckets.buckets, buckets.count),
                                table(prices.prices, counts.nodes),
                                table(lifetimes.values, value_count),
                                table(arena.offsets, value_count),
                                layout.sizes,
                                prices.total,
                                arena.bytes,
                                operations_used(graph),
                                hash};
};

/// Substituted for the plan of an ill-formed model, so that its diagnostic is the only error.
inline constexpr Plan no_plan = {};

/// Whether `Model` is well formed; if not, reading this variable emits the diagnostic. Code that uses the
/// passes must read it first: an unread static member is never instantiated, and the passes over a faulty
/// model would bury the diagnostic under errors of their own.
template <class Model>
inline constexpr bool well_formed = [] {
  if constexpr (!RunsWhileCompiling<Model>) {
    static_assert(RunsWhileCompiling<Model>,
                  "convoy: the model's define does not run while compiling; the errors beside this one say "
                  "why");
    static_cast<void>(&Trace<Model>::result);  // the error for this names what is not constexpr
    return false;
  } else if constexpr (!Trace<Model>::sound) {
    return false;
  } else {
    return StaticPlan<Model>::names_are_unique;
  }
}();

template <class Model>
constexpr const Plan& checked_plan() {
  if constexpr (well_formed<Model>)
    return StaticPlan<Model>::plan;
  else
    return no_plan;
}

}  // namespace graph

/// The plan of `Model`, a type with `static constexpr void define(auto& g)`, as a constant. An ill-formed
/// model does not compile; the message names the operation and the shapes involved.
template <class Model>
inline constexpr const Plan& plan_of = graph::checked_plan<Model>();

}  // namespace convoy
