// A linear layer and its cross-entropy as one stage on the device, with one block of labels and with several:
// run on the CPU by test_exec_cuda_linear_cross_entropy.cpp, and on a GPU by test_exec_cuda_gpu.cu.
#pragma once

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_cuda_alone.hpp"
#include "exec_decoder.hpp"
#include "exec_distance.hpp"
#include "skip.hpp"
#include <convoy/graph/dynamic.hpp>

namespace exec_cuda {

/// With a workspace for the logits of few labels: of 64 with 4,099 classes.
template <class P>
class InBlocks : public Alone<P> {
 public:
  InBlocks(const Plan& plan, int batch, typename Alone<P>::Options options)
      : Alone<P>(plan, batch, with_little_room(options)) {}

 private:
  static auto with_little_room(typename Alone<P>::Options options) {
    options.logits_mib = 1;
    return options;
  }
};

/// A decoder of three blocks of labels in an InBlocks, whose weight has a parameter behind it that no
/// operation reads.
inline DynamicPlan followed_decoder(bool bias) {
  return DynamicPlan([=](auto& g) {
    const auto weight = g.parameter("shared", {4'099, 6}, {.init = graph::Init::normal});
    g.parameter("behind", {64, 6});
    const auto x =
        g.linear(g.embedding(g.input("ids", {43}, {.dtype = DType::i32}), weight), {.features = 6});
    const auto y = g.linear(x, weight, {.bias = bias});
    g.loss(g.cross_entropy(y, g.label("label", 4'099, {.positions = 43})));
  });
}

/// The gradients of a batch of a followed_decoder, behind whose weight all values are `behind`.
template <class E>
std::vector<float> gradients_before(const DynamicPlan& plan, float behind) {
  E e(plan, 3, {});
  exec_compare::randomize(e, plan, Philox{3, 1});
  e.write_parameter(exec_compare::parameter_named(plan, "behind"), std::vector<float>(64 * 6, behind));
  exec_compare::forward(e, exec_compare::Batch(plan, 3, Philox{3, 2}));
  exec_compare::backward(e, plan, 0x1p-10f);
  return exec_compare::fetched(e, e.gradients());
}

}  // namespace exec_cuda

using namespace exec_cuda;

TEST_CASE("cuda: logits of several blocks of labels agree with the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  for (const bool bias : {true, false})
    for (const int classes : {4'099, 4'104}) {
      const DynamicPlan plan = exec_decoder::decoder(classes, 43, bias);
      CHECK(exec_compare::difference<InBlocks<f32>>(plan, {.seed = 5, .batch = 3}) == "");
      CHECK(exec_compare::difference<Alone<f32>>(plan, {.seed = 6, .batch = 2}) == "");
    }
}

TEST_CASE_TEMPLATE("cuda: what lies behind the weight of a decoder does not change its gradients", P, f32,
                   bf16, f16) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  for (const bool bias : {true, false}) {
    const DynamicPlan plan = followed_decoder(bias);
    const graph::Slot& weight = plan.plan().slot(0);
    CHECK(plan.plan().slot(1).live.begin - weight.live.end < 16);
    const auto check = [&](const std::vector<float>& other, const std::vector<float>& expected) {
      exec_compare::Differences differences(1e-3);
      differences.compare("gradient", other, expected, 0.0);
      CHECK(differences.first() == "");
      CHECK(std::any_of(expected.begin(), expected.end(), [](float x) { return x != 0; }));
    };
    // In f16, logits with these numbers overflow.
    check(gradients_before<InBlocks<P>>(plan, 6e4f), gradients_before<InBlocks<P>>(plan, 0));
    check(gradients_before<Alone<P>>(plan, 6e4f), gradients_before<Alone<P>>(plan, 0));
  }
}

TEST_CASE("cuda: a loss that the model goes on with has its logits in blocks, too") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan([](auto& g) {
    const auto x = g.linear(g.input("x", {43, 3}), {.features = 6});
    const auto each =
        g.cross_entropy(g.linear(x, {.features = 4'099}), g.label("label", 4'099, {.positions = 43}));
    g.output("each", each);
    g.loss(each);
  });
  CHECK(exec_compare::difference<InBlocks<f32>>(plan, {.seed = 7, .batch = 3}) == "");
}

TEST_CASE("cuda: a loss of several blocks is the same whether backward computes it or the one who asks") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan = exec_decoder::decoder(4'099, 43, true);
  for (const bool graphs : {true, false}) {
    InBlocks<f32> e(plan, 3, {.graphs = graphs});
    exec_decoder::check_losses_whenever_asked(e, plan);
  }
}

TEST_CASE("cuda: in 16 bits the gradients of several blocks are off by what rounding costs") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan = exec_decoder::decoder(8'201, 43, true);
  CHECK(exec_compare::usual_distance<InBlocks<bf16>>(plan, 9) < 3e-2);
  CHECK(exec_compare::usual_distance<InBlocks<f16>>(plan, 9) < 4e-3);
}
