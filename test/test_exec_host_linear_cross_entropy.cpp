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
