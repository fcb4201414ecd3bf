// NEEDS: host
// TIMEOUT: 300
// Convolutions over large maps, by Winograd's algorithm, against the reference.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "sanitized.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using HostF32 = exec::Host<f32>;

namespace {

template <class G>
void define(G& g, int in, int out, int height, int width) {
  auto x = g.input("image", {3, height, width});
  x = g.relu(g.batch_norm(g.conv2d(x, {.channels = in, .kernel = 1})));
  auto y = g.batch_norm(g.conv2d(x, {.channels = out, .kernel = 3, .name = "tested"}));
  if (y.shape == x.shape) y = g.add(y, x);
  y = g.relu(y);
  g.output("map", y);
  g.loss(g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(y)), {.features = 4}), g.label("label", 4)));
}

std::string implementation(const Plan& plan, bool winograd) {
  const HostF32 host(plan, 3, {.threads = 1, .winograd = winograd});
  for (const auto& stage : host.profile())
    if (stage.name == "tested") return stage.implementation;
  return {};
}

}  // namespace

TEST_CASE("host: convolutions over large maps agree with the reference") {
  std::uint64_t seed = 0;
  for (const auto& map : {std::pair{12, 12}, std::pair{14, 14}, std::pair{13, 19}, std::pair{28, 28}})
    for (const auto& channels : {std::pair{16, 16}, std::pair{32, 96}, std::pair{64, 64}}) {
      const int height = map.first, width = map.second, in = channels.first, out = channels.second;
      ++seed;
      if (sanitized && seed % 5 != 3) continue;  // 64 channels on 12x12, and 32 to 96 on 13x19
      const DynamicPlan plan([&](auto& g) { define(g, in, out, height, width); });
      INFO(in, " to ", out, " channels on ", height, "x", width, ": ", implementation(plan, true));
      // Winograd's algorithm rounds more, so data must stay farther from kinks; small batches meet few.
      CHECK(exec_compare::difference<HostF32>(plan,
                                              {.seed = seed,
                                               .batch = static_cast<int>(1 + (height < 28 ? seed % 2 : 0)),
                                               .margin = 1e-5,
                                               .threads = static_cast<int>(1 + seed % 2)}) == "");
    }
}

TEST_CASE("host: Winograd's algorithm does not depend on the number of threads") {
  const DynamicPlan plan([](auto& g) {
    const auto x = g.conv2d(g.input("image", {3, 17, 18}), {.channels = 32, .kernel = 1});
    const auto y = g.conv2d(x, {.channels = 64, .name = "tested"});
    g.loss(g.mse_loss(y, g.input("target", y.shape)));
  });
  const auto expected = exec_compare::gradient_by_threads<HostF32>(plan, "tested.weight", 1);
  for (const int threads : {2, 3, 5})
    CHECK(exec_compare::gradient_by_threads<HostF32>(plan, "tested.weight", threads) == expected);
}

TEST_CASE("host: a residual network over 224x224 agrees with the reference") {
  if (sanitized) return;  // the same kernels as above, over more numbers
  // One block per stage: every shape of convolution in ResNet-18, in half the time.
  constexpr models::Stages one_each{{1, 1, 1, 1}};
  constexpr const Plan& plan =
      plan_of<models::ResNet<Image{1, 224, 224}, 10, models::ResidualBlock::basic, one_each>>;
  // Of two million values some always lie near a kink, and crossing it changes a gradient slightly.
  CHECK(exec_compare::difference<HostF32>(plan, {.batch = 1, .tolerance = 1e-2, .margin = 0, .threads = 2}) ==
        "");
}

TEST_CASE("host: Winograd's algorithm is used where it pays, and not when told so") {
  const DynamicPlan large([](auto& g) { define(g, 64, 64, 28, 28); });
  const DynamicPlan small([](auto& g) { define(g, 64, 64, 7, 7); });
#if defined(__x86_64__)
  CHECK(implementation(large, true) == "convoy:winograd");
#endif
  CHECK(implementation(large, false).find("wino") == std::string::npos);
  CHECK(implementation(small, true).find("wino") == std::string::npos);
}
