// Attention that cuDNN computes for exec::Cuda in 16 bits, against convoy's own kernels and the reference:
// run on the CPU by test_exec_cuda_fused_attention.cpp, and on a GPU by test_exec_cuda_gpu.cu.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_cuda_alone.hpp"
#include "exec_distance.hpp"
#include "skip.hpp"
#include <convoy/graph/dynamic.hpp>

namespace exec_cuda_fused_attention {

using namespace convoy;
using exec_cuda::Alone;
using graph::Builder;
using graph::Tensor;

/// Uses cuDNN wherever it has a plan, without timing.
template <class P>
struct Fused : Alone<P> {
  Fused(const Plan& plan, int batch, exec::CudaOptions options) : Alone<P>(plan, batch, with(options)) {}
  static exec::CudaOptions with(exec::CudaOptions options) {
    options.candidates = 1;
    return options;
  }
};
/// Uses convoy's own kernels.
template <class P>
struct Own : Alone<P> {
  Own(const Plan& plan, int batch, exec::CudaOptions options) : Alone<P>(plan, batch, with(options)) {}
  static exec::CudaOptions with(exec::CudaOptions options) {
    options = Fused<P>::with(options);
    options.fuse_attention = false;
    return options;
  }
};

struct Case {
  std::string name;
  bool packed = true, causal = false, padded = false, again = false;
  float dropout = 0;
  int queries = 11, keys = 11, features = 8, value_features = 8;
};
inline const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {.name = "packed"},
      {.name = "causal", .causal = true},
      {.name = "of lengths", .padded = true},
      {.name = "causal, of lengths", .causal = true, .padded = true},
      {.name = "whose value others read", .again = true},
      {.name = "that drops", .dropout = 0.3f},
      {.name = "causal, of lengths, that drops", .causal = true, .padded = true, .dropout = 0.3f},
      {.name = "to others", .packed = false, .padded = true, .queries = 9, .keys = 70, .value_features = 16},
      {.name = "to others that drops", .packed = false, .dropout = 0.2f, .queries = 66, .keys = 70},
      {.name = "to fewer, causal", .packed = false, .causal = true, .queries = 20, .keys = 7, .features = 16},
  };
  return all;
}
inline void define(Builder& g, const Case& c) {
  constexpr int heads = 3;
  const graph::AttentionOptions o{.heads = heads, .causal = c.causal, .dropout = c.dropout};
  const auto lengths = [&] { return g.input("lengths", {}, {.dtype = DType::i32}); };
  const Tensor x = g.input("sequence", {c.queries, 9});
  Tensor y;
  if (c.packed) {
    const Tensor qkv = g.linear(x, {.features = 3 * heads * c.features});
    y = c.padded ? g.attention(qkv, lengths(), o) : g.attention(qkv, o);
  } else {
    const Tensor given = g.input("given", {c.keys, 7}), q = g.linear(x, {.features = heads * c.features}),
                 k = g.linear(given, {.features = heads * c.features}),
                 v = g.linear(given, {.features = heads * c.value_features});
    y = c.padded ? g.attention(q, k, v, lengths(), o) : g.attention(q, k, v, o);
  }
  if (c.again) {  // by two attentions that cannot accumulate into an existing gradient
    const Tensor a = g.linear(x, {.features = heads * c.value_features});
    y = g.add(g.attention(a, a, y, {.heads = heads}), g.attention(a, a, y, {.heads = heads}));
  }
  y = g.add(y, g.gelu(y));
  g.output("value", y);
  g.loss(g.cross_entropy(g.linear(y, {.features = 5}), g.label("label", 5, {.positions = c.queries})));
}

/// Outputs and gradients of a few consecutive passes over rows of several lengths.
template <class E>
std::vector<float> passes(const Plan& plan, const exec::CudaOptions& options = {}) {
  E exec(plan, 4, options);
  exec_compare::randomize(exec, plan, Philox{5, 6});
  exec.visit_state([](std::string_view name, std::int64_t& number) {
    if (name == "loss_scale_exponent") number = 6;
  });
  std::vector<float> all;
  const auto add = [&](const auto& values) { all.insert(all.end(), values.begin(), values.end()); };
  std::uint64_t step = 0;
  for (const int rows : {4, 4, 3, 4}) {
    const exec_compare::Batch batch(plan, rows, Philox{7, ++step});
    exec_compare::forward(exec, batch);
    add(exec.output(0));
    exec_compare::backward(exec, plan, 1 / static_cast<float>(rows));
    add(exec_compare::fetched(exec, exec.gradients()));
    exec_compare::forward(exec, batch, exec::Mode::evaluate);
    add(exec.output(0));
  }
  return all;
}

}  // namespace exec_cuda_fused_attention

TEST_CASE("cuda: attentions by cuDNN are as near to the reference as convoy's own") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fused_attention;
  for (const Case& c : cases()) {
    const DynamicPlan plan([&](Builder& g) { define(g, c); });
    CAPTURE(c.name);
    const std::uint64_t seed = hash_of(c.name);
    CHECK(exec_compare::usual_distance<Fused<bf16>>(plan, seed) < 3e-2);
    CHECK(exec_compare::usual_distance<Fused<f16>>(plan, seed) < 4e-3);
  }
}

TEST_CASE("cuda: attentions by cuDNN give the same bits each time, with graphs and without") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fused_attention;
  for (const Case& c : cases()) {
    const DynamicPlan plan([&](Builder& g) { define(g, c); });
    CAPTURE(c.name);
    const auto first = passes<Fused<bf16>>(plan);
    CHECK(passes<Fused<bf16>>(plan) == first);
    CHECK(passes<Fused<bf16>>(plan, {.graphs = false}) == first);
  }
}

TEST_CASE("cuda: attentions of f32 are convoy's own") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace exec_cuda_fused_attention;
  const DynamicPlan plan([&](Builder& g) { define(g, cases()[3]); });
  CHECK(passes<Fused<f32>>(plan) == passes<Own<f32>>(plan));
}
