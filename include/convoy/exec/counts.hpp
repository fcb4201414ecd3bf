// Counts: the divisor of each loss's mean (rows or labels), read from a batch before it is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// The number of rows or labels that loss `l` counts in a batch of `rows` rows; -1 if it depends on the
/// labels' values.
constexpr std::int64_t known_count(const Plan& plan, std::size_t l, std::int64_t rows) {
  const int n = plan.losses[l];
  const auto op = static_cast<std::size_t>(plan.node(n).op);
  const std::int64_t of_a_row =
      graph::operation_counts_labels[op] ? graph::operation_counted[op](plan.graph, n, nullptr, 1) : 1;
  return of_a_row < 0 ? -1 : of_a_row * rows;
}

/// Whether the count of any loss depends on the labels' values.
constexpr bool counts_by_value(const Plan& plan) {
  for (std::size_t l = 0; l < plan.losses.size(); ++l)
    if (known_count(plan, l, 1) < 0) return true;
  return false;
}

/// Whether the model has a cross-entropy, for which an Exec counts the correctly predicted labels.
constexpr bool classifies(const Plan& plan) {
  for (const graph::Node& node : plan.nodes)
    if (graph::operation_counts_labels[static_cast<std::size_t>(node.op)]) return true;
  return false;
}

/// Sets the counts of a batch of `rows` rows for each loss whose count does not depend on the labels' values.
inline void set_known_counts(const Plan& plan, std::int64_t rows, std::span<double> counts) {
  for (std::size_t l = 0; l < plan.losses.size(); ++l)
    if (const std::int64_t known = known_count(plan, l, rows); known >= 0)
      counts[l] = static_cast<double>(known);
}

/// Adds the count of loss `l` in a batch to counts[l] for each loss whose count depends on the labels'
/// values.
inline void add_counts_by_value(const Plan& plan, const BatchView& batch, std::span<double> counts) {
  for (std::size_t l = 0; l < plan.losses.size(); ++l) {
    if (known_count(plan, l, 1) >= 0) continue;
    const int n = plan.losses[l], label = plan.graph.input(n, 1);
    std::size_t field = 0;
    for (int m = 0; m < label; ++m) field += plan.node(m).given;
    const auto counted = graph::operation_counted[static_cast<std::size_t>(plan.node(n).op)];
    counts[l] +=
        static_cast<double>(counted(plan.graph, n, static_cast<const i32*>(batch.fields[field]), batch.rows));
  }
}

}  // namespace convoy::exec
