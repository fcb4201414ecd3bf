// NEEDS: host
// TIMEOUT: 300
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// Host against the reference over random models, and against values made with PyTorch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_fixtures.hpp"
#include "exec_models.hpp"
#include "exec_random_models.hpp"
#include "sanitized.hpp"
#include <convoy/exec/host/host.hpp>

using namespace convoy;
using HostF32 = exec::Host<f32>;

namespace {

/// A Host whose kernels compute one node each, as on a processor without fused kernels.
class Unfused : public HostF32 {
 public:
  Unfused(const Plan& plan, int batch, const Options& options)
      : HostF32(plan, batch, options, memory::host(), kernels()) {}

 private:
  static const exec::Kernels<HostF32>& kernels() {
    static const exec::Kernels<HostF32> single = [] {
      auto made = exec::kernels<HostF32>;
      for (auto& kernel : made) kernel.follows = 0;
      return made;
    }();
    return single;
  }
};

}  // namespace

TEST_CASE(
    "host: random models agree with the reference, forward, backward, evaluating, on full and ragged "
    "batches") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const exec_compare::Model model{seed};
    INFO("seed ", seed, "\n", model.text());
    CHECK(exec_compare::difference<HostF32>(model.plan(), {.seed = seed,
                                                           .batch = 1 + static_cast<int>(seed % 5),
                                                           .threads = 1 + static_cast<int>(seed % 2)}) == "");
  }
}

TEST_CASE("host: shared parameters, sequences, bytes and custom parameters agree with the reference") {
  exec_models::for_each([](const std::string& name, const Plan& plan) {
    INFO(name);
    for (const int batch : {1, 5})
      for (const int threads : {1, 2})
        CHECK(exec_compare::difference<HostF32>(plan, {.seed = 3, .batch = batch, .threads = threads}) == "");
  });
}

TEST_CASE("host: a pattern that a kernel does not compute is computed node by node") {
  exec_models::for_each([](const std::string& name, const Plan& plan) {
    INFO(name);
    CHECK(exec_compare::difference<Unfused>(plan, {.seed = 4, .batch = 3}) == "");
  });
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const exec_compare::Model model{seed};
    INFO("seed ", seed, "\n", model.text());
    CHECK(exec_compare::difference<Unfused>(model.plan(), {.seed = seed, .batch = 3}) == "");
  }
  const DynamicPlan patterns([](auto& g) { exec_models::Patterns::define(g); });
  const Unfused unfused(patterns, 1, {});
  std::size_t computed = 0;
  for (const auto& node : patterns.plan().nodes) computed += !node.given;
  CHECK(unfused.profile().size() == computed);
  CHECK(HostF32(patterns, 1).profile().size() == patterns.plan().stages.size());
}

TEST_CASE("host: the gradients of large linear layers agree with the reference") {
  // 4 rows of 128 positions. The first weight is used twice, so that its second gradient is added.
  const DynamicPlan plan([](auto& g) {
    auto x = g.input("x", Shape{128, 260});
    const auto weight = g.parameter("shared.weight", {260, 260});
    const auto bias = g.parameter("shared.bias", {260});
    x = g.gelu(g.linear(g.linear(x, weight, bias), weight, bias));
    x = g.linear(x, {.features = 256, .bias = false});
    g.loss(g.cross_entropy(g.linear(g.mean(x), {.features = 3}), g.label("label", 3)));
  });
  for (const int threads : {1, 2, 3}) {
    if (sanitized && threads != 3) continue;
    CHECK(exec_compare::difference<HostF32>(plan, {.seed = 5, .batch = 4, .threads = threads}) == "");
  }
}

TEST_CASE("host: larger maps agree with the reference") {
  for (std::uint64_t seed = 101; seed <= 110; ++seed) {
    const exec_compare::Model model{seed, {.largest_map = 20, .operations = 4}};
    INFO("seed ", seed, "\n", model.text());
    CHECK(exec_compare::difference<HostF32>(model.plan(), {.seed = seed, .batch = 6, .threads = 2}) == "");
  }
}

TEST_CASE("host: a window keeps a NaN or an infinity wherever it stands, as the reference's") {
  constexpr int side = 6;
  constexpr float infinite = std::numeric_limits<float>::infinity();
  for (const int kernel : {2, 3}) {
    const DynamicPlan plan([=](auto& g) {
      const auto x = g.max_pool(g.input("image", Image{3, side, side}), {.kernel = kernel, .stride = 2});
      g.output("largest", x);
      g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 2}), g.label("label", 2)));
    });
    const std::vector<i32> labels{0};
    for (const float odd : {std::numeric_limits<float>::quiet_NaN(), infinite, -infinite})
      for (std::size_t place = 0; place < side * side; ++place) {
        std::vector<float> image(3 * side * side, 0.5f);
        image[place] = odd;
        // Windows of -infinity only; a NaN among finite numbers.
        if (std::isinf(odd))
          std::fill(image.begin() + side * side, image.begin() + 2 * side * side, -infinite);
        const void* fields[] = {image.data(), labels.data()};
        const auto seen = [&]<class E>(E exec) {
          exec.forward({fields, 1}, {.mode = exec::Mode::evaluate});
          std::vector<float> values;  // 77 stands for NaN, which equals nothing
          for (const auto value : exec.output(0)) values.push_back(std::isnan(value) ? 77 : value);
          return values;
        };
        CHECK(seen(exec::Host<f32>(plan, 1)) == seen(exec::Reference<float>(plan, 1)));
      }
  }
}

TEST_CASE("host: single operations and a residual block agree with PyTorch") {
  const fixtures::File file("operations.txt");
  CHECK(file.cases().size() >= 51);
  for (const auto& name : file.cases())
    CHECK(exec_fixtures::operation_difference<HostF32>(file, name, 1e-4) == "");
}

TEST_CASE("host: a ResNet-18 step agrees with PyTorch in loss, gradients and running statistics") {
  CHECK(exec_fixtures::resnet18_difference<HostF32>(1e-4, 4) == "");
}

TEST_CASE("host: ten ResNet-18 losses under Adam and SGD agree with PyTorch") {
  // Outside x86-64, the products of oneDNN 2.6 round more.
#if defined(__x86_64__)
  constexpr double slack = 4;
#else
  constexpr double slack = 16;
#endif
  if (sanitized) return;  // the kernels of the one step above, again and again
  CHECK(exec_fixtures::ten_losses_difference<HostF32>(slack) == "");
}
