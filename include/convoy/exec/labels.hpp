// Labels: checked before anything indexes by them.
#pragma once

#include <convoy/core/error.hpp>
#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// Throws ConfigError unless a batch has 1 to `most` rows and the fields of the plan, ExecError for a label
/// that is none of its classes.
inline void expect_batch(const Plan& plan, const BatchView& batch, int most) {
  if (batch.rows < 1 || batch.rows > most)
    fail<ConfigError>("exec: a batch of ", batch.rows, " rows was given to an exec prepared for 1 to ", most);
  std::size_t fields = 0;
  for (const auto& node : plan.nodes) fields += node.given;
  if (batch.fields.size() != fields)
    fail<ConfigError>("exec: a batch of ", batch.fields.size(), " fields was given to a model of ", fields,
                      " inputs and labels");
  std::size_t field = 0;
  for (std::size_t n = 0; n < plan.nodes.size(); ++n) {
    const graph::Node& node = plan.nodes[n];
    if (!node.given) continue;
    const auto* labels = static_cast<const i32*>(batch.fields[field++]);
    if (!graph::is<graph::LabelInput>(node)) continue;
    const int classes = plan.graph.attributes<graph::LabelInput>(static_cast<int>(n)).classes;
    const auto a_row = node.shape.size();
    for (std::int64_t i = 0; i < batch.rows * a_row; ++i)
      if (labels[i] < 0 || labels[i] >= classes)
        fail<ExecError>("exec: ", node.name, " of row ", i / a_row, " is ", labels[i], ", not in [0, ",
                        classes, ")");
  }
}

}  // namespace convoy::exec
