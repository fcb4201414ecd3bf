// Counts: by what the sum of each loss is divided, read from a batch before it is computed. The count of a
// loss is its number of rows or labels, over its weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// The count of loss `l` in a batch of `rows` rows; -1 if it depends on the labels' values.
constexpr double known_count(const Plan& plan, std::size_t l, std::int64_t rows) {
  const auto [n, weight] = plan.losses[l];
  const auto op = static_cast<std::size_t>(plan.node(n).op);
  const std::int64_t of_a_row =
      graph::operation_counts_labels[op] ? graph::operation_counted[op](plan.graph, n, nullptr, 1) : 1;
  return of_a_row < 0 ? -1 : static_cast<double>(of_a_row * rows) / static_cast<double>(weight);
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
    if (const double known = known_count(plan, l, rows); known >= 0) counts[l] = known;
}

/// Adds the count of loss `l` in a batch to counts[l] for each loss whose count depends on the labels'
/// values.
inline void add_counts_by_value(const Plan& plan, const BatchView& batch, std::span<double> counts) {
  for (std::size_t l = 0; l < plan.losses.size(); ++l) {
    if (known_count(plan, l, 1) >= 0) continue;
    const auto [n, weight] = plan.losses[l];
    const int label = plan.graph.input(n, 1);
    std::size_t field = 0;
    for (int m = 0; m < label; ++m) field += plan.node(m).given;
    const auto counted = graph::operation_counted[static_cast<std::size_t>(plan.node(n).op)];
    const auto* labels = static_cast<const i32*>(batch.fields[field]);
    counts[l] +=
        static_cast<double>(counted(plan.graph, n, labels, batch.rows)) / static_cast<double>(weight);
  }
}

}  // namespace convoy::exec
