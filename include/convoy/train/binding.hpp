// Binding: which field of a data set feeds which input of a model.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/builder.hpp>
#include <convoy/graph/plan.hpp>

namespace convoy::train {

/// Matches fields to inputs and labels by name. Throws ConfigError if one of them has no field, or a field of
/// another type or shape.
class Binding {
 public:
  Binding(const Plan& plan, std::span<const data::Field> fields)
      : Binding(plan, fields, std::vector<bool>(plan.nodes.size(), true)) {}

  /// For one output: inputs and labels on which the output does not depend need no field. Valid values stand
  /// in for them. Also throws ConfigError if the model has no such output.
  static Binding for_output(const Plan& plan, std::span<const data::Field> fields, int output) {
    if (output < 0 || static_cast<std::size_t>(output) >= plan.outputs.size())
      fail<ConfigError>("the model has ", counted(plan.outputs.size(), "output"), ", so there is no output ",
                        output);
    std::vector<bool> needed(plan.nodes.size());
    needed[static_cast<std::size_t>(plan.outputs[static_cast<std::size_t>(output)].node)] = true;
    for (int n = plan.graph.count.nodes; n-- > 0;)  // nodes follow their inputs
      for (int k = 0; needed[static_cast<std::size_t>(n)] && k < plan.node(n).inputs; ++k)
        needed[static_cast<std::size_t>(plan.graph.input(n, k))] = true;
    return {plan, fields, needed};
  }

  /// The fields of a batch in the order of the model's inputs; valid until the next call. Not for several
  /// threads: the view refers to memory of this object.
  exec::BatchView view(const data::Batch& batch) const {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const Source& from = sources_[i];
      if (!from.stands_in) {
        pointers_[i] = batch.columns[from.field];
        continue;
      }
      const std::size_t words = from.words_of_row * static_cast<std::size_t>(batch.rows);
      if (stand_ins_[i].size() < words) stand_ins_[i].resize(words, from.value);
      pointers_[i] = stand_ins_[i].data();
    }
    return {pointers_, static_cast<int>(batch.rows), batch.indices};
  }

  /// The index of the data set's field for the model's input `k`.
  std::size_t field(int k) const { return sources_[static_cast<std::size_t>(k)].field; }

 private:
  // What feeds one input of the model.
  struct Source {
    std::size_t field = 0;
    bool stands_in = false;
    std::size_t words_of_row = 0;  // 32-bit words, of what stands in
    i32 value = 0;
  };

  Binding(const Plan& plan, std::span<const data::Field> fields, const std::vector<bool>& needed) {
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      sources_.push_back(needed[static_cast<std::size_t>(n)] ? Source{find(node, fields)}
                                                             : stand_in(plan, n));
    }
    stand_ins_.resize(sources_.size());
    pointers_.resize(sources_.size());
  }

  static std::size_t find(const graph::Node& node, std::span<const data::Field> fields) {
    std::size_t at = 0;
    while (at < fields.size() && !(fields[at].name == node.name)) ++at;
    if (at == fields.size()) {
      std::string names;
      for (const auto& field : fields) append_item(names, concat("'", field.name, "'"));
      fail<ConfigError>("the model's input '", node.name,
                        "' has no field of that name in the data set, which has ", names);
    }
    const auto& field = fields[at];
    if (field.dtype != node.dtype || !(field.shape == node.shape))
      fail<ConfigError>("the model's input '", node.name, "' is ", name_of(node.dtype), " ", node.shape,
                        ", but the data set's field is ", name_of(field.dtype), " ", field.shape);
    return at;
  }
  // Zeros or, for indices such as lengths, the lowest valid one.
  static Source stand_in(const Plan& plan, int n) {
    const graph::Node& node = plan.node(n);
    const std::size_t bytes = static_cast<std::size_t>(node.shape.size()) * size_of(node.dtype);
    const auto indices = plan.indices(n);
    return {.stands_in = true,
            .words_of_row = (bytes + sizeof(i32) - 1) / sizeof(i32),
            .value = indices ? static_cast<i32>(indices->begin) : 0};
  }

  std::vector<Source> sources_;
  mutable std::vector<std::vector<i32>> stand_ins_;
  mutable std::vector<const void*> pointers_;
};

}  // namespace convoy::train
