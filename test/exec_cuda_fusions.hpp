// Fused operations of exec::Cuda in 16 bits against the unfused ones and the reference: run on the CPU by
// test_exec_cuda_fusions.cpp, and on a GPU by test_exec_cuda_gpu.cu.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_cuda_alone.hpp"
#include "exec_distance.hpp"
#include "skip.hpp"
#include "temporary_folder.hpp"
#include <convoy/graph/dynamic.hpp>

namespace exec_cuda_fusions {

using namespace convoy;
using exec_cuda::Alone;
using graph::Builder;
using graph::Tensor;

/// A residual block of three convolutions, torchvision's bottleneck.
inline Tensor bottleneck(Builder& g, Tensor x, int width, int stride) {
  const int channels = 2 * width;
  auto y = g.relu(g.batch_norm(g.conv2d(x, {.channels = width, .kernel = 1})));
  y = g.relu(g.batch_norm(g.conv2d(y, {.channels = width, .kernel = 3, .stride = stride})));
  y = g.batch_norm(g.conv2d(y, {.channels = channels, .kernel = 1}));
  if (stride != 1 || x.shape[0] != channels)
    x = g.batch_norm(g.conv2d(x, {.channels = channels, .kernel = 1, .stride = stride, .padding = 0}));
  return g.relu(g.add(y, x));
}

/// A small residual network, with blocks that change the size of the map and blocks that do not. cuDNN fuses
/// channel sums only into convolutions without a bias whose channels are multiples of 8.
inline void residual(Builder& g) {
  Tensor x = g.input("image", {3, 8, 8});
  x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 8, .kernel = 3})));
  x = bottleneck(g, x, 8, 1);
  x = bottleneck(g, x, 8, 1);
  x = bottleneck(g, x, 16, 2);
  x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 12, .kernel = 3})));
  x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 8, .kernel = 3, .bias = true})));
  g.output("map", x);
  g.loss(g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(x)), {.features = 5}), g.label("label", 5)));
}

template <class P>
struct Fused : Alone<P> {
  Fused(const Plan& plan, int batch, const exec::CudaOptions&)
      : Alone<P>(plan, batch, {.fuse_batch_norm = true}) {}
};

/// Fuses wherever cuDNN has a plan.
inline const exec::CudaOptions untimed{.candidates = 1, .fuse_batch_norm = true};

/// Whether every version of cuDNN fuses f16 channel sums on this GPU.
inline bool sums() {
  int major = 0;
  return convoy::device::count() > 0 &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         (major == 8 || major == 9);
}

/// The results of consecutive passes.
struct Trace {
  std::vector<double> losses;
  std::vector<std::vector<float>> gradients, statistics, outputs;
  friend bool operator==(const Trace&, const Trace&) = default;
};

template <class P>
Trace trace(const Plan& plan, const exec::CudaOptions& options, std::uint64_t seed = 1) {
  Alone<P> exec(plan, 6, options);
  exec_compare::randomize(exec, plan, Philox{seed, 1000});
  // Start with a loss scale that does not overflow these gradients.
  exec.visit_state([](std::string_view name, std::int64_t& number) {
    if (name == "loss_scale_exponent") number = 6;
  });
  Trace seen;
  std::uint64_t step = 0;
  for (const int rows : {6, 6, 6, 4, 6, 1}) {
    const exec_compare::Batch batch(plan, rows, Philox{seed, 2000 + ++step});
    seen.losses.push_back(exec_compare::forward(exec, batch).losses[0]);
    exec_compare::backward(exec, plan, 1 / static_cast<float>(rows));
    seen.gradients.push_back(exec_compare::fetched(exec, exec.gradients()));
    seen.statistics.push_back(exec_compare::fetched(exec, exec.statistics()));
    seen.losses.push_back(exec_compare::forward(exec, batch, exec::Mode::evaluate).losses[0]);
    const auto output = exec.output(0);
    seen.outputs.emplace_back(output.begin(), output.end());
  }
  return seen;
}

/// Relative distance, by norms.
inline double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double all = 0, off = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    all += y * y;
    off += (x - y) * (x - y);
  }
  return std::sqrt(off / all);
}

/// Checks that two traces of fused batch norms differ by no more than rounding may: a GPU adds in another
/// order in every run, and rounding moves a unit of a ReLU across zero in some steps.
template <class P>
void expect_near(const Trace& seen, const Trace& expected) {
  const double rounding = std::is_same_v<P, f16> ? 1 : 8;  // rounding error relative to f16
  REQUIRE(seen.losses.size() == expected.losses.size());
  for (std::size_t i = 0; i < seen.losses.size(); ++i)
    CHECK(seen.losses[i] == doctest::Approx(expected.losses[i]).epsilon(rounding * 2e-3));
  REQUIRE(seen.gradients.size() == expected.gradients.size());
  for (std::size_t i = 0; i < seen.gradients.size(); ++i) {
    CAPTURE(i);
    CHECK(apart(seen.statistics[i], expected.statistics[i]) < rounding * 1e-4);
    CHECK(apart(seen.outputs[i], expected.outputs[i]) < rounding * 2e-3);
    CHECK(apart(seen.gradients[i], expected.gradients[i]) < (std::is_same_v<P, f16> ? 0.1 : 0.48));
  }
}

}  // namespace exec_cuda_fusions

TEST_CASE_TEMPLATE("cuda: convolutions that sum for batch norms give what others give", P, convoy::bf16,
                   convoy::f16) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fusions;
  const DynamicPlan plan(residual);
  const Trace fused = trace<P>(plan, untimed), one_by_one = trace<P>(plan, {});
  expect_near<P>(fused, one_by_one);
  exec::CudaOptions without_graphs = untimed;
  without_graphs.graphs = false;
  expect_near<P>(trace<P>(plan, without_graphs), fused);
  std::vector<double> off;
  for (std::size_t i = 0; i < fused.gradients.size(); ++i)
    off.push_back(apart(fused.gradients[i], one_by_one.gradients[i]));
  // Rounding moves a unit of a ReLU across zero in some steps, but not in most. In f16, where convolutions
  // also normalize what they read, the scales are rounded too, and move units in most steps.
  std::sort(off.begin(), off.end());
  CHECK(off[off.size() / 2] < (std::is_same_v<P, f16> ? 4e-2 : 8e-2));
  // The summation order differs; equal bits would mean that both ran the same code path.
  if (std::is_same_v<P, f16> && sums()) CHECK(fused.statistics != one_by_one.statistics);
}

TEST_CASE_TEMPLATE("cuda: a residual network has the same bits each time, with graphs and without", P,
                   convoy::bf16, convoy::f16) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fusions;
  const DynamicPlan plan(residual);
  const Trace first = trace<P>(plan, {.candidates = 1});
  CHECK(trace<P>(plan, {.candidates = 1}) == first);
  CHECK(trace<P>(plan, {.graphs = false, .candidates = 1}) == first);
}

TEST_CASE("cuda: f32 fuses no batch norms") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fusions;
  const DynamicPlan plan(residual);
  CHECK(trace<f32>(plan, untimed) == trace<f32>(plan, {.candidates = 1}));
}

TEST_CASE_TEMPLATE("cuda: a residual network is as near to the reference as its rounding lets it be", P,
                   convoy::bf16, convoy::f16) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fusions;
  const DynamicPlan plan(residual);
  const double fused = exec_compare::usual_distance<Fused<P>>(plan, 77),
               one_by_one = exec_compare::usual_distance<Alone<P>>(plan, 77);
  CAPTURE(one_by_one);
  CHECK(fused < (std::is_same_v<P, f16> ? 0.1 : 0.8));
  CHECK(fused < 1.5 * one_by_one);
}

TEST_CASE("cuda: plans that sum are kept and found again") {
  using namespace exec_cuda_fusions;
  if (!sums()) SKIP("cuDNN sums no channels here");
  namespace fs = std::filesystem;
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path;
  const DynamicPlan plan([](auto& g) {
    auto x = g.conv2d(g.input("image", {8, 8, 8}), {.channels = 16});
    x = g.conv2d(g.relu(g.batch_norm(x)), {.channels = 8});
    g.output("map", x);
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 5}), g.label("label", 5)));
  });
  const auto count = [&] { return std::distance(fs::directory_iterator(folder), fs::directory_iterator{}); };
  exec::CudaOptions options = untimed;
  options.plan_cache = folder.string();
  const Trace first = trace<f16>(plan, options);
  // Three batch sizes. Each has two convolutions forward, the gradients of their weights and of one input,
  // and the three products of the linear layer.
  CHECK(count() == 3 * (5 + 3));
  expect_near<f16>(trace<f16>(plan, options), first);
  CHECK(count() == 3 * (5 + 3));
  // A convolution without fused sums, forward or backward, has its own plan; smaller batches fuse none
  // anyway.
  trace<f16>(plan, {.candidates = 1, .plan_cache = folder.string()});
  CHECK(count() == 3 * (5 + 3) + 2);
}

TEST_CASE("cuda: plans that differ in what meets behind them are kept apart") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fusions;
  namespace fs = std::filesystem;
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path;
  // Convolutions of one shape; some of their inputs have other readers too.
  const DynamicPlan plan([](Builder& g) {
    Tensor x = g.relu(g.batch_norm(g.conv2d(g.input("image", {8, 8, 8}), {.channels = 8})));
    for (int block = 0; block < 2; ++block) {
      const Tensor inner = g.relu(g.batch_norm(g.conv2d(x, {.channels = 8})));
      x = g.relu(g.add(g.batch_norm(g.conv2d(inner, {.channels = 8})), x));
    }
    g.output("map", x);
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 5}), g.label("label", 5)));
  });
  const Trace without = trace<f16>(plan, untimed);
  exec::CudaOptions options = untimed;
  options.plan_cache = folder.string();
  // A plan of another convolution would be far off.
  for (int time = 0; time < 2; ++time) expect_near<f16>(trace<f16>(plan, options), without);
}
