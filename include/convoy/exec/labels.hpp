// Labels and ids: checked before anything indexes by them.
#pragma once

#include <convoy/core/error.hpp>
#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// Throws ExecError if a number that node `n` of the plan supplies is neither in [0, end) nor `ignored`.
inline void expect_indices(const Plan& plan, int n, const i32* numbers, int rows, int end,
                           int ignored = graph::no_label) {
  const graph::Node& node = plan.node(n);
  const auto a_row = node.shape.size();
  for (std::int64_t i = 0; i < rows * a_row; ++i)
    if ((numbers[i] < 0 || numbers[i] >= end) && (numbers[i] != ignored || ignored == graph::no_label))
      fail<ExecError>("exec: ", node.name, " of row ", i / a_row, " is ", numbers[i], ", not in [0, ", end,
                      ")");
}

/// Throws ConfigError unless a batch has 1 to `most` rows and the fields of the plan, ExecError for a label
/// that is none of its classes, for an id that is none of its embedding's entries and for a length beyond an
/// attention's keys.
inline void expect_batch(const Plan& plan, const BatchView& batch, int most) {
  if (batch.rows < 1 || batch.rows > most)
    fail<ConfigError>("exec: a batch of ", batch.rows, " rows was given to an exec prepared for 1 to ", most);
  std::size_t fields = 0;
  for (const auto& node : plan.nodes) fields += node.given;
  if (batch.fields.size() != fields)
    fail<ConfigError>("exec: a batch of ", batch.fields.size(), " fields was given to a model of ", fields,
                      " inputs and labels");
  const auto field_of = [&](int n) {
    std::size_t field = 0;
    for (int m = 0; m < n; ++m) field += plan.node(m).given;
    return static_cast<const i32*>(batch.fields[field]);
  };
  const auto& g = plan.graph;
  for (int n = 0; n < g.count.nodes; ++n) {
    if (graph::is<graph::LabelInput>(g.nodes[n])) {
      const auto [classes, ignored] = g.attributes<graph::LabelInput>(n);
      expect_indices(plan, n, field_of(n), batch.rows, classes, ignored);
    } else if (graph::is<graph::Embedding>(g.nodes[n])) {
      const int ids = g.input(n, 0);
      expect_indices(plan, ids, field_of(ids), batch.rows, g.parameters[g.parameter(n, 0)].shape[0]);
    } else if (graph::is<graph::Attention>(g.nodes[n])) {
      const graph::Attention::Extents e = graph::Attention::extents(g, n);
      if (e.lengths < 0) continue;
      const int lengths = g.input(n, e.lengths);
      expect_indices(plan, lengths, field_of(lengths), batch.rows, e.keys + 1);
    }
  }
}

}  // namespace convoy::exec
