// Binding: which field of a data set feeds which input of a model.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <convoy/data/dataset.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>

namespace convoy::train {

/// Matches fields to inputs by name. Throws ConfigError if an input has no field, or one of another type or
/// shape.
class Binding {
 public:
  Binding(const Plan& plan, std::span<const data::Field> fields) {
    for (const auto& node : plan.nodes) {
      if (!node.given) continue;
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
      source_.push_back(at);
    }
    pointers_.resize(source_.size());
  }

  /// The fields of a batch in the order of the model's inputs; valid until the next call. Not for several
  /// threads: the view refers to memory of this object.
  exec::BatchView view(const data::Batch& batch) const {
    for (std::size_t i = 0; i < source_.size(); ++i) pointers_[i] = batch.columns[source_[i]];
    return {pointers_, static_cast<int>(batch.rows)};
  }

  /// The index of the data set's field for the model's input `k`.
  std::size_t field(int k) const { return source_[static_cast<std::size_t>(k)]; }

 private:
  std::vector<std::size_t> source_;
  mutable std::vector<const void*> pointers_;
};

}  // namespace convoy::train
