// Weights: parameters and running statistics of a trainer in a safetensors file, by their PyTorch names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/snapshot.hpp>
#include <convoy/train/state.hpp>
#include <convoy/train/weights_options.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <utility>

#include <convoy/io/json.hpp>
#endif

namespace convoy::train {

/// A tensor whose shapes in the file and in the model differ; shapes as text, such as `[64, 3, 7, 7]`.
struct OfOtherShape {
  std::string name, in_file, in_model;
};

/// The result of loading.
struct LoadedWeights {
  int loaded = 0;                       ///< number of tensors
  std::vector<std::string> missing;     ///< tensors of the model that the file lacks
  std::vector<std::string> unexpected;  ///< tensors of the file that the model lacks
  std::vector<OfOtherShape> of_other_shape;
  bool complete() const { return missing.empty() && unexpected.empty() && of_other_shape.empty(); }
};

/// A state visitor that fills weights from a file, as far as they match.
class WeightLoader {
 public:
  explicit WeightLoader(const std::filesystem::path& path, const WeightsOptions& options = {});
  void tensor(std::string_view name, const Shape& shape, std::span<float> values);
  void counter(std::string_view, std::int64_t&) {}
  void real(std::string_view, double&) {}
  /// Call after all weights were visited.
  LoadedWeights report();

 private:
  io::Safetensors file_;
  WeightsOptions options_;
  LoadedWeights report_;
  std::set<std::string, std::less<>> left_;  // names in the file not visited yet
};

/// A state visitor that collects weights and writes them to a file.
class WeightSaver {
 public:
  explicit WeightSaver(const WeightsOptions& options) : options_(options) {}
  void tensor(std::string_view name, const Shape& shape, std::span<float> values);
  void counter(std::string_view, std::int64_t&) {}
  void real(std::string_view, double&) {}
  /// Throws CheckpointError if the file cannot be written.
  void write(const std::filesystem::path& path);

 private:
  WeightsOptions options_;
  io::SafetensorsWriter file_;
};

/// Throws CheckpointError, which names a tensor, unless everything matched.
void require_complete(const LoadedWeights& weights, const std::filesystem::path& path);

/// Calls `write` on rank 0, for all workers, which must call this together. Throws on all of them if it
/// throws: on rank 0 what it threw, on the others CheckpointError.
template <class Trainer, class Write>
void write_on_rank_0(Trainer& trainer, const std::filesystem::path& path, Write&& write) {
  std::exception_ptr failure;
  try {
    if (trainer.rank() == 0) write();
  } catch (...) {
    failure = std::current_exception();
  }
  double failed = failure ? 1 : 0;
  trainer.comm().all_reduce(std::span<double>(&failed, 1), comm::max);
  if (failure) std::rethrow_exception(failure);
  if (failed > 0) fail<CheckpointError>("rank 0 could not write ", path.string());
}

/// Writes the trainer's weights by their PyTorch names; a tied tensor is stored once. Hugging Face's GPT-2
/// needs `options.transposed`. All workers must call it together; rank 0 writes. May be called while servers
/// serve. Throws CheckpointError on all workers if the file cannot be written; a rank that only serves is not
/// told.
template <class Trainer>
void save_weights(Trainer& trainer, const std::filesystem::path& path, const WeightsOptions& options = {}) {
  WeightSaver saver(options);
  trainer.visit_weights(saver, Visit::read);
  write_on_rank_0(trainer, path, [&] { saver.write(path); });
}

enum class Match : bool { complete, partial };

/// Reads all that `load_weights` would load into a model, and stores nothing. Throws CheckpointError as
/// `load_weights` does.
void expect_weights(const Plan& plan, const std::filesystem::path& path, Match match,
                    const WeightsOptions& options);

/// Loads the trainer's weights from a file; the optimizer's state is unchanged. All ranks must call it
/// together with the same file. Match::partial loads the tensors that match (for example all but a new head)
/// and reports the others. With Match::complete all must match, otherwise CheckpointError is thrown. It is
/// also thrown if a rank cannot read the file; the other ranks then throw a ConfigError that repeats its
/// reason. In both cases nothing is changed on any rank. Constants that published files hold beside their
/// weights are ignored: PyTorch's `num_batches_tracked`, and Hugging Face's causal masks (`.attn.bias`,
/// `.attn.masked_bias`) and `position_ids`. Of layer norms, the names `LayerNorm.gamma` and `LayerNorm.beta`
/// are read too, as in bert-base-uncased.
template <class Trainer>
LoadedWeights load_weights(Trainer& trainer, const std::filesystem::path& path, Match match = Match::complete,
                           const WeightsOptions& options = {}) {
  all_or_none(trainer.comm(), "load_weights", [&] { expect_weights(trainer.plan, path, match, options); });
  WeightLoader loader(path, options);
  trainer.visit_weights(loader, Visit::write);
  return loader.report();
}

/// Visits the parameters and running statistics of an Exec without a trainer.
template <exec::Exec Exec>
void visit_weights(Exec& exec, const Plan& plan, const AnyVisitor& visitor, Visit how) {
  visit_parameters(exec, plan, visitor, how);
  visit_statistics(exec, plan, "statistics.", visitor, how, [](std::span<float>) {});
}

/// The same for an Exec without a trainer, for programs that only compute outputs.
template <exec::Exec Exec>
LoadedWeights load_weights(Exec& exec, const Plan& plan, const std::filesystem::path& path,
                           Match match = Match::complete, const WeightsOptions& options = {}) {
  expect_weights(plan, path, match, options);
  WeightLoader loader(path, options);
  visit_weights(exec, plan, AnyVisitor(loader), Visit::write);
  return loader.report();
}
template <exec::Exec Exec>
void save_weights(Exec& exec, const Plan& plan, const std::filesystem::path& path,
                  const WeightsOptions& options = {}) {
  WeightSaver saver(options);
  visit_weights(exec, plan, AnyVisitor(saver), Visit::read);
  saver.write(path);
}

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void expect_weights(const Plan& plan, const std::filesystem::path& path, Match match,
                                    const WeightsOptions& options) {
  WeightLoader loader(path, options);
  std::vector<float> values;
  const auto read = [&](const std::string& name, const Shape& shape) {
    values.resize(static_cast<std::size_t>(shape.size()));
    loader.tensor(name, shape, values);
  };
  for (const graph::Parameter& parameter : plan.parameter_list)
    read(concat("parameters.", parameter.name), parameter.shape);
  for (const auto& statistic : plan.statistic_list)
    read(concat("statistics.", statistic.name), statistic.shape);
  if (match == Match::complete) require_complete(loader.report(), path);
}

namespace detail {

// The name and shape of a model's weight in a file.
struct InFile {
  std::string_view name;
  Shape shape;
  bool transposed;
  InFile(std::string_view own, const Shape& own_shape, const WeightsOptions& options)
      : name(own.starts_with(options.prefix) ? own.substr(options.prefix.size()) : own),
        shape(own_shape),
        transposed(own_shape.rank == 2 && options.transposed != nullptr && options.transposed(own)) {
    if (transposed) shape = {own_shape[1], own_shape[0]};
  }
};

/// Whether a tensor of a published file is a constant and no weight. A mask has `extents`, a bias only one.
inline bool is_constant(std::string_view name, std::size_t extents) {
  return name.ends_with("num_batches_tracked") || name.ends_with("position_ids") ||
         name.ends_with(".attn.masked_bias") || (name.ends_with(".attn.bias") && extents > 1);
}

/// The name of a weight in files that were converted from TensorFlow; empty if it is the same.
inline std::string name_of_tensorflow(std::string_view name) {
  for (const auto& [own, other] :
       {std::pair("LayerNorm.weight", "LayerNorm.gamma"), std::pair("LayerNorm.bias", "LayerNorm.beta")})
    if (name.ends_with(own))
      return std::string(name.substr(0, name.size() - std::string_view(own).size())) + other;
  return {};
}

inline std::vector<float> transpose(std::span<const float> from, int rows, int columns) {
  std::vector<float> to(from.size());
  const auto height = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(columns);
  for (std::size_t y = 0; y < height; ++y)
    for (std::size_t x = 0; x < width; ++x) to[x * height + y] = from[y * width + x];
  return to;
}

}  // namespace detail

CONVOY_FUNCTION WeightLoader::WeightLoader(const std::filesystem::path& path, const WeightsOptions& options)
    : file_(path), options_(options) {
  for (const auto& [name, tensor] : file_.tensors())
    if (!detail::is_constant(name, tensor.shape.size())) left_.insert(name);
}

CONVOY_FUNCTION void WeightLoader::tensor(std::string_view name, const Shape& shape,
                                          std::span<float> values) {
  const std::string_view weights = name_of_weights(name);
  if (weights.empty()) return;
  const detail::InFile there(weights, shape, options_);
  std::string of_file(there.name);
  if (file_.find(of_file) == nullptr)
    if (const std::string other = detail::name_of_tensorflow(of_file); file_.find(other) != nullptr)
      of_file = other;
  const auto* tensor = file_.find(of_file);
  left_.erase(of_file);
  if (tensor == nullptr) {
    report_.missing.emplace_back(weights);
  } else if (!tensor->has(there.shape)) {
    const std::vector<std::int64_t> wanted(there.shape.extent, there.shape.extent + there.shape.rank);
    report_.of_other_shape.push_back(
        {std::string(weights), io::detail::text_of(tensor->shape), io::detail::text_of(wanted)});
  } else {
    file_.read(of_file, there.shape, values);
    if (there.transposed) {
      const auto turned = detail::transpose(values, there.shape[0], there.shape[1]);
      std::copy(turned.begin(), turned.end(), values.begin());
    }
    ++report_.loaded;
  }
}

CONVOY_FUNCTION void WeightSaver::tensor(std::string_view name, const Shape& shape, std::span<float> values) {
  const std::string_view weights = name_of_weights(name);
  if (weights.empty()) return;
  const detail::InFile there(weights, shape, options_);
  if (there.transposed)
    file_.add(std::string(there.name), there.shape, detail::transpose(values, shape[0], shape[1]));
  else
    file_.add(std::string(there.name), shape, values);
}

CONVOY_FUNCTION void WeightSaver::write(const std::filesystem::path& path) {
  file_.describe("format", "pt");
  file_.write(path);
}

CONVOY_FUNCTION LoadedWeights WeightLoader::report() {
  report_.unexpected.assign(left_.begin(), left_.end());
  return report_;
}

CONVOY_FUNCTION void require_complete(const LoadedWeights& weights, const std::filesystem::path& path) {
  if (!weights.of_other_shape.empty()) {
    const OfOtherShape& first = weights.of_other_shape[0];
    fail<CheckpointError>(path.string(), ": the tensor ", io::cited(first.name), " has shape ", first.in_file,
                          ", expected ", first.in_model);
  }
  if (!weights.missing.empty())
    fail<CheckpointError>(path.string(), " lacks ", weights.missing.size(),
                          " of the model's tensors, for example ", io::cited(weights.missing[0]));
  if (!weights.unexpected.empty())
    fail<CheckpointError>(path.string(), " has ", counted(weights.unexpected.size(), "tensor"),
                          " that the model does not have, for example ", io::cited(weights.unexpected[0]));
}
#endif

}  // namespace convoy::train
