// NEEDS: host
// TIMEOUT: 300
// ALSO: CONVOY_ISA=baseline ONEDNN_MAX_CPU_ISA=AVX2
// Host with images in nhwc, which bf16 on processors with AMX uses and the option channels_last asks for.
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_distance.hpp"
#include "exec_models.hpp"
#include "exec_operations.hpp"
#include "exec_random_models.hpp"
#include "sanitized.hpp"
#include <convoy/exec/host/backend.hpp>
#include <convoy/exec/host/host.hpp>

using namespace convoy;

namespace {

template <class P, bool canonical = false, exec::HostProducts products = exec::HostProducts::f32>
class ChannelsLast : public exec::Host<P> {
 public:
  using Options = exec::HostOptions;
  ChannelsLast(const Plan& plan, int batch, Options options)
      : exec::Host<P>(plan, batch,
                      (options.channels_last = true, options.canonical = canonical,
                       options.products = products, options)) {}
};
using F32 = ChannelsLast<f32>;
// In f32 only weights in canonical order have their gradients from products of matrices.
using CanonicalF32 = ChannelsLast<f32, true>;

/// Convolutions between images of whole and of odd channels, with all that batch norm fuses.
DynamicPlan convolutions(int height, int width) {
  return DynamicPlan([=](auto& g) {
    using graph::Tensor;
    const auto normed = [&](Tensor x, graph::Conv2dOptions o) { return g.batch_norm(g.conv2d(x, o)); };
    const Tensor x =
        g.relu(normed(g.input("image", {3, height, width}), {.channels = 32, .kernel = 5, .padding = 2}));
    const Tensor narrow = g.relu(normed(x, {.channels = 16, .kernel = 1, .padding = 0}));
    const Tensor y = g.relu(g.add(normed(narrow, {.channels = 32}), x));
    const Tensor shortcut = normed(y, {.channels = 48, .kernel = 1, .stride = 2, .padding = 0});
    const Tensor main = normed(y, {.channels = 48, .stride = 2});
    const Tensor z = g.relu(g.add(main, shortcut));
    const Tensor odd = g.conv2d(z, {.channels = 20, .bias = true});
    const Tensor joined = g.concat({g.relu(odd), g.conv2d(z, {.channels = 12, .kernel = 1, .padding = 0})});
    const Tensor pooled = g.max_pool(joined, {.kernel = 2});
    g.output("joined", joined);
    g.output("pooled", pooled);
    const Tensor rows = g.flatten(pooled);
    g.loss(g.mse_loss(rows, g.input("target", rows.shape)));
  });
}

}  // namespace

TEST_CASE("host: with channels last convolutions and what follows them agree with the reference") {
  std::uint64_t seed = 900;
  for (const auto& map : {std::pair{9, 7}, {14, 14}, {23, 16}}) {
    const DynamicPlan plan = convolutions(map.first, map.second);
    INFO(map.first, "x", map.second);
    for (const int batch : {1, 5})
      for (const int threads : {1, 3}) {
        ++seed;
        if (sanitized && seed % 8 != 4) continue;  // one of the small maps and one of the large
        const exec_compare::Options options{.seed = seed, .batch = batch, .threads = threads};
        CHECK(exec_compare::difference<F32>(plan, options) == "");
        CHECK(exec_compare::difference<CanonicalF32>(plan, options) == "");
      }
  }
}

TEST_CASE("host: with channels last random models agree with the reference") {
  for (std::uint64_t seed = 201; seed <= 230; ++seed) {
    const exec_compare::Model model{seed};
    INFO("seed ", seed, "\n", model.text());
    CHECK(exec_compare::difference<F32>(model.plan(), {.seed = seed,
                                                       .batch = 1 + static_cast<int>(seed % 5),
                                                       .threads = 1 + static_cast<int>(seed % 2)}) == "");
  }
  for (std::uint64_t seed = 301; seed <= 305; ++seed) {
    const exec_compare::Model model{seed, {.largest_map = 20, .operations = 4}};
    INFO("seed ", seed, "\n", model.text());
    CHECK(exec_compare::difference<F32>(model.plan(), {.seed = seed, .batch = 6, .threads = 2}) == "");
  }
}

TEST_CASE("host: with channels last each operation agrees with the reference") {
  std::uint64_t seed = 400;
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    CHECK(exec_compare::difference<F32>(plan, {.seed = ++seed, .batch = 3, .threads = 2}) == "");
  }
  exec_models::for_each([](const std::string& name, const Plan& plan) {
    INFO(name);
    CHECK(exec_compare::difference<F32>(plan, {.seed = 3, .batch = 5, .threads = 2}) == "");
  });
}

TEST_CASE("host: with channels last models in bf16 are off by what rounding costs") {
  const DynamicPlan plan = convolutions(14, 14);
  CHECK(exec_compare::usual_distance<ChannelsLast<bf16>>(plan, 5) < 6e-2);
  if (exec::host::has_isa(dnnl_cpu_isa_avx512_core))
    CHECK(exec_compare::usual_distance<ChannelsLast<bf16, false, exec::HostProducts::bf16>>(plan, 5) < 6e-2);
}

TEST_CASE("host: with channels last a product of matrices computes the weight gradients of 1x1 filters") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.batch_norm(g.input("image", {32, 14, 14}));
    for (const int stride : {1, 2})
      x = g.batch_norm(g.conv2d(x, {.channels = 64, .kernel = 1, .stride = stride, .padding = 0}));
    g.loss(g.mse_loss(x, g.input("target", x.shape)));
  });
#if defined(__x86_64__)
  constexpr bool blocked = true;
#else
  constexpr bool blocked = false;  // all images have their channels last
#endif
  const exec::Host<f32> apart(plan, 2, {.threads = 1, .canonical = true});
  const CanonicalF32 last(plan, 2, {.threads = 1});
  for (const std::size_t convolution : {1, 2}) {
    const auto kernels = [&](const auto& host) { return host.profile()[convolution].implementation; };
    INFO(kernels(last));
    CHECK(kernels(last).find("matmul") != std::string::npos);
    CHECK((kernels(apart).find("matmul") == std::string::npos) == blocked);
  }
}
