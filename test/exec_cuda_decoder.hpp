// A linear layer and its cross-entropy as one stage on the device, with one block of labels and with several:
// run on the CPU by test_exec_cuda_linear_cross_entropy.cpp, and on a GPU by test_exec_cuda_gpu.cu.
#pragma once

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_cuda_alone.hpp"
#include "exec_decoder.hpp"
#include "exec_distance.hpp"
#include "skip.hpp"
#include <convoy/graph/dynamic.hpp>

namespace exec_cuda {

/// With a workspace for the logits of few labels: of 64 in f32 with 4,100 classes.
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

}  // namespace exec_cuda

using namespace exec_cuda;

TEST_CASE("cuda: logits of several blocks of labels agree with the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  for (const bool bias : {true, false}) {
    const DynamicPlan plan = exec_decoder::decoder(4'100, 43, bias);
    CHECK(exec_compare::difference<InBlocks<f32>>(plan, {.seed = 5, .batch = 3}) == "");
    CHECK(exec_compare::difference<Alone<f32>>(plan, {.seed = 6, .batch = 2}) == "");
  }
}

TEST_CASE("cuda: a loss that the model goes on with has its logits in blocks, too") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan([](auto& g) {
    const auto x = g.linear(g.input("x", {43, 3}), {.features = 6});
    const auto each =
        g.cross_entropy(g.linear(x, {.features = 4'100}), g.label("label", 4'100, {.positions = 43}));
    g.output("each", each);
    g.loss(each);
  });
  CHECK(exec_compare::difference<InBlocks<f32>>(plan, {.seed = 7, .batch = 3}) == "");
}

TEST_CASE("cuda: a loss of several blocks is the same whether backward computes it or the one who asks") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan = exec_decoder::decoder(4'100, 43, true);
  for (const bool graphs : {true, false}) {
    InBlocks<f32> e(plan, 3, {.graphs = graphs});
    exec_decoder::check_losses_whenever_asked(e, plan);
  }
}

TEST_CASE("cuda: in 16 bits the gradients of several blocks are off by what rounding costs") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan = exec_decoder::decoder(8'200, 43, true);
  CHECK(exec_compare::usual_distance<InBlocks<bf16>>(plan, 9) < 3e-2);
  CHECK(exec_compare::usual_distance<InBlocks<f16>>(plan, 9) < 4e-3);
}
