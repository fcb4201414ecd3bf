// Counts: what the mean of each loss is over, read off a batch before it is computed.
#pragma once

#include <cstdint>
#include <span>

#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// Whether any loss of the plan counts something else than rows.
constexpr bool counts_labels(const Plan& plan) {
  for (const int loss : plan.losses)
    if (graph::operation_counted[static_cast<std::size_t>(plan.node(loss).op)] != nullptr) return true;
  return false;
}

/// Adds to counts[l] what loss l counts in a batch: its rows, or the labels that take part.
inline void add_counts(const Plan& plan, const BatchView& batch, std::span<double> counts) {
  for (std::size_t l = 0; l < plan.losses.size(); ++l) {
    const int n = plan.losses[l];
    const auto counted = graph::operation_counted[static_cast<std::size_t>(plan.node(n).op)];
    if (counted == nullptr) {
      counts[l] += batch.rows;
      continue;
    }
    const int label = plan.graph.input(n, 1);
    std::size_t field = 0;
    for (int m = 0; m < label; ++m) field += plan.node(m).given;
    counts[l] +=
        static_cast<double>(counted(plan.graph, n, static_cast<const i32*>(batch.fields[field]), batch.rows));
  }
}

}  // namespace convoy::exec
