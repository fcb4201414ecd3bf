// Model: a plan and its weights as a file of ONNX (https://onnx.ai), which other programs run.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/io/onnx/graph_writer.hpp>

#if CONVOY_DEFINITIONS
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/io/error.hpp>
#include <convoy/io/onnx/operations.hpp>
#endif

namespace convoy::io::onnx {

/// What a plan computes in evaluation, from the inputs that its outputs need to these outputs, by their names
/// in the model. Labels, losses and metrics are left out. The first axis of inputs and outputs is the batch,
/// of any number of rows.
class Model {
 public:
  /// Throws ModelError if the model has no outputs, if one needs an operation that has no form in ONNX (a
  /// loss or a custom operation), or if the file would reach the 2 GiB that a message of protocol buffers may
  /// have.
  explicit Model(const Plan& plan);

  /// Takes the values of a parameter or a running statistic, in canonical order. Those that no output needs
  /// are ignored.
  void weight(std::string_view name, const Shape& shape, std::span<const float> values);

  /// Writes a file beside `path` and renames it to `path`. Throws CheckpointError if that fails, or if a
  /// weight was not given.
  void write(const std::filesystem::path& path) const;

 private:
  GraphWriter file_;
  std::set<std::string, std::less<>> missing_;  // weights whose values were not given yet
};

#if CONVOY_DEFINITIONS
namespace detail {

/// For each node, the output that needs its value; -1 if none does.
inline std::vector<int> needed_by(const Plan& plan) {
  std::vector<int> by(plan.nodes.size(), -1);
  for (int k = static_cast<int>(plan.outputs.size()) - 1; k >= 0; --k)
    by[static_cast<std::size_t>(plan.outputs[static_cast<std::size_t>(k)].node)] = k;
  for (int n = plan.graph.count.nodes - 1; n >= 0; --n)
    if (const int output = by[static_cast<std::size_t>(n)]; output >= 0)
      for (int i = 0; i < plan.node(n).inputs; ++i)
        if (int& input = by[static_cast<std::size_t>(plan.graph.input(n, i))]; input < 0) input = output;
  return by;
}

}  // namespace detail

CONVOY_FUNCTION Model::Model(const Plan& plan) {
  if (plan.outputs.empty()) fail<ModelError>("onnx: the model has no outputs");
  const std::vector<int> by = detail::needed_by(plan);
  const std::vector<Form> forms = onnx::forms();
  const auto form_of = [&](int n) { return forms[static_cast<std::size_t>(plan.node(n).op)]; };
  std::int64_t weights = 0;  // bytes
  const auto need = [&](const auto& weight) {
    if (!missing_.emplace(weight.name.view()).second) return;
    file_.weight(weight.name.view());
    weights += weight.shape.size() * static_cast<std::int64_t>(sizeof(float));
  };
  const auto for_each_needed = [&](auto&& visit) {
    for (int n = 0; n < plan.graph.count.nodes; ++n)
      if (by[static_cast<std::size_t>(n)] >= 0) visit(n, plan.node(n));
  };
  // The names that users know come first, so that no other takes them.
  for_each_needed([&](int n, const graph::Node& node) {
    if (form_of(n) == nullptr)
      fail<ModelError>(
          "onnx: the output '", plan.outputs[static_cast<std::size_t>(by[static_cast<std::size_t>(n)])].name,
          "' needs '", node.name, "' (", graph::name_of(node), "), which cannot be written in ONNX");
    if (node.given) file_.input(node.name.view(), node.dtype, node.shape);
    for (int k = 0; k < node.uses; ++k) need(plan.parameter(plan.graph.parameter(n, k)));
    for (int k = 0; k < node.statistics; ++k) need(plan.graph.statistics[node.statistic + k]);
  });
  for (const graph::Output& output : plan.outputs)
    file_.output(output.name.view(), plan.node(output.node).shape);

  std::vector<std::string> values(plan.nodes.size());
  for_each_needed([&](int n, const graph::Node&) {
    values[static_cast<std::size_t>(n)] = form_of(n)({file_, plan.graph, n, values});
  });
  for (const graph::Output& output : plan.outputs)
    file_.connect(values[static_cast<std::size_t>(output.node)], output.name.view());
  // Besides its values, a weight has a name of at most 63 bytes and a few numbers.
  const std::int64_t rest = static_cast<std::int64_t>(file_.bytes() + missing_.size() * 128);
  if (weights + rest > std::numeric_limits<std::int32_t>::max())
    fail<ModelError>("onnx: the model's weights take ", weights,
                     " bytes, and a file of ONNX has less than 2 GiB");
}

CONVOY_FUNCTION void Model::weight(std::string_view name, const Shape& shape, std::span<const float> values) {
  const auto found = missing_.find(name);
  if (found == missing_.end()) return;
  file_.fill(name, shape, values);
  missing_.erase(found);
}

CONVOY_FUNCTION void Model::write(const std::filesystem::path& path) const {
  if (!missing_.empty())
    fail<CheckpointError>(path.string(), " cannot be written: '", *missing_.begin(), "' has no values");
  file_.write(path);
}
#endif

}  // namespace convoy::io::onnx
