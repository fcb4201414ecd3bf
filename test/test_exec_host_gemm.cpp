// NEEDS: host
// TIMEOUT: 300
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline ONEDNN_MAX_CPU_ISA=AVX2
// Host in bf16 with products in f32: convolutions as products of matrices over positions against the
// reference, and what rounding images to bf16 costs.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_distance.hpp"
#include "exec_models.hpp"
#include "exec_operations.hpp"
#include "sanitized.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;

namespace {

template <bool channels_last = false, bool canonical = false>
class Stored : public exec::Host<bf16> {
 public:
  Stored(const Plan& plan, int batch, Options options)
      : Host(plan, batch,
             (options.products = exec::HostProducts::f32, options.channels_last = channels_last,
              options.canonical = canonical, options)) {}
};

struct Case {
  int in, out, height, width;
  graph::Conv2dOptions options;
};

/// A convolution between images in f32: a ReLU that follows a convolution makes one, and a loss reads one.
DynamicPlan between_f32(const Case& c) {
  return DynamicPlan([&](auto& g) {
    const auto x = g.relu(
        g.conv2d(g.input("image", {3, c.height, c.width}), {.channels = c.in, .kernel = 1, .padding = 0}));
    graph::Conv2dOptions options = c.options;
    options.name = "tested";
    const auto y = g.conv2d(x, options);
    g.output("map", y);
    g.loss(g.mse_loss(y, g.input("target", y.shape)));
  });
}

constexpr int drawn = sanitized ? 4 : 24;

std::vector<Case> cases() {
  std::vector<Case> all = {
      {32, 64, 9, 9, {.channels = 64, .kernel = 1, .padding = 0}},
      // More channels than are multiplied at a time, and not a multiple of them.
      {288, 544, 5, 4, {.channels = 544, .kernel = 1, .padding = 0}},
      {544, 32, 9, 10, {.channels = 32, .stride = 2}},
      // More positions than are in a group of the gradient.
      {32, 32, 29, 31, {.channels = 32, .kernel = 2, .padding = 0}},
      // Positions of the input that no tap reads.
      {32, 32, 8, 9, {.channels = 32, .kernel = 1, .stride = 3, .padding = 0}},
      {32, 64, 13, 12, {.channels = 64, .kernel = 3, .stride = 2, .padding = 2, .dilation = 2}},
  };
  Philox random(17);
  const auto draw = [&](int most) {
    return 1 + static_cast<int>(random.below(static_cast<std::uint32_t>(most)));
  };
  for (int i = 0; i < drawn; ++i) {
    graph::Conv2dOptions o{.channels = 32 * draw(3), .kernel = draw(5), .stride = draw(3)};
    o.padding = draw(3) - 1;
    o.dilation = draw(2);
    all.push_back({32 * draw(3), o.channels, 8 + draw(9), 8 + draw(9), o});
  }
  return all;
}

template <class E>
std::string implementation(const Plan& plan, std::string_view name) {
  const E host(plan, 3, {.threads = 1});
  for (const auto& stage : host.profile())
    if (stage.name == name) return stage.implementation;
  return {};
}

}  // namespace

TEST_CASE("host: convolutions as products of matrices agree with the reference") {
  std::uint64_t seed = 0;
  int in_blocks = 0, channels_last = 0;  // convolutions that other kernels do not compute
  for (const Case& c : cases()) {
    const DynamicPlan plan = between_f32(c);
    in_blocks += implementation<Stored<>>(plan, "tested") == "convoy:gemm" ? 1 : 0;
    channels_last += implementation<Stored<true>>(plan, "tested") == "convoy:gemm" ? 1 : 0;
    const graph::Conv2dOptions& o = c.options;
    INFO(c.in, " to ", c.out, " channels on ", c.height, "x", c.width, ", kernel ", o.kernel, ", stride ",
         o.stride, ", padding ", o.padding, ", dilation ", o.dilation);
    ++seed;
    const exec_compare::Options options{.seed = seed,
                                        .batch = static_cast<int>(1 + seed % 3),
                                        .tolerance = 1e-4,
                                        .threads = static_cast<int>(1 + seed % 2)};
    CHECK(exec_compare::difference<Stored<>>(plan, options) == "");
    CHECK(exec_compare::difference<Stored<true>>(plan, options) == "");
  }
  MESSAGE(in_blocks, " convolutions in blocks, ", channels_last, " with channels last");
  CHECK(in_blocks >= drawn - 4);
  CHECK(channels_last >= drawn - 4);
}

TEST_CASE("host: sums of products of matrices do not depend on the number of threads") {
  const DynamicPlan plan = between_f32({64, 96, 21, 18, {.channels = 96, .stride = 2}});
  const auto expected = exec_compare::gradient_by_threads<Stored<>>(plan, "tested.weight", 1);
  for (const int threads : {2, 3, 5})
    CHECK(exec_compare::gradient_by_threads<Stored<>>(plan, "tested.weight", threads) == expected);
}

TEST_CASE("host: with products in f32 models in bf16 are off by what rounding their images costs") {
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    CHECK(exec_compare::usual_distance<Stored<>>(plan, hash_of(operation.name)) < 2e-2);
  }
  exec_models::for_each([](const std::string& name, const Plan& plan) {
    INFO(name);
    const double most = name == exec_models::Patterns::name ? 0.12 : 6e-2;
    CHECK(exec_compare::usual_distance<Stored<>>(plan, hash_of(name)) < most);
    CHECK(exec_compare::usual_distance<Stored<true>>(plan, hash_of(name)) < most);
    CHECK(exec_compare::usual_distance<Stored<false, true>>(plan, hash_of(name)) < most);
  });
}

TEST_CASE(
    "host: with products in f32 convoy's own kernels compute what they can of a residual network in bf16") {
  const Plan& plan = plan_of<models::ResNet50<Image{3, 64, 64}, 10>>;
  CHECK(implementation<Stored<>>(plan, "layer1.0.conv1") == "convoy:gemm");
  CHECK(implementation<Stored<>>(plan, "layer2.0.conv2") == "convoy:gemm");
  CHECK(implementation<Stored<>>(plan, "layer2.0.downsample.0") == "convoy:gemm");
  CHECK(implementation<Stored<>>(plan, "conv1").find("convoy") == std::string::npos);
  CHECK(implementation<Stored<false, true>>(plan, "layer1.0.conv1").find("convoy") == std::string::npos);
  CHECK(implementation<exec::Host<f32>>(plan, "layer1.0.conv1").find("convoy") == std::string::npos);
}
