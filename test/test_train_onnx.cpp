// TIMEOUT: 300
// Models in ONNX: their structure, what is refused, and, if CONVOY_ONNXRUNTIME names a Python that has
// onnxruntime, what onnxruntime computes from them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_operations.hpp"
#include "exec_random_graphs.hpp"
#include "sanitized.hpp"
#include "skip.hpp"
#include "temporary_folder.hpp"
#include "train_support.hpp"
#include <convoy/io/protobuf.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/convnet.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>
#include <convoy/train/onnx.hpp>

using namespace convoy;
using namespace train_test;
using exec::Reference;
using graph::Builder;
using graph::Tensor;
namespace fs = std::filesystem;

namespace {

using Names = std::vector<std::string>;

const Blobs training(50);

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What a file says, as far as tests ask.
struct Seen {
  std::map<std::string, std::string> inputs, outputs;  ///< the type and shape of each
  std::map<std::string, std::string> tensors;          ///< weights and constants: the shape
  std::map<std::string, std::string> values;           ///< of tensors: their bytes
  Names operations;
  std::string problem;  ///< what onnx.proto forbids; empty if nothing
};

std::string value_info(io::ProtobufReader info, std::string& name) {
  std::string text;
  for (; !info.at_end();) {
    info.next();
    if (info.field() == 1) {
      name = info.bytes();
      continue;
    }
    io::ProtobufReader type = info.message();
    type.next();
    io::ProtobufReader tensor = type.message();
    while (!tensor.at_end()) {
      tensor.next();
      if (tensor.field() == 1) {
        text += std::to_string(tensor.varint());
        continue;
      }
      for (io::ProtobufReader shape = tensor.message(); !shape.at_end();) {
        shape.next();
        io::ProtobufReader extent = shape.message();
        extent.next();
        text += extent.field() == 2 ? concat(' ', extent.bytes()) : concat(' ', extent.varint());
      }
    }
  }
  return text;
}

Seen seen_in(const fs::path& path) {
  Seen seen;
  const std::string bytes = bytes_of(path);
  std::set<std::string> defined, nodes;
  std::vector<std::pair<Names, Names>> edges;  // the inputs and the outputs of each node
  const auto define = [&](const std::string& name) {
    if (!defined.insert(name).second) seen.problem = "two values are called " + name;
  };
  for (io::ProtobufReader model(bytes, path.native()); !model.at_end();) {
    model.next();
    if (model.field() != 7) {
      model.skip();
      continue;
    }
    for (io::ProtobufReader graph = model.message(); !graph.at_end();) {
      graph.next();
      if (graph.field() == 2) {
        graph.skip();
        continue;
      }
      const int kind = graph.field();
      io::ProtobufReader part = graph.message();
      std::string name, text;
      if (kind == 11 || kind == 12) {
        text = value_info(part, name);
        (kind == 11 ? seen.inputs : seen.outputs)[name] = text;
        if (kind == 11) define(name);
      } else if (kind == 5) {
        std::string data;
        while (!part.at_end()) {
          part.next();
          if (part.field() == 1)
            text += concat(text.empty() ? "" : " ", part.varint());
          else if (part.field() == 8)
            name = part.bytes();
          else if (part.field() == 9)
            data = part.bytes();
          else
            part.skip();
        }
        define(name);
        seen.tensors[name] = text;
        seen.values[name] = data;
      } else {
        REQUIRE(kind == 1);
        auto& [from, to] = edges.emplace_back();
        while (!part.at_end()) {
          part.next();
          if (part.field() == 1)
            from.emplace_back(part.bytes());
          else if (part.field() == 2)
            to.emplace_back(part.bytes());
          else if (part.field() == 3 && !nodes.emplace(part.bytes()).second)
            seen.problem = "two nodes have one name";
          else if (part.field() == 4)
            seen.operations.emplace_back(part.bytes());
          else if (part.field() != 3)
            part.skip();
        }
      }
    }
  }
  for (const auto& [from, to] : edges) {
    for (const std::string& value : from)
      if (defined.count(value) == 0) seen.problem = value + " is read before it is defined";
    for (const std::string& value : to) define(value);
  }
  for (const auto& [output, type] : seen.outputs)
    if (defined.count(output) == 0) seen.problem = "nothing defines the output " + output;
  return seen;
}

/// Models with random weights in a folder, each with a batch and what Reference computes from it.
class Files {
 public:
  explicit Files(const fs::path& folder) : folder_(folder) {}

  void add(const std::string& name, const Plan& plan, std::uint64_t seed) {
    const int rows = 1 + static_cast<int>(seed % 3);
    Reference<float> exec(plan, rows);
    exec_compare::randomize(exec, plan, Philox{seed, 1});
    train::save_onnx(exec, plan, folder_ / (name + ".onnx"));
    CHECK(seen_in(folder_ / (name + ".onnx")).problem == "");

    const exec_compare::Batch batch(plan, rows, Philox{seed, 2});
    exec.forward(batch, {.mode = exec::Mode::evaluate});
    io::SafetensorsWriter file;
    std::size_t field = 0;
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      const void* const from = batch.view().fields[field++];
      std::vector<float> values(static_cast<std::size_t>(rows * node.shape.size()));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = node.dtype == DType::i32  ? static_cast<float>(static_cast<const i32*>(from)[i])
                    : node.dtype == DType::u8 ? static_cast<float>(static_cast<const u8*>(from)[i])
                                              : static_cast<const float*>(from)[i];
      file.add(concat("inputs.", node.name), of_batch(rows, node.shape), values);
    }
    for (std::size_t k = 0; k < plan.outputs.size(); ++k)
      file.add(concat("outputs.", plan.outputs[k].name),
               of_batch(rows, plan.node(plan.outputs[k].node).shape), exec.output(static_cast<int>(k)));
    exec.result();
    file.write(folder_ / (name + ".safetensors"));
  }

 private:
  static Shape of_batch(int rows, const Shape& row) {
    Shape shape(rows);
    for (int i = 0; i < row.rank; ++i) shape.extent[shape.rank++] = row[i];
    return shape;
  }
  fs::path folder_;
};

/// For each node, whether it needs neither a label, a loss nor a custom operation.
std::vector<bool> written(const Plan& plan) {
  std::vector<bool> all;
  for (int n = 0; n < plan.graph.count.nodes; ++n) {
    const std::string_view operation = graph::name_of(plan.node(n));
    bool one = true;
    for (const char* without : {"label", "custom", "mse_loss", "bce_with_logits", "cross_entropy"})
      one = one && operation != without;
    for (int i = 0; i < plan.node(n).inputs; ++i)
      one = one && all[static_cast<std::size_t>(plan.graph.input(n, i))];
    all.push_back(one);
  }
  return all;
}

/// Whether ONNX has a form for a plan, in which no output is called as an input.
bool is_writable(const Plan& plan) {
  const std::vector<bool> nodes = written(plan);
  for (const graph::Output& output : plan.outputs) {
    if (!nodes[static_cast<std::size_t>(output.node)]) return false;
    const int same = plan.find(output.name.view());
    if (same >= 0 && plan.node(same).given) return false;
  }
  return !plan.outputs.empty();
}

/// Makes every value of a random graph that can be written an output.
class Everything {
 public:
  explicit Everything(std::uint64_t seed) : seed_(seed) {
    const DynamicPlan plan([&](auto& g) { define(g); });
    const std::vector<bool> nodes = written(plan);
    for (const Tensor& x : values_) outputs_.push_back(nodes[static_cast<std::size_t>(x.node)]);
  }
  void define(Builder& g) {
    exec_random_graphs::Graph<exec_random_graphs::Customs> graph(g, Philox{seed_, 79});
    graph.define();
    values_ = graph.values();
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (outputs_[i]) g.output(concat("value", i), values_[i]);
  }

 private:
  std::uint64_t seed_;
  std::vector<Tensor> values_;
  std::vector<bool> outputs_;
};

/// Everything that the forms can get: each operation, random graphs, and the models.
void add_all(Files& files) {
  std::uint64_t seed = 0;
  int number = 0;
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    if (is_writable(plan)) files.add(concat("operation", number++), plan, ++seed);
  }
  CHECK(number > 60);
  int graphs = 0;
  for (seed = 1; seed <= (sanitized ? 20 : 120); ++seed) {
    Everything everything(seed);
    const DynamicPlan plan([&](auto& g) { everything.define(g); });
    INFO("seed ", seed, "\n", exec_compare::Model::describe(plan));
    if (!is_writable(plan)) continue;
    files.add(concat("graph", seed), plan, seed);
    ++graphs;
  }
  CHECK(graphs > (sanitized ? 10 : 60));
  const auto add = [&](const std::string& name, const std::function<void(Builder&)>& define) {
    INFO(name);
    files.add(name, DynamicPlan(define), ++seed);
  };
  add("resnet", [](Builder& g) { models::define_resnet(g, {.in = {3, 33, 40}, .classes = 7}); });
  add("convnet", [](Builder& g) { models::define_convnet(g, {{1, 28, 28}, 10, DType::u8}); });
  add("bert", [](Builder& g) {
    models::define_bert(g, {.layers = 2,
                            .width = 32,
                            .heads = 4,
                            .ffn = 48,
                            .length = 12,
                            .vocabulary = 40,
                            .predictions = 3,
                            .positions = 16,
                            .logits = true});
  });
  add("gpt2", [](Builder& g) {
    models::define_gpt2(g, {.layers = 2,
                            .width = 32,
                            .heads = 4,
                            .length = 12,
                            .vocabulary = 40,
                            .positions = 12,
                            .logits = true});
  });
  add("transformer", [](Builder& g) {
    models::define_transformer(
        g, {.layers = 2, .width = 32, .heads = 4, .ffn = 48, .length = 12, .vocabulary = 40, .classes = 5});
  });
}

std::string refused(const std::function<void(Builder&)>& define) {
  const DynamicPlan plan(define);
  try {
    io::onnx::Model model(plan);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("onnx: every operation, random graphs and all models are well formed and computed by onnxruntime") {
  const TemporaryFolder folder;
  Files files(folder.path);
  add_all(files);
  const char* const python = std::getenv("CONVOY_ONNXRUNTIME");
  if (python == nullptr) SKIP("CONVOY_ONNXRUNTIME is not set");
  const fs::path script = fs::path(CONVOY_FIXTURE_DIR).parent_path() / "onnx" / "check.py";
  CHECK(std::system(
            concat('\'', python, "' '", script.string(), "' '", folder.path.string(), '\'').c_str()) == 0);
}

TEST_CASE("onnx: a file holds the inputs, the outputs and the weights by their names") {
  const TemporaryFolder folder;
  const DynamicPlan plan([](Builder& g) {
    Tensor x = g.input("image", {2, 5, 5}, {.dtype = DType::u8});
    const Tensor unused = g.input("unused", {4});
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 3, .bias = true, .name = "conv"}), {.name = "bn"}));
    const Tensor y =
        g.embedding(g.input("id", {}, {.dtype = DType::i32}), {.entries = 6, .features = 4, .name = "table"});
    x = g.linear(g.dropout(g.flatten(x)), {.features = 4, .name = "fc"});
    g.output("pair", g.concat({x, y}));
    g.output("again", y);
    g.output("once", y);
    x = g.linear(g.add(x, unused), {.features = 3, .name = "aside"});
    g.loss(g.cross_entropy(x, g.label("label", 3)));
  });
  Reference<float> exec(plan, 1);
  exec_compare::randomize(exec, plan, Philox{3, 1});
  train::save_onnx(exec, plan, folder.path / "file");
  const Seen seen = seen_in(folder.path / "file");
  CHECK(seen.problem == "");
  using Map = std::map<std::string, std::string>;
  CHECK(seen.inputs == Map{{"image", "2 batch 2 5 5"}, {"id", "6 batch"}});
  CHECK(seen.outputs == Map{{"again", "1 batch 4"}, {"once", "1 batch 4"}, {"pair", "1 batch 8"}});
  CHECK(seen.operations == Names{"Cast", "Mul", "Add", "Conv", "BatchNormalization", "Relu", "Gather",
                                 "Flatten", "Gemm", "Concat", "Identity", "Identity", "Identity"});
  for (const auto& [name, shape] :
       Map{{"conv.weight", "3 2 3 3"}, {"conv.bias", "3"}, {"bn.running_var", "3"}, {"fc.weight", "4 75"}})
    CHECK(seen.tensors.at(name) == shape);
  CHECK(seen.tensors.count("aside.weight") == 0);
  std::vector<float> weights(6 * 4);
  exec.read_parameter(exec_compare::parameter_named(plan, "table.weight"), weights);
  CHECK(seen.values.at("table.weight") ==
        std::string_view(reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float)));
}

TEST_CASE("onnx: models that no file can hold are refused") {
  const auto row = [](Builder& g) { return g.input("row", {4}); };
  CHECK(refused([&](Builder& g) {
          const Tensor x = g.linear(row(g), {.features = 3});
          g.loss(g.cross_entropy(x, g.label("label", 3)));
        }) == "onnx: the model has no outputs");
  CHECK(refused([&](Builder& g) {
          const Tensor x = g.custom(exec_compare::Swish{}, row(g));
          g.output("sum", g.add(x, x));
          g.loss(g.mse_loss(x, x));
        }) == "onnx: the output 'sum' needs 'custom.0' (custom), which cannot be written in ONNX");
  CHECK(refused([&](Builder& g) {
          const Tensor given = row(g),
                       x = g.mse_loss(g.linear(given, {.features = 4}), given, {.name = "error"});
          g.output("fine", g.linear(g.input("other", {4}), {.features = 2}));
          g.output("distance", x);
          g.loss(x);
        }) == "onnx: the output 'distance' needs 'error' (mse_loss), which cannot be written in ONNX");
  const auto named = [&](const char* input, const char* output) {
    return refused([&](Builder& g) {
      const Tensor x = g.linear(g.input(input, {4}), {.features = 4, .name = "fc"});
      g.output(output, x);
      g.loss(g.mse_loss(x, x));
    });
  };
  const auto embedded = [](int entries) {
    return refused([&](Builder& g) {
      const Tensor x =
          g.embedding(g.input("id", {}, {.dtype = DType::i32}), {.entries = entries, .features = 1024});
      g.output("result", x);
      g.loss(g.mse_loss(x, x));
    });
  };
  CHECK(embedded((1 << 19) - 1) == "");
  CHECK(embedded(1 << 19) ==
        "onnx: the model's weights take 2147483648 bytes, and a file of ONNX has less than 2 GiB");
  CHECK(named("row", "result") == "");
  CHECK(named("row", "fc") == "");
  CHECK(named("row/MatMul", "fc/Gemm") == "");
  CHECK(named("row", "row") == "onnx: two of the model's inputs, outputs and weights are named 'row'");
  CHECK(named("fc.bias", "result") ==
        "onnx: two of the model's inputs, outputs and weights are named 'fc.bias'");
}

TEST_CASE("onnx: a model is written only with all of its weights") {
  const TemporaryFolder folder;
  const DynamicPlan plan([](Builder& g) {
    const Tensor x = g.linear(g.input("row", {3}), {.features = 2, .name = "fc"});
    g.output("result", x);
    g.loss(g.mse_loss(x, x));
  });
  const fs::path path = folder.path / "file";
  io::onnx::Model model(plan);
  const std::vector<float> values(6);
  model.weight("fc.weight", {2, 3}, values);
  model.weight("of.another.model", {2, 3}, values);
  CHECK_THROWS_WITH_AS(model.write(path),
                       (path.string() + " cannot be written: 'fc.bias' has no values").c_str(),
                       CheckpointError);
  model.weight("fc.bias", {2}, std::span(values).first(2));
  model.write(path);
  CHECK(seen_in(path).problem == "");
  CHECK_THROWS_WITH_AS(model.write("/proc/none/file"),
                       "/proc/none/file cannot be written: No such file or directory", CheckpointError);
}

TEST_CASE("onnx: a trainer of several ranks writes its trained model once, whoever holds which state") {
  const TemporaryFolder folder;
  std::vector<std::string> told(3);
  transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
    Trainer<Normed, optim::Adam, comm::Sharded<comm::Ring<transport::Threads>>, Reference<float>> trainer{
        {.batch = 10}, endpoint};
    trainer.fit(training, {.steps = 2, .log = nullptr});
    train::save_onnx(trainer, folder.path / "model.onnx");
    train::save_weights(trainer, folder.path / "model.safetensors");
    try {
      train::save_onnx(trainer, "/proc/none/model");
    } catch (const CheckpointError& error) {
      told[static_cast<std::size_t>(trainer.rank())] = error.what();
    }
  });
  CHECK(told == Names{"/proc/none/model cannot be written: No such file or directory",
                      "rank 0 could not write /proc/none/model", "rank 0 could not write /proc/none/model"});
  const Seen seen = seen_in(folder.path / "model.onnx");
  CHECK(seen.problem == "");
  const io::Safetensors weights(folder.path / "model.safetensors");
  for (const auto& [name, tensor] : weights.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements));
    weights.read_part(name, 0, values);
    CHECK(seen.values.at(name) ==
          std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }
}
