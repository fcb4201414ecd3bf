// Computes a model's outputs for inputs from a file, with weights of torchvision, Hugging Face or convoy. Can
// write the weights in the same form or in another one, and the whole model in ONNX.
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/command_line.hpp"
#include "common/existing.hpp"
#include "common/gpt2_weights.hpp"
#include "common/numbers.hpp"
#include "common/printed.hpp"
#include "common/separate_files.hpp"
#include <convoy/core/error.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/parallel/processors.hpp>
#include <convoy/train/onnx.hpp>
#include <convoy/train/weights.hpp>

using namespace convoy;

namespace {

struct Wanted {
  std::string model = "resnet18", weights, inputs, outputs, save, save_form = "as-read", onnx;
  int layers = 12, width = 768, heads = 12, ffn = 3072, length = 128, vocabulary = 0, positions = 0,
      predictions = 20, threads = 0;
};

DynamicPlan plan_of(const Wanted& w) {
  const auto or_else = [](int given, int published) { return given > 0 ? given : published; };
  if (w.model == "bert")
    return DynamicPlan([&](auto& g) {
      models::define_bert(g, {.layers = w.layers,
                              .width = w.width,
                              .heads = w.heads,
                              .ffn = w.ffn,
                              .length = w.length,
                              .vocabulary = or_else(w.vocabulary, 30522),
                              .predictions = w.predictions,
                              .positions = or_else(w.positions, 512),
                              .logits = true});
    });
  if (w.model == "gpt2")
    return DynamicPlan([&](auto& g) {
      models::define_gpt2(g, {.layers = w.layers,
                              .width = w.width,
                              .heads = w.heads,
                              .length = w.length,
                              .vocabulary = or_else(w.vocabulary, 50257),
                              .positions = or_else(w.positions, 1024),
                              .logits = true});
    });
  return DynamicPlan([](auto& g) { models::define_resnet(g, {}); });
}

/// A field of a batch, as an Exec reads it.
struct Field {
  std::vector<float> floats;
  std::vector<i32> integers;
  const void* data() const {
    return integers.empty() ? static_cast<const void*>(floats.data()) : integers.data();
  }
};

/// How many rows the tensors of a file have.
int rows_of(const io::Safetensors& file) {
  std::optional<std::int64_t> rows;
  for (const auto& [name, tensor] : file.tensors()) {
    const std::int64_t own = tensor.shape.empty() ? 0 : tensor.shape[0];
    if (own < 1 || own != rows.value_or(own))
      fail(file.path().string(), ": the tensor '", name, "' has ", counted(own, "row"), ", expected ",
           rows ? concat(*rows, ", as the other tensors have") : "at least 1");
    rows = own;
  }
  if (!rows) fail(file.path().string(), " holds no tensors");
  return static_cast<int>(*rows);
}

/// An input is read from the file, which holds ids as floats, too. A label gets a value that no output
/// depends on.
Field field_of(const Plan& plan, int n, const io::Safetensors& file, int rows) {
  const graph::Node& node = plan.node(n);
  Field field;
  const auto count = static_cast<std::size_t>(rows * node.shape.size());
  if (graph::is<graph::LabelInput>(node)) {
    const int ignored = plan.graph.attributes<graph::LabelInput>(n).ignore;
    field.integers.assign(count, ignored != graph::no_label ? ignored : 0);
    return field;
  }
  field.floats.resize(count);
  Shape shape(rows);
  for (int i = 0; i < node.shape.rank; ++i) shape.extent[shape.rank++] = node.shape[i];
  file.read(node.name.view(), shape, field.floats);
  if (node.dtype != DType::i32) return field;
  for (const float value : field.floats) {
    constexpr float most = 1 << 24;  // above it not every whole number is a float
    if (value != std::trunc(value) || !(std::abs(value) <= most))
      fail(file.path().string(), ": the tensor '", node.name.view(), "' holds ", value,
           ", expected whole numbers up to 2^24");
    field.integers.push_back(static_cast<i32>(value));
  }
  return field;
}

/// Writes the outputs for `rows` rows of inputs, for which `exec` was made.
void compute(const Wanted& w, exec::Host<f32>& exec, const Plan& plan, const io::Safetensors& inputs,
             int rows) {
  std::vector<Field> fields;
  for (int n = 0; n < plan.graph.count.nodes; ++n)
    if (plan.node(n).given) fields.push_back(field_of(plan, n, inputs, rows));
  std::vector<const void*> columns;
  for (const Field& field : fields) columns.push_back(field.data());
  exec.forward({columns, rows}, {.mode = exec::Mode::evaluate});
  io::SafetensorsWriter outputs;
  for (std::size_t k = 0; k < plan.outputs.size(); ++k) {
    const Shape& own = plan.node(plan.outputs[k].node).shape;
    Shape shape(rows);
    for (int i = 0; i < own.rank; ++i) shape.extent[shape.rank++] = own[i];
    outputs.add(std::string(plan.outputs[k].name.view()), shape, exec.output(static_cast<int>(k)));
  }
  exec.result();
  outputs.write(w.outputs);
}

void infer(const Wanted& w) {
  examples::expect_separate_files({{"--weights", w.weights}, {"--inputs", w.inputs}},
                                  {{"--outputs", w.outputs}, {"--save", w.save}, {"--onnx", w.onnx}});
  const std::string& weights = examples::existing("--weights", w.weights);
  const DynamicPlan made = plan_of(w);
  const Plan& plan = made;
  std::optional<io::Safetensors> inputs;
  if (!w.inputs.empty()) inputs.emplace(examples::existing("--inputs", w.inputs));
  const int rows = inputs ? rows_of(*inputs) : 1;
  exec::Host<f32> exec(plan, rows, {.threads = w.threads > 0 ? w.threads : processors()});
  const train::WeightsOptions form =
      w.model == "gpt2" ? examples::gpt2_form_of(weights) : train::WeightsOptions{};
  train::load_weights(exec, plan, weights, train::Match::complete, form);
  if (inputs) compute(w, exec, plan, *inputs, rows);
  if (!w.save.empty())
    train::save_weights(exec, plan, w.save,
                        w.save_form == "as-read"                            ? form
                        : w.save_form == "huggingface" && w.model == "gpt2" ? examples::gpt2_of_hugging_face
                                                                            : train::WeightsOptions{});
  if (!w.onnx.empty()) train::save_onnx(exec, plan, w.onnx);
}

int run(int argc, char** argv) {
  Wanted w;
  CLI::App app{"Computes a model's outputs for inputs from a safetensors file"};
  app.option_defaults()->always_capture_default();
  app.add_option("--model", w.model,
                 "Model; resnet18 takes images of 224x224 and has 1000 classes, as torchvision's")
      ->check(CLI::IsMember({"resnet18", "bert", "gpt2"}));
  app.add_option("--weights", w.weights, "Safetensors file of the weights, from PyTorch or convoy")
      ->required();
  CLI::Option* const inputs =
      app.add_option("--inputs", w.inputs, "Safetensors file of the model's inputs by name, all as floats");
  inputs->needs(
      app.add_option("--outputs", w.outputs, "Write the outputs to this safetensors file")->needs(inputs));
  app.add_option("--onnx", w.onnx, "Write the model and its weights to this file in ONNX");
  CLI::Option* const save = app.add_option("--save", w.save, "Write the weights to this safetensors file");
  app.add_option("--save-form", w.save_form,
                 "Form of --save's file: that in which the weights were read, convoy's, or Hugging Face's, "
                 "which differs from convoy's for gpt2 alone")
      ->check(CLI::IsMember({"as-read", "convoy", "huggingface"}))
      ->needs(save);
  for (auto [name, value, about] : {std::tuple{"--layers", &w.layers, "Layers of a Transformer"},
                                    {"--width", &w.width, "Features per token"},
                                    {"--heads", &w.heads, "Number of attention heads"},
                                    {"--ffn", &w.ffn, "Hidden features of BERT's feed-forward layers"},
                                    {"--length", &w.length, "Tokens per row"},
                                    {"--predictions", &w.predictions, "Masked positions per row of BERT"}})
    app.add_option(name, *value, about)->check(examples::positive());
  app.add_option("--vocabulary", w.vocabulary, "Vocabulary size (0: the published model's)")
      ->check(examples::not_negative());
  app.add_option("--positions", w.positions, "Rows of the position embedding (0: the published model's)")
      ->check(examples::not_negative());
  app.add_option("--threads", w.threads, "Number of threads (0: one per available processor)")
      ->check(examples::not_negative());
  if (const auto code = examples::parse_command_line(app, argc, argv)) return *code;
  const auto refuse = [&](std::initializer_list<const char*> sizes) {
    for (const char* size : sizes)
      if (app.count(size) > 0) fail<ConfigError>(w.model, " has no ", size);
  };
  if (w.inputs.empty() && w.save.empty() && w.onnx.empty())
    fail<ConfigError>("there is nothing to do: pass --inputs and --outputs, --save, or --onnx");
  if (w.model != "bert") refuse({"--ffn", "--predictions"});
  if (w.model == "resnet18")
    refuse({"--layers", "--width", "--heads", "--length", "--vocabulary", "--positions"});
  infer(w);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const int code = run(argc, argv);
  examples::expect_printed();
  return code;
} catch (const std::exception& error) {
  std::cerr << "infer: " << error.what() << std::endl;
  return 1;
}
