// Fusion: which nodes are computed together as one stage. A table of patterns lists the possible
// combinations.
#pragma once

#include <convoy/graph/builder.hpp>

namespace convoy::graph {

/// A chain of operations, each the only reader of the previous one's value.
struct Pattern {
  static constexpr int max_length = 4;
  int op[max_length] = {-1, -1, -1, -1};
  int length = 0;
};

template <class... Ops>
inline constexpr Pattern pattern = {{index_of<Ops>...}, sizeof...(Ops)};

/// The patterns. Those with the same leader (first operation) are adjacent, longest first. An Exec without a
/// kernel for a pattern runs its nodes one by one.
inline constexpr Pattern patterns[] = {
    pattern<Conv2d, BatchNorm, Add, Relu>,
    pattern<Conv2d, BatchNorm, Add>,
    pattern<Conv2d, BatchNorm, Relu>,
    pattern<Conv2d, BatchNorm>,
    pattern<Conv2d, Relu>,
    pattern<BatchNorm, Add, Relu>,
    pattern<BatchNorm, Add>,
    pattern<BatchNorm, Relu>,
    pattern<Linear, Relu>,
    pattern<Linear, Gelu>,
    pattern<Linear, CrossEntropy>,
    pattern<Add, Relu>,
    pattern<Add, LayerNorm>,
    pattern<Dropout, Add, LayerNorm>,
    pattern<Dropout, Add>,
    pattern<MaxPool, Relu>,
};

namespace detail {

// For each operation, the range of the patterns that it leads.
struct Leaders {
  int first[operation_count] = {}, end[operation_count] = {};
};
inline constexpr Leaders leaders = [] {
  Leaders found;
  for (int p = 0; p < static_cast<int>(std::size(patterns)); ++p) {
    const int op = patterns[p].op[0];
    if (found.end[op] == 0) found.first[op] = p;
    found.end[op] = p + 1;
  }
  return found;
}();

}  // namespace detail

/// One unit of execution. The stages are in an order in which every input is computed before it is read;
/// backward runs them in reverse.
struct Stage {
  int first = 0, count = 0;  ///< its nodes in Plan::members, in the order of computation
  int leader = -1;           ///< the first of these nodes
  int output = -1;           ///< the last of these nodes, whose value is the stage's output
  friend constexpr bool operator==(const Stage&, const Stage&) = default;
};

namespace detail {

// For each node, how often its value is read, and the last node that reads it (-1: none).
constexpr void count_readers(const Graph& g, int* readers, int* consumer) {
  for (int n = 0; n < g.count.nodes; ++n) {
    readers[n] = 0;
    consumer[n] = -1;
    for (int i = 0; i < g.nodes[n].inputs; ++i) {
      const int x = g.input(n, i);
      ++readers[x];
      consumer[x] = n;
    }
  }
  // Outputs, losses and inputs of metrics must be stored. Counting each as two further readers keeps them
  // from being fused away.
  for (int i = 0; i < g.count.outputs; ++i) readers[g.outputs[i].node] += 2;
  for (int i = 0; i < g.count.losses; ++i) readers[g.losses[i].node] += 2;
  for (int i = 0; i < g.count.metrics; ++i)
    for (int k = 0; k < g.metrics[i].inputs; ++k) readers[g.edges[g.metrics[i].input + k]] += 2;
}

// The last of the nodes that are computed together with `leader`; `leader` itself if no pattern fits. A
// pattern only takes nodes that have no leader yet.
constexpr int last_of_match(const Graph& g, int leader, const int* readers, const int* consumer,
                            const int* leader_of) {
  const int op = g.nodes[leader].op;
  for (int p = leaders.first[op]; p < leaders.end[op]; ++p) {
    const Pattern& tried = patterns[p];
    int at = leader, k = 1;
    for (; k < tried.length && readers[at] == 1; ++k) {
      const int next = consumer[at];
      if (next < 0 || g.nodes[next].op != tried.op[k] || leader_of[next] >= 0) break;
      at = next;
    }
    if (k == tried.length) return at;
  }
  return leader;
}

}  // namespace detail

/// Writes the stages of a graph, their nodes consecutively in `members`, and for each node its stage (-1 for
/// inputs and labels). Every array has room for one entry per node; `consumer` and `readers` are scratch.
/// Returns the number of stages. Linear in the number of nodes.
constexpr int fuse(const Graph& g, Stage* stages, int* members, int* stage_of, int* consumer, int* readers) {
  detail::count_readers(g, readers, consumer);
  // Two arrays are reused. `stage_of` holds each node's leader until the stages are numbered, and `readers`
  // holds a leader's last node once its number of readers is no longer needed.
  int* const leader_of = stage_of;
  int* const last_of = readers;
  for (int n = 0; n < g.count.nodes; ++n) leader_of[n] = -1;
  for (int n = 0; n < g.count.nodes; ++n) {
    if (g.nodes[n].given || leader_of[n] >= 0) continue;
    const int last = detail::last_of_match(g, n, readers, consumer, leader_of);
    leader_of[n] = n;
    for (int at = n; at != last;) leader_of[at = consumer[at]] = n;
    last_of[n] = last;
  }

  int count = 0, member = 0;
  for (int n = 0; n < g.count.nodes; ++n) {
    const int leader = leader_of[n];
    if (leader < 0 || last_of[leader] != n) continue;  // the stage is emitted at its last node
    const int first = member;
    for (int at = leader;; at = consumer[at]) {
      members[member++] = at;
      stage_of[at] = count;
      if (at == n) break;
    }
    stages[count++] = {first, member - first, leader, n};
  }
  return count;
}

}  // namespace convoy::graph
