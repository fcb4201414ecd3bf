// Models in ONNX: what a trained model computes, for other programs to run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/io/onnx/model.hpp>
#include <convoy/train/weights.hpp>

namespace convoy::train {

/// A state visitor that gives a model its weights.
class OnnxWeights {
 public:
  explicit OnnxWeights(io::onnx::Model& model) : model_(&model) {}
  void tensor(std::string_view name, const Shape& shape, std::span<float> values) {
    if (const std::string_view weights = name_of_weights(name); !weights.empty())
      model_->weight(weights, shape, values);
  }
  void counter(std::string_view, std::int64_t&) {}
  void real(std::string_view, double&) {}

 private:
  io::onnx::Model* model_;
};

/// The trained model in ONNX (opset 17): the inputs that its outputs need, these outputs, and its weights in
/// f32 by their PyTorch names. All workers must call it together, and any of them may write the result. May
/// be called while servers serve. Throws ModelError as io::onnx::Model does.
template <class Trainer>
io::onnx::Model onnx_of(Trainer& trainer) {
  io::onnx::Model model(trainer.plan);
  OnnxWeights weights(model);
  trainer.visit_weights(weights, Visit::read);
  return model;
}

/// Writes that as a file. All workers must call it together; rank 0 writes. Throws CheckpointError on all
/// workers if the file cannot be written.
template <class Trainer>
void save_onnx(Trainer& trainer, const std::filesystem::path& path) {
  const io::onnx::Model model = onnx_of(trainer);
  write_on_rank_0(trainer, path, [&] { model.write(path); });
}

/// The same for an Exec without a trainer.
template <exec::Exec Exec>
void save_onnx(Exec& exec, const Plan& plan, const std::filesystem::path& path) {
  io::onnx::Model model(plan);
  OnnxWeights weights(model);
  visit_weights(exec, plan, AnyVisitor(weights), Visit::read);
  model.write(path);
}

}  // namespace convoy::train
