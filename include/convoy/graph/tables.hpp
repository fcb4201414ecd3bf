// Tables: where a builder puts what it traces. Counts come first, so that constant tables have the exact
// size; at run time the tables grow.
#pragma once

#include <vector>

#include <convoy/graph/node.hpp>

namespace convoy::graph {

/// How large the tables of a model are.
struct Counts {
  int nodes = 0, parameters = 0, statistics = 0, outputs = 0, metrics = 0, losses = 0;
};

/// Keeps nothing but the counts.
struct Counter {
  static constexpr bool keeps = false;
  Counts counts;
  constexpr int push(const Node&) { return counts.nodes++; }
  constexpr int push(const Parameter&) { return counts.parameters++; }
  constexpr int push(const Statistic&) { return counts.statistics++; }
  constexpr int push(const Output&) { return counts.outputs++; }
  constexpr int push(const Metric&) { return counts.metrics++; }
  constexpr int push(int) { return counts.losses++; }
};

/// Tables of exact size, for constants.
template <Counts N>
struct StaticTables {
  static constexpr bool keeps = true;
  Node nodes[N.nodes > 0 ? N.nodes : 1] = {};
  Parameter parameters[N.parameters > 0 ? N.parameters : 1] = {};
  Statistic statistics[N.statistics > 0 ? N.statistics : 1] = {};
  Output outputs[N.outputs > 0 ? N.outputs : 1] = {};
  Metric metrics[N.metrics > 0 ? N.metrics : 1] = {};
  int losses[N.losses > 0 ? N.losses : 1] = {};
  Counts counts;

  constexpr int push(const Node& x) { return nodes[counts.nodes] = x, counts.nodes++; }
  constexpr int push(const Parameter& x) { return parameters[counts.parameters] = x, counts.parameters++; }
  constexpr int push(const Statistic& x) { return statistics[counts.statistics] = x, counts.statistics++; }
  constexpr int push(const Output& x) { return outputs[counts.outputs] = x, counts.outputs++; }
  constexpr int push(const Metric& x) { return metrics[counts.metrics] = x, counts.metrics++; }
  constexpr int push(int loss) { return losses[counts.losses] = loss, counts.losses++; }

  constexpr Graph view() const {
    return {nodes,          parameters,   statistics,        outputs,           metrics,
            losses,         counts.nodes, counts.parameters, counts.statistics, counts.outputs,
            counts.metrics, counts.losses};
  }
};

/// Tables that grow, for models described at run time.
struct DynamicTables {
  static constexpr bool keeps = true;
  std::vector<Node> nodes;
  std::vector<Parameter> parameters;
  std::vector<Statistic> statistics;
  std::vector<Output> outputs;
  std::vector<Metric> metrics;
  std::vector<int> losses;

  int push(const Node& x) { return nodes.push_back(x), static_cast<int>(nodes.size()) - 1; }
  int push(const Parameter& x) { return parameters.push_back(x), static_cast<int>(parameters.size()) - 1; }
  int push(const Statistic& x) { return statistics.push_back(x), static_cast<int>(statistics.size()) - 1; }
  int push(const Output& x) { return outputs.push_back(x), static_cast<int>(outputs.size()) - 1; }
  int push(const Metric& x) { return metrics.push_back(x), static_cast<int>(metrics.size()) - 1; }
  int push(int loss) { return losses.push_back(loss), static_cast<int>(losses.size()) - 1; }

  Graph view() const {
    return {nodes.data(),
            parameters.data(),
            statistics.data(),
            outputs.data(),
            metrics.data(),
            losses.data(),
            static_cast<int>(nodes.size()),
            static_cast<int>(parameters.size()),
            static_cast<int>(statistics.size()),
            static_cast<int>(outputs.size()),
            static_cast<int>(metrics.size()),
            static_cast<int>(losses.size())};
  }
};

}  // namespace convoy::graph
