// NEEDS: host
// SANITIZE: none
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// A linear layer and the cross-entropy behind it as one stage of Host, of one block of labels and of several.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/exec/host/linear_cross_entropy.hpp>

using namespace convoy;
using exec::host::LinearCrossEntropyStage;

namespace {

/// A decoder over `classes`, tied to the embedding that its input comes from.
DynamicPlan decoder(int classes, int positions, bool bias, bool logits = false) {
  return DynamicPlan([=](auto& g) {
    const auto weight = g.parameter("shared", {classes, 6}, {.init = graph::Init::normal});
    const auto ids = g.input("ids", {positions}, {.dtype = DType::i32});
    const auto x = g.layer_norm(g.linear(g.embedding(ids, weight), {.features = 6}));
    const auto y = g.linear(x, weight, {.bias = bias, .name = "decoder"});
    const auto label = g.label("label", classes, {.positions = positions, .ignore = -100});
    if (logits) g.output("logits", y);
    g.loss(g.cross_entropy(y, label, {.smoothing = bias ? 0.1f : 0.0f, .name = "loss"}));
  });
}

template <class E>
bool backward_is_refused(E& e, std::span<const float> scales) {
  try {
    e.backward(scales, [](std::int64_t) {});
  } catch (const ExecError&) {
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("host: logits of several blocks of labels agree with the reference") {
  // Of 65,000 classes a block has 128 labels, so that the second has one.
  constexpr int classes = 65'000;
  static_assert(LinearCrossEntropyStage::block_bytes / (4 * classes) / 16 * 16 == 128);
  for (const int threads : {1, 2}) {
    const DynamicPlan plan = decoder(classes, 43, threads == 1);
    CHECK(exec_compare::difference<exec::Host<f32>>(plan, {.seed = 5, .batch = 3, .threads = threads}) == "");
  }
}

TEST_CASE("host: a loss of several blocks is the same whether backward computes it or the one who asks") {
  const DynamicPlan plan = decoder(65'000, 43, true);
  exec::Host<f32> e(plan, 3, {.threads = 2});
  exec::initialize(e, plan, 4);
  const exec_compare::Batch first(plan, 3, Philox{8, 1}), second(plan, 3, Philox{8, 2});
  const std::vector<float> scales{0.25f};
  struct Seen {
    double loss;
    std::int64_t correct, labels;
    bool operator==(const Seen&) const = default;
  };
  const auto taken = [&] {
    const exec::Result result = e.result();
    return Seen{result.loss(), result.correct, result.labels};
  };
  const auto backward = [&] {
    e.backward(scales, [](std::int64_t) {});
    return std::vector<float>(e.gradients().begin(), e.gradients().end());
  };
  e.forward(first, {});
  const auto gradients = backward();
  const Seen of_first = taken();
  CHECK(of_first.loss > 0);
  CHECK(of_first.labels > 0);

  e.forward(first, {});
  CHECK(taken() == of_first);  // before backward
  CHECK(backward() == gradients);

  e.forward(first, {});  // without backward, and asked for after the next pass
  e.forward(second, {});
  backward();
  CHECK(taken() == of_first);
  const Seen of_second = taken();
  CHECK(of_second.loss != of_first.loss);
  CHECK(backward_is_refused(e, scales));

  e.forward(first, {});  // the parameters change behind it
  std::vector<float> values(
      static_cast<std::size_t>(static_cast<const Plan&>(plan).parameter(0).shape.size()), 0.5f);
  e.write_parameter(0, values);
  CHECK(taken() == of_first);

  e.forward(second, {.mode = exec::Mode::evaluate});
  const Seen evaluated = taken();
  e.forward(second, {});
  backward();
  CHECK(taken() == evaluated);
}

TEST_CASE("host: a decoder and its loss are one stage unless the logits are handed out") {
  const auto stages = [](bool logits) {
    const DynamicPlan plan = decoder(30, 4, false, logits);
    const exec::Host<f32> e(plan, 2);
    std::vector<std::string> led;
    for (const auto& stage : e.profile()) led.push_back(stage.name);
    return led;
  };
  CHECK(stages(false).back() == "decoder");
  CHECK(stages(true).back() == "loss");
}
