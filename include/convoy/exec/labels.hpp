// Checks of labels and ids before they are used as indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <convoy/core/error.hpp>
#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// Throws ExecError if a number of `numbers`, the field of node `n` of the plan, is neither in [begin, end)
/// nor `ignored`.
inline void expect_indices(const Plan& plan, int n, const i32* numbers, const BatchView& batch, int begin,
                           int end, int ignored = graph::no_label) {
  const graph::Node& node = plan.node(n);
  const auto a_row = node.shape.size();
  for (std::int64_t i = 0; i < batch.rows * a_row; ++i)
    if ((numbers[i] < begin || numbers[i] >= end) && (numbers[i] != ignored || ignored == graph::no_label)) {
      const auto row = static_cast<std::size_t>(i / a_row);
      const std::string of =
          batch.samples.empty() ? concat("row ", row) : concat("sample ", batch.samples[row]);
      const std::string position = node.shape.rank > 0 ? concat(" at position ", i % a_row) : "";
      const std::string or_none =
          ignored != graph::no_label ? concat(", or ", ignored, " where there is none") : "";
      fail<ExecError>("exec: the ", graph::is<graph::LabelInput>(node) ? "label" : "input", " '", node.name,
                      "' of ", of, position, " is ", numbers[i], ", expected ", begin, " to ", end - 1,
                      or_none);
    }
}

/// Throws ConfigError unless a batch has 1 to `most` rows.
inline void expect_rows(const BatchView& batch, int most) {
  if (batch.rows < 1 || batch.rows > most)
    fail<ConfigError>("exec: a batch of ", batch.rows, " rows was given to an exec prepared for 1 to ", most);
}

/// Throws ConfigError unless a batch has the fields of the plan, none of them null.
inline void expect_fields(const Plan& plan, const BatchView& batch) {
  std::size_t fields = 0;
  for (const auto& node : plan.nodes) fields += node.given;
  if (batch.fields.size() != fields)
    fail<ConfigError>("exec: a batch of ", batch.fields.size(), " fields was given to a model of ", fields,
                      " inputs and labels");
  for (std::size_t k = 0; k < fields; ++k)
    if (batch.fields[k] == nullptr) fail<ConfigError>("exec: field ", k, " of a batch is a null pointer");
}

/// Throws ConfigError unless a batch has 1 to `most` rows and the fields of the plan; throws ExecError for a
/// label that is not one of its classes and for an index out of range.
inline void expect_batch(const Plan& plan, const BatchView& batch, int most) {
  expect_rows(batch, most);
  expect_fields(plan, batch);
  const auto field_of = [&](int n) {
    std::size_t field = 0;
    for (int m = 0; m < n; ++m) field += plan.node(m).given;
    return static_cast<const i32*>(batch.fields[field]);
  };
  const auto& g = plan.graph;
  for (int n = 0; n < g.count.nodes; ++n) {
    if (graph::is<graph::LabelInput>(g.nodes[n])) {
      const auto [classes, ignored] = g.attributes<graph::LabelInput>(n);
      expect_indices(plan, n, field_of(n), batch, 0, classes, ignored);
    } else if (const auto by = graph::operation_indices[static_cast<std::size_t>(g.nodes[n].op)](g, n);
               by.input >= 0) {
      const int numbers = g.input(n, by.input);
      expect_indices(plan, numbers, field_of(numbers), batch, by.begin, by.end);
    }
  }
}

}  // namespace convoy::exec
