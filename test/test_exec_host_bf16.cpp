// NEEDS: host
// TIMEOUT: 300
// ALSO: ONEDNN_MAX_CPU_ISA=AVX2
// Host with products in bf16, emulated by oneDNN where the processor has no instructions for them: the
// rounding error of each operation that multiplies, that nothing else is rounded, the same bits in every run,
// and one sentence where there are none.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_distance.hpp"
#include "exec_models.hpp"
#include "exec_operations.hpp"
#include "sanitized.hpp"
#include "skip.hpp"
#include <convoy/exec/host/backend.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/exec/host/kernel/weight_blocks.hpp>
#include <convoy/exec/host/linear_cross_entropy.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using graph::Builder;
using graph::Tensor;

namespace {

bool can_multiply() { return exec::host::has_isa(dnnl_cpu_isa_avx512_core); }
const std::string lacking = "oneDNN has no products in bf16 on this processor, which lacks AVX-512";

class Rounding : public exec::Host<bf16> {
 public:
  Rounding(const Plan& plan, int batch, Options options)
      : Host(plan, batch, (options.products = exec::HostProducts::bf16, options.logits_mib = 1, options)) {}
};

/// The largest error of an output or a gradient, relative to the tensor's norm.
template <class E>
double largest_error(const Plan& plan, std::uint64_t seed, const exec::HostOptions& options) {
  constexpr int rows = 5;
  exec::Reference<double> reference(plan, rows);
  E tested(plan, rows, options);
  exec_compare::randomize(reference, plan, Philox{seed, 1});
  exec_compare::randomize(tested, plan, Philox{seed, 1});
  const exec_compare::Batch batch(plan, rows, Philox{seed, 2});
  exec_compare::forward(reference, batch);
  exec_compare::forward(tested, batch);
  double largest = 0;
  const auto compare = [&](const auto& seen, const auto& expected) {
    double all = 0, off = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto e = static_cast<double>(expected[i]), s = static_cast<double>(seen[i]);
      all += e * e;
      off += (s - e) * (s - e);
    }
    if (all > 0 || off > 0) largest = std::max(largest, std::sqrt(off / all));
  };
  for (int k = 0; k < static_cast<int>(plan.outputs.size()); ++k)
    compare(tested.output(k), reference.output(k));
  exec_compare::backward(reference, plan, 0.2f);
  exec_compare::backward(tested, plan, 0.2f);
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p)
    compare(exec_compare::gradient(tested, plan, p), exec_compare::gradient(reference, plan, p));
  return largest;
}

struct Case {
  std::string name;
  std::function<void(Builder&)> define;
  bool rounds = true;
};

/// An operation on an image whose gradient is computed and that is not an output of oneDNN, so that only the
/// operation rounds.
void around(Builder& g, Shape image, const std::function<Tensor(Builder&, Tensor)>& operation) {
  const Tensor y = operation(g, g.batch_norm(g.input("image", image)));
  g.output("value", y);
  g.loss(g.mse_loss(y, g.input("target", y.shape)));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, Shape image, graph::Conv2dOptions o, bool rounds = true) {
    all.push_back(
        {name, [=](Builder& g) { around(g, image, [=](Builder& to, Tensor x) { return to.conv2d(x, o); }); },
         rounds});
  };
  add("3x3 of blocks of channels", {32, 9, 9}, {.channels = 64});
  add("3x3 of a large map", {16, 14, 14}, {.channels = 16});
  add("3x3 of a large map, by Winograd's algorithm", {32, 9, 14}, {.channels = 64});
  add("3x3 of odd channels, with a bias", {19, 6, 7}, {.channels = 37, .bias = true});
  add("3x3 of stride 2", {32, 14, 14}, {.channels = 32, .stride = 2});
  add("1x1", {32, 7, 7}, {.channels = 64, .kernel = 1, .padding = 0});
  add("1x1 of stride 2", {32, 8, 8}, {.channels = 32, .kernel = 1, .stride = 2, .padding = 0});
  add("5x5", {16, 8, 8}, {.channels = 16, .kernel = 5, .padding = 2});
  add("7x7 of an image of 3 channels", {3, 32, 32}, {.channels = 64, .kernel = 7, .stride = 2, .padding = 3});
  add("7x7 of an image of 1 channel", {1, 28, 28}, {.channels = 64, .kernel = 7, .stride = 2, .padding = 3});
  add("dilated", {16, 9, 9}, {.channels = 16, .padding = 2, .dilation = 2});
  add("groups", {32, 7, 7}, {.channels = 32, .groups = 2});
  add("a group for each channel", {32, 7, 7}, {.channels = 32, .groups = 32});
  add("frozen", {32, 7, 7}, {.channels = 32, .frozen = true});
  add("3x3 of a tiny map, which convoy multiplies", {32, 4, 4}, {.channels = 32}, false);
  all.push_back({"a convolution of bytes and of data", [](Builder& g) {
                   const Tensor x = g.input("bytes", {3, 9, 8}, {.dtype = DType::u8});
                   const Tensor y = g.add(g.conv2d(x, {.channels = 16}),
                                          g.conv2d(g.input("data", {16, 9, 8}), {.channels = 16}));
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", y.shape)));
                 }});
  // The image's gradient has four parts; one of them is first written separately from the others.
  all.push_back({"an image in bf16 that three convolutions read and an addition", [](Builder& g) {
                   const graph::Conv2dOptions options{.channels = 16};
                   const auto normed = [&](Tensor x) { return g.batch_norm(g.conv2d(x, options)); };
                   const Tensor x = normed(g.input("image", {16, 9, 8}));
                   const Tensor y = g.add(g.add(normed(x), x), g.add(normed(x), normed(x)));
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", y.shape)));
                 }});
  all.push_back({"an image in bf16 out of a pooling", [](Builder& g) {
                   const Tensor x = g.avg_pool(g.batch_norm(g.input("image", {16, 9, 8})), {.kernel = 2});
                   const Tensor y = g.batch_norm(g.conv2d(x, {.channels = 16}));
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", y.shape)));
                 }});
  // Convoy's own convolution computes in f32, and the batch norm behind it writes bf16.
  all.push_back({"a tiny map in bf16 into a pooling", [](Builder& g) {
                   const Tensor x = g.conv2d(g.batch_norm(g.input("image", {32, 4, 4})), {.channels = 32});
                   const Tensor y = g.avg_pool(g.batch_norm(x), {.kernel = 2});
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", y.shape)));
                 }});
  all.push_back({"an image in bf16 out of a convolution with a bias", [](Builder& g) {
                   const Tensor x = g.conv2d(g.input("image", {1, 12, 12}), {.channels = 16, .bias = true});
                   const Tensor y = g.avg_pool(x, {.kernel = 3, .stride = 2, .padding = 1});
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", y.shape)));
                 }});
  for (const int positions : {0, 7})
    for (const bool gelu : {false, true})
      all.push_back({concat("linear at ", positions, " positions, gelu ", gelu), [=](Builder& g) {
                       const Shape shape = positions > 0 ? Shape{positions, 48} : Shape{48};
                       const Tensor x = g.layer_norm(g.input("x", shape));
                       Tensor y = g.linear(x, {.features = 33, .bias = gelu});
                       if (gelu) y = g.gelu(y);
                       g.output("value", y);
                       g.loss(g.mse_loss(y, g.input("target", y.shape)));
                     }});
  all.push_back({"linear layers of one weight", [](Builder& g) {
                   const auto weight = g.parameter("shared", {24, 24}, {.init = graph::Init::normal});
                   const Tensor x = g.layer_norm(g.input("x", {24}));
                   const Tensor y = g.add(g.linear(x, weight), g.linear(g.tanh(x), weight, {.bias = false}));
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", {24})));
                 }});
  all.push_back({"a frozen linear layer", [](Builder& g) {
                   const Tensor y =
                       g.linear(g.layer_norm(g.input("x", {24})), {.features = 24, .frozen = true});
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", {24})));
                 }});
  // With 2,041 classes a block of logits has at most 128 labels, and here 80, so the last block has fewer.
  for (const auto& [classes, bias] : {std::pair{21, false}, std::pair{21, true}, std::pair{2'041, true}})
    all.push_back({concat("linear and cross_entropy of ", classes, " classes, bias ", bias),
                   [classes = classes, bias = bias](Builder& g) {
                     const int positions = classes == 21 ? 4 : 27;
                     const auto label = g.label("label", classes, {.positions = positions, .ignore = 3});
                     const auto weight = g.parameter("shared", {classes, 16}, {.init = graph::Init::normal});
                     const Tensor x = g.layer_norm(g.input("x", {positions, 16}));
                     g.loss(g.cross_entropy(g.linear(x, weight, {.bias = bias}), label));
                     if (classes == 21) g.loss(g.cross_entropy(g.linear(x, weight, {.bias = false}), label));
                   }});
  all.push_back({"attention, which convoy multiplies",
                 [](Builder& g) {
                   const Tensor y = g.attention(g.layer_norm(g.input("x", {9, 48})), {.heads = 2});
                   g.output("value", y);
                   g.loss(g.mse_loss(y, g.input("target", y.shape)));
                 },
                 false});
  return all;
}

const Plan& resnet = plan_of<models::ResNet18<Image{1, 28, 28}, 10>>;
const Plan& gpt = plan_of<models::Gpt2<2, 24, 3, 9, 30, 12>>;

/// Three steps of gradient descent, one with fewer rows; returns all parameters.
std::vector<float> train(const Plan& plan, int threads) {
  constexpr int batch = 6;
  Rounding host(plan, batch, {.threads = threads});
  exec_compare::randomize(host, plan, Philox{1, 2});
  for (std::uint64_t step = 0; step < 3; ++step) {
    const exec_compare::Batch data(plan, step == 1 ? batch - 3 : batch, Philox{7, step});
    exec_compare::forward(host, data);
    exec_compare::backward(host, plan, 1.0f / batch);
    for (std::size_t i = 0; i < host.gradients().size(); ++i)
      host.parameters()[i] -= 0.01f * host.gradients()[i];
  }
  return {host.parameters().begin(), host.parameters().end()};
}

}  // namespace

TEST_CASE("weights go into blocks, each number rounded") {
  Philox random(3);
  for (const auto& block : {std::pair{16, 8}, {48, 16}, {64, 8}, {64, 16}})
    for (const auto& [down, across] : {std::pair{1, 1}, {2, 3}, {3, 12}}) {
      const int lines = block.first, pairs = block.second;
      const int rows = lines * down, columns = 2 * pairs * across;
      CAPTURE(lines);
      CAPTURE(rows);
      CAPTURE(columns);
      const exec::host::WeightBlocks blocks{lines, pairs};
      CHECK(blocks.cuts(rows, columns));
      CHECK_FALSE(blocks.cuts(rows + 1, columns));
      CHECK_FALSE(blocks.cuts(rows, columns + 2));
      std::vector<float> weights(static_cast<std::size_t>(rows * columns));
      for (float& w : weights) w = random.normal();
      std::vector<bf16> made(weights.size());
      exec::host::copy_into_blocks(blocks, rows, columns, weights.data(), made.data(), 2);
      int wrong = 0;
      for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; ++c) {
          const int before = r / lines * across + c / (2 * pairs), pair = c % (2 * pairs) / 2;
          const int at = ((before * pairs + pair) * lines + r % lines) * 2 + c % 2;
          wrong += made[static_cast<std::size_t>(at)].bits !=
                   bf16(weights[static_cast<std::size_t>(r * columns + c)]).bits;
        }
      CHECK(wrong == 0);
    }
}

TEST_CASE("host: in bf16 what multiplies is off by what rounding costs, and nothing else is") {
  if (!can_multiply()) SKIP(lacking);
  for (const Case& c : cases()) {
    const DynamicPlan plan(c.define);
    INFO(c.name);
    const double off = largest_error<Rounding>(plan, hash_of(c.name), {.threads = 2});
    CHECK(off < (c.rounds ? 1e-2 : 1e-5));
    if (c.rounds) CHECK(off > 1e-4);
    // Convoy's own convolutions need their own weight layout.
    CHECK(largest_error<Rounding>(plan, hash_of(c.name), {.threads = 1, .canonical = true}) < 1e-2);
    CHECK(largest_error<exec::Host<f32>>(plan, hash_of(c.name), {.threads = 1}) < 1e-5);
  }
}

TEST_CASE("host: in bf16 a layout that differs only along an extent of 1 does not stand in for another") {
  if (!can_multiply()) SKIP(lacking);
  using exec::host::Layout;
  const Layout apart({1, 136}, {3 * 136, 1}, dnnl_bf16), close({1, 136}, dnnl_ab, dnnl_bf16);
  CHECK(apart == close);
  CHECK(apart.get() != close.get());
  // For a vector of the first layout oneDNN has only reference code, which is refused.
  const DynamicPlan plan([](auto& g) {
    const Tensor y = g.linear(g.layer_norm(g.input("x", {136})), {.features = 5});
    g.loss(g.mse_loss(y, g.input("target", {5})));
  });
  CHECK_NOTHROW(Rounding(plan, 1, {.threads = 1}));
}

TEST_CASE("host: in bf16 images are kept in bf16 where all who read them can") {
  if (!can_multiply()) SKIP(lacking);
  const DynamicPlan plan([](auto& g) {
    const auto block = [&](Tensor x) { return g.batch_norm(g.conv2d(x, {.channels = 16})); };
    const Tensor read = g.relu(block(g.input("image", {3, 9, 8})));  // read by a convolution and an addition
    const Tensor last = g.relu(g.add(block(read), read));            // read by a pooling
    const Tensor pooled = g.max_pool(last, {.kernel = 2});           // read by a convolution
    const Tensor flat = block(pooled);                               // read by a view
    const Tensor rows = g.flatten(flat);
    g.output("read", read);
    g.output("last", last);
    g.output("pooled", pooled);
    g.output("flat", flat);
    g.loss(g.mse_loss(rows, g.input("target", rows.shape)));
  });
  Rounding host(plan, 3, {.threads = 1});
  exec_compare::randomize(host, plan, Philox{1, 2});
  exec_compare::forward(host, exec_compare::Batch(plan, 3, Philox{1, 3}));
  const auto rounded = [&](int k) {
    const auto values = host.output(k);
    return std::all_of(values.begin(), values.end(),
                       [](float v) { return static_cast<float>(bf16(v)) == v; });
  };
  CHECK(rounded(0));
  CHECK(rounded(1));
  CHECK(rounded(2));
  CHECK_FALSE(rounded(3));
}

TEST_CASE("host: in bf16 models around each operation are off by what rounding costs") {
  if (!can_multiply()) SKIP(lacking);
  // Up to three consecutive products, of few numbers each.
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    CHECK(exec_compare::usual_distance<Rounding>(plan, hash_of(operation.name)) < 2e-2);
  }
  exec_models::for_each([](const std::string& name, const Plan& plan) {
    INFO(name);
    // ReLU units that rounding moves across zero cost more than rounding itself, and a chain of batch norms
    // of rounded images moves more of them.
    const double most = name == exec_models::Patterns::name ? 0.12 : 6e-2;
    CHECK(exec_compare::usual_distance<Rounding>(plan, hash_of(name)) < most);
  });
  // The same chain without discontinuities shows the cost of rounding alone.
  const DynamicPlan smooth([](auto& g) {
    const auto normed = [&](Tensor x) { return g.batch_norm(g.conv2d(x, {.channels = 16})); };
    const auto pooled = [&](Tensor x) { return g.avg_pool(x, {.kernel = 3, .stride = 1, .padding = 1}); };
    Tensor x = normed(g.input("image", {3, 8, 7}));
    for (int i = 0; i < 3; ++i) x = g.add(normed(x), x);
    x = g.batch_norm(g.avg_pool(x, {.kernel = 2}));
    x = g.add(g.batch_norm(pooled(x)), x);
    x = g.add(x, pooled(x));
    g.loss(g.mse_loss(x, g.input("target", x.shape)));
  });
  CHECK(exec_compare::usual_distance<Rounding>(smooth, 11) < 1e-2);
}

TEST_CASE("host: in bf16 all convolutions of maps that are not tiny are oneDNN's or Winograd's") {
  if (!can_multiply()) SKIP(lacking);
  const Plan& plan = plan_of<models::ResNet18<Image{3, 64, 64}, 10>>;
  const Rounding host(plan, 4, {.threads = 1});
  CHECK(host.precision() == "bf16");
  int convolutions = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const graph::Node& node = plan.node(plan.stages[s].leader);
    if (!graph::is<graph::Conv2d>(node) || node.shape[1] * node.shape[2] <= 16) continue;
    const std::string& text = host.profile()[s].implementation;
    INFO(node.name, ": ", text);
    CHECK((text == "convoy:winograd" || text.find("bf16") != std::string::npos));
    CHECK(text.find("gemm") == std::string::npos);
    CHECK(text.find("ref") == std::string::npos);
    ++convolutions;
  }
  CHECK(convolutions == 10);
}

TEST_CASE("host: in bf16 two runs give the same bits") {
  if (!can_multiply()) SKIP(lacking);
  for (const Plan* plan : {&resnet, &gpt})
    for (const int threads : {1, 2}) {
      if (sanitized && threads == 1) continue;
      CHECK(train(*plan, threads) == train(*plan, threads));
    }
}

TEST_CASE("host: products are in bf16 by default where that is faster, and always if asked for") {
  using Mixed = exec::Host<bf16>;
  using exec::HostProducts;
  CHECK(Mixed(gpt, 1).precision() == "bf16");
  CHECK(Mixed(gpt, 1).products() == (exec::host::multiplies_faster_in_bf16() ? DType::bf16 : DType::f32));
  CHECK(Mixed(gpt, 1, {.products = HostProducts::f32}).products() == DType::f32);
  CHECK(exec::Host<f32>(gpt, 1, {.products = HostProducts::bf16}).products() == DType::f32);
  if (can_multiply())
    CHECK(Mixed(gpt, 1, {.products = HostProducts::bf16}).products() == DType::bf16);
  else
    CHECK_THROWS_WITH_AS(Mixed(gpt, 1, {.products = HostProducts::bf16}),
                         "exec: products in bf16 need AVX-512, which this processor does not have; choose "
                         "HostProducts::f32 or fastest",
                         ConfigError);
}
