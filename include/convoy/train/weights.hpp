// Weights: parameters and running statistics of a trainer in a safetensors file, by their PyTorch names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/checkpoint.hpp>

namespace convoy::train {

/// What loading found.
struct LoadedWeights {
  int loaded = 0;                           ///< tensors
  std::vector<std::string> missing;         ///< of the model, not in the file
  std::vector<std::string> unexpected;      ///< in the file, not of the model
  std::vector<std::string> of_other_shape;  ///< in both, but not of one shape
  bool whole() const { return missing.empty() && unexpected.empty() && of_other_shape.empty(); }
};

/// Fills weights that it sees from a file, as far as they match.
class WeightLoader {
 public:
  explicit WeightLoader(const std::filesystem::path& path);
  void tensor(std::string_view name, const Shape& shape, std::span<float> values);
  void counter(std::string_view, std::int64_t&) {}
  /// Call it last.
  LoadedWeights report();

 private:
  io::Safetensors file_;
  LoadedWeights report_;
  std::set<std::string, std::less<>> left_;  // names that nobody has asked for
};

/// Throws CheckpointError, which names a tensor, unless everything matched.
void require_whole(const LoadedWeights& weights, const std::filesystem::path& path);

/// Writes the trainer's weights; torch's `load_state_dict(safetensors.torch.load_file(path))` reads them. All
/// ranks call it together, rank 0 writes. Throws Error if the file cannot be written.
template <class Trainer>
void save_weights(Trainer& trainer, const std::filesystem::path& path) {
  Snapshot snapshot;
  Capture capture(snapshot, trainer.rank() == 0);
  trainer.visit_state(capture, Visit::read);
  snapshot.model.describe("format", "pt");
  if (trainer.rank() == 0) snapshot.model.write(path);
  trainer.comm().barrier();
}

enum class Match : bool { whole, partial };

/// Gives the trainer the weights of a file; the optimizer's state stays. All ranks call it together with the
/// same file. Match::partial takes what fits (a new head, say) and says what did not; else all must, or
/// CheckpointError is thrown and nothing was changed. PyTorch's `num_batches_tracked` is nobody's.
template <class Trainer>
LoadedWeights load_weights(Trainer& trainer, const std::filesystem::path& path, Match match = Match::whole) {
  if (match == Match::whole) {
    WeightLoader rehearsal(path);
    trainer.visit_state(rehearsal, Visit::read);
    require_whole(rehearsal.report(), path);
  }
  WeightLoader loader(path);
  trainer.visit_state(loader, Visit::write);
  return loader.report();
}

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION WeightLoader::WeightLoader(const std::filesystem::path& path) : file_(path) {
  for (const auto& [name, tensor] : file_.tensors())
    if (!name.ends_with("num_batches_tracked")) left_.insert(name);
}

CONVOY_FUNCTION void WeightLoader::tensor(std::string_view name, const Shape& shape,
                                          std::span<float> values) {
  const std::string_view weights = name_of_weights(name);
  if (weights.empty()) return;
  const auto* tensor = file_.find(weights);
  left_.erase(std::string(weights));
  if (tensor == nullptr) {
    report_.missing.emplace_back(weights);
  } else if (!tensor->has(shape)) {
    report_.of_other_shape.emplace_back(weights);
  } else {
    file_.read(weights, shape, values);
    ++report_.loaded;
  }
}

CONVOY_FUNCTION LoadedWeights WeightLoader::report() {
  report_.unexpected.assign(left_.begin(), left_.end());
  return report_;
}

CONVOY_FUNCTION void require_whole(const LoadedWeights& weights, const std::filesystem::path& path) {
  if (!weights.of_other_shape.empty())
    fail<CheckpointError>(path.string(), ": the tensor '", weights.of_other_shape[0],
                          "' is not of the shape that the model's has");
  if (!weights.missing.empty())
    fail<CheckpointError>(path.string(), " has no '", weights.missing[0], "' and ",
                          weights.missing.size() - 1, " others of the model's tensors");
  if (!weights.unexpected.empty())
    fail<CheckpointError>(path.string(), " has '", weights.unexpected[0], "' and ",
                          weights.unexpected.size() - 1, " others that the model does not have");
}
#endif

}  // namespace convoy::train
