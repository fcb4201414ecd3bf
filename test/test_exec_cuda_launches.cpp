// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 300
// The work that exec::Cuda enqueues for a Transformer layer, in which each kernel is a pass over memory; and
// how a layer is computed if cuBLASLt lacks an epilogue.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_compare.hpp"
#include "exec_cuda_alone.hpp"
#include "exec_decoder.hpp"
#include "exec_distance.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/transformer.hpp>

using namespace exec_cuda;

namespace {

using Counts = std::map<std::string, int>;

/// The work that a training step enqueues, forward and backward; convoy's own attention kernels unless
/// `fuses`.
struct Step {
  Counts forward, backward;
};
Step step_of(const Plan& plan, bool fuses) {
  // One candidate, because times under the emulation would choose among several.
  Alone<bf16> exec(plan, 2, {.graphs = false, .candidates = 1, .fuse_attention = fuses});
  const exec_compare::Batch batch(plan, 2, Philox{1, 2});
  const std::vector<float> scales(plan.losses.size(), 1.0f);
  Step step;
  const emulation::Enqueued enqueued;
  exec.forward(batch, {.mode = exec::Mode::train});
  const auto forward = static_cast<std::ptrdiff_t>(enqueued.names().size());
  exec.backward(scales, [](std::int64_t) {});
  const auto begin = enqueued.names().begin();
  for (auto at = begin; at != enqueued.names().end(); ++at)
    ++(at < begin + forward ? step.forward : step.backward)[*at];
  return step;
}

Counts difference(Counts more, const Counts& less) {
  for (const auto& [name, count] : less)
    if ((more[name] -= count) == 0) more.erase(name);
  return more;
}
/// The work of one layer: a step of two layers minus that of one.
Step layer_of(const Plan& two, const Plan& one, bool fuses = false) {
  const Step more = step_of(two, fuses), less = step_of(one, fuses);
  return {difference(more.forward, less.forward), difference(more.backward, less.backward)};
}

template <int layers>
using Bert = models::Bert<layers, 32, 2, 64, 8, 30, 4, 12>;
template <int layers>
using Gpt2 = models::Gpt2<layers, 32, 2, 8, 30, 12>;
template <int layers>
using Transformer = models::Transformer<layers, 32, 2, 64, 8, 30, 5>;

/// Makes cuBLASLt pretend to be a version that has no algorithm with these epilogues.
class Without {
 public:
  explicit Without(std::vector<cublasLtEpilogue_t> epilogues) {
    static std::size_t others = 0;
    emulation::missing_epilogues = std::move(epilogues);
    emulation::library_version = CUBLAS_VERSION + ++others;
  }
  Without(const Without&) = delete;
  Without& operator=(const Without&) = delete;
  ~Without() {
    emulation::missing_epilogues.clear();
    emulation::library_version = CUBLAS_VERSION;
  }
};

}  // namespace

TEST_CASE("cuda: work that fails while it is captured leaves a stream that goes on") {
  memory::Device space;
  const memory::Array<float, memory::Device> x(space, 1);
  exec::cuda::Repeated repeated;
  const auto run = [&](bool fails) {
    repeated.run(space.stream(), true, [&] {
      space.fill(x.data(), 1, 1.0f);
      if (fails) fail("too bad");
      space.add(x.data(), x.data(), 1);
    });
  };
  run(false);
  CHECK_THROWS_WITH_AS(run(true), "too bad", Error);
  space.synchronize();
  CHECK_NOTHROW(memory::Array<float, memory::Device>(space, 1));
  run(false);
  float value = 0;
  space.read(&value, x.data(), sizeof value);
  CHECK(value == 2);
}

TEST_CASE(
    "cuda: a batch of a new size is planned for the GPU of the space, whatever GPU a thread has chosen") {
  const emulation::With two({.devices = 2});
  const DynamicPlan plan([](auto& g) {
    const auto x = g.relu(g.linear(g.input("x", {8}), {.features = 8}));
    g.loss(g.cross_entropy(g.linear(x, {.features = 3}), g.label("label", 3)));
  });
  {
    device::use(1);
    Alone<f32> exec(plan, 3, {.candidates = 1});
    for (const int rows : {3, 2}) {
      device::use(0);
      CHECK(exec_compare::forward(exec, exec_compare::Batch(plan, rows, Philox{1, 2})).loss() > 0);
    }
  }
  device::use(0);  // the other GPU, on which the exec was destroyed, is gone after this test
}

TEST_CASE("cuda: options that no GPU could meet are refused") {
  const Plan& plan = plan_of<Bert<1>>;
  const auto refuses = [&](const exec::CudaOptions& options, const char* sentence) {
    CHECK_THROWS_WITH_AS(Alone<f32>(plan, 2, options), sentence, ConfigError);
  };
  refuses({.steps_at_once = 0}, "exec: steps_at_once must be at least 1, not 0");
  refuses({.candidates = 0}, "exec: candidates must be at least 1, not 0");
  refuses({.workspace_mib = -1}, "exec: workspace_mib must be at least 0, not -1");
  refuses({.logits_mib = 0}, "exec: logits_mib must be at least 1, not 0");
}

TEST_CASE("cuda: the 16-bit copy of parameters is refreshed after they change, and not in other passes") {
  const Plan& plan = plan_of<Bert<1>>;
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    Alone<bf16> exec(plan, 2, {.graphs = graphs, .candidates = 1});
    const exec_compare::Batch batch(plan, 2, Philox{1, 2});
    const auto refreshed = [&](exec::Mode mode) {
      const emulation::Enqueued enqueued;
      exec.forward(batch, {.mode = mode});
      return std::count(enqueued.names().begin(), enqueued.names().end(), "narrow_pass");
    };
    // As ranks that share the update tell of the parameters that others have written.
    for (int step = 0; step < 4; ++step) {
      exec.touched({0, plan.sizes.exchanged});
      CHECK(refreshed(exec::Mode::train) == 1);
      CHECK(refreshed(exec::Mode::train) == 0);
      CHECK(refreshed(exec::Mode::evaluate) == 0);
    }
  }
}

TEST_CASE("cuda: a layer of BERT is so many passes over memory") {
  const Step layer = layer_of(plan_of<Bert<2>>, plan_of<Bert<1>>);
  CHECK(
      layer.forward ==
      Counts{{"product", 4}, {"attention_mma_results", 1}, {"apply_elements", 1}, {"residual_norm_rows", 2}});
  CHECK(layer.backward == Counts{{"product", 8},
                                 {"attention_means", 1},
                                 {"attention_mma_key_gradients", 1},
                                 {"attention_mma_query_gradients", 1},
                                 {"slope_elements", 1},
                                 {"residual_norm_gradients", 2},
                                 {"column_partials", 2},
                                 {"finish_columns", 2}});
}

TEST_CASE("cuda: an attention that cuDNN computes adds small passes and that over what dropout keeps") {
  const Step fused = layer_of(plan_of<Bert<2>>, plan_of<Bert<1>>, true),
             own = layer_of(plan_of<Bert<2>>, plan_of<Bert<1>>);
  CHECK(difference(fused.forward, own.forward) == Counts{{"attention_lengths", 1},
                                                         {"attention_mask", 1},
                                                         {"attention", 1},
                                                         {"attention_of_nothing", 1},
                                                         {"attention_mma_results", -1}});
  CHECK(difference(fused.backward, own.backward) == Counts{{"attention_lengths", 1},
                                                           {"attention_mask", 1},
                                                           {"scale_elements", 1},
                                                           {"attention", 1},
                                                           {"attention_gradients_of_padding", 1},
                                                           {"attention_means", -1},
                                                           {"attention_mma_key_gradients", -1},
                                                           {"attention_mma_query_gradients", -1}});
}

TEST_CASE("cuda: a layer of GPT-2 is so many passes over memory") {
  const Step layer = layer_of(plan_of<Gpt2<2>>, plan_of<Gpt2<1>>);
  CHECK(layer.forward ==
        Counts{{"product", 4}, {"attention_mma_results", 1}, {"drop_rows", 2}, {"layer_norm_rows", 2}});
  CHECK(layer.backward == Counts{{"product", 8},
                                 {"attention_means", 1},
                                 {"attention_mma_key_gradients", 1},
                                 {"attention_mma_query_gradients", 1},
                                 {"drop_rows", 2},
                                 {"layer_norm_gradients", 2},
                                 {"column_partials", 2},
                                 {"finish_columns", 2}});
}

TEST_CASE("cuda: a layer of a Transformer with dropout behind its GELU is so many passes over memory") {
  const Step layer = layer_of(plan_of<Transformer<2>>, plan_of<Transformer<1>>);
  CHECK(layer.forward == Counts{{"product", 4},
                                {"attention_mma_results", 1},
                                {"apply_elements", 1},
                                {"drop_rows", 3},
                                {"layer_norm_rows", 2}});
  CHECK(layer.backward == Counts{{"product", 8},
                                 {"attention_means", 1},
                                 {"attention_mma_key_gradients", 1},
                                 {"attention_mma_query_gradients", 1},
                                 {"slope_elements", 1},
                                 {"drop_rows", 3},
                                 {"layer_norm_gradients", 2},
                                 {"column_partials", 2},
                                 {"finish_columns", 2}});
}

TEST_CASE("cuda: where cuBLASLt lacks the sums of a factor, gradients of biases are summed by themselves") {
  const Without sums({CUBLASLT_EPILOGUE_BGRADB});
  CHECK(layer_of(plan_of<Gpt2<2>>, plan_of<Gpt2<1>>).backward["column_partials"] == 6);
  CHECK(exec_compare::difference<Alone<f32>>(plan_of<Gpt2<1>>, {.seed = 1, .batch = 3}) == "");
  CHECK(exec_compare::difference<Alone<f32>>(exec_decoder::decoder(50, 7, true), {.seed = 2, .batch = 3}) ==
        "");
}

TEST_CASE("cuda: where cuBLASLt cannot add a bias, that is a pass over memory") {
  const Without bias({CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
  CHECK(layer_of(plan_of<Gpt2<2>>, plan_of<Gpt2<1>>).forward["add_bias_to_rows"] == 4);
  CHECK(exec_compare::difference<Alone<f32>>(plan_of<Gpt2<1>>, {.seed = 1, .batch = 3}) == "");
  for (const int classes : {50, 64}) {
    const DynamicPlan plan = exec_decoder::decoder(classes, 7, true);
    CHECK(exec_compare::difference<Alone<f32>>(plan, {.seed = 2, .batch = 3}) == "");
    CHECK(exec_compare::usual_distance<Alone<bf16>>(plan, 3) < 3e-2);
  }
}

TEST_CASE("cuda: where cuBLASLt lacks a GELU or its slope, that is a pass over memory") {
  for (const auto& missing :
       {std::vector{CUBLASLT_EPILOGUE_GELU_AUX_BIAS}, std::vector{CUBLASLT_EPILOGUE_DGELU},
        std::vector{CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU}}) {
    const Without without(missing);
    Step layer = layer_of(plan_of<Gpt2<2>>, plan_of<Gpt2<1>>);
    CHECK(layer.forward["apply_elements"] == (missing.front() == CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
    CHECK(layer.backward["slope_elements"] == (missing.back() == CUBLASLT_EPILOGUE_DGELU));
    CHECK(exec_compare::difference<Alone<f32>>(plan_of<Gpt2<1>>, {.seed = 3, .batch = 3}) == "");
  }
}

TEST_CASE("cuda: linear layers with a GELU behind them agree with the reference, whoever reads it") {
  std::uint64_t seed = 70;
  for (const auto form : {graph::GeluForm::erf, graph::GeluForm::tanh})
    for (const int features : {8, 12, 16})
      for (const bool bias : {true, false})
        for (const int readers : {0, 1, 2, 3}) {
          CAPTURE(features);
          CAPTURE(bias);
          CAPTURE(readers);
          const DynamicPlan plan([&](auto& g) {
            auto x = g.linear(g.input("x", {5, 3}), {.features = 6});
            x = g.gelu(g.linear(x, {.features = features, .bias = bias}), {.form = form});
            if (readers == 0) g.output("gelu", x);
            auto y = readers == 1 ? g.tanh(x) : g.linear(x, {.features = 7});
            if (readers == 2) y = g.add(y, g.linear(x, {.features = 7}));
            if (readers == 3) y = g.concat({y, x});
            g.loss(g.cross_entropy(y, g.label("label", y.shape.last(), {.positions = 5})));
          });
          CHECK(exec_compare::difference<Alone<f32>>(plan, {.seed = ++seed, .batch = 2}) == "");
          CHECK(exec_compare::usual_distance<Alone<bf16>>(plan, seed) < 3e-2);
          CHECK(exec_compare::usual_distance<Alone<f16>>(plan, seed) < 4e-3);
        }
}
