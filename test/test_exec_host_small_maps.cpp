// NEEDS: host
// TIMEOUT: 300
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// Host's own convolutions over small maps against the reference: every geometry, batches that do not fill a
// tile, ragged batches.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "sanitized.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace convoy;
using HostF32 = exec::Host<f32>;

namespace {

struct Geometry {
  int height, width, kernel, stride, padding;
};

/// A stem with `in` channels, the convolution under test, and a residual around it where shapes allow.
template <class G>
void define(G& g, int in, int out, const Geometry& s) {
  auto x = g.input("image", {3, s.height, s.width});
  x = g.relu(g.batch_norm(g.conv2d(x, {.channels = in, .kernel = 1})));
  auto y = g.conv2d(
      x, {.channels = out, .kernel = s.kernel, .stride = s.stride, .padding = s.padding, .name = "tested"});
  y = g.batch_norm(y);
  if (y.shape == x.shape) y = g.add(y, x);
  y = g.relu(y);
  g.output("map", y);
  g.loss(g.cross_entropy(g.linear(g.flatten(y), {.features = 4}), g.label("label", 4)));
}

bool runs_own_kernel(const Plan& plan) {
  const HostF32 host(plan, 4, {.threads = 1});
  for (const auto& stage : host.profile())
    if (stage.name == "tested") return stage.implementation == "convoy:taps";
  return false;
}

}  // namespace

TEST_CASE("host: convolutions over small maps agree with the reference") {
  const Geometry geometries[] = {{1, 1, 3, 1, 1}, {2, 2, 3, 1, 1}, {2, 2, 3, 2, 1}, {4, 4, 3, 2, 1},
                                 {4, 4, 1, 2, 0}, {7, 7, 3, 1, 1}, {7, 5, 3, 2, 1}, {3, 2, 5, 1, 2},
                                 {1, 6, 3, 1, 1}, {5, 5, 2, 2, 0}, {3, 3, 3, 1, 0}, {6, 6, 7, 3, 3},
                                 {4, 3, 1, 1, 0}};
  int which = 0;
  for (const Geometry& s : geometries)
    for (const auto& channels : {std::pair{32, 32}, std::pair{64, 32}, std::pair{32, 96}}) {
      const int of_three = which++ % 3;
      if (sanitized && of_three != (&s - geometries) % 3) continue;
      const int in = channels.first, out = channels.second;  // clang 14 cannot capture structured bindings
      const DynamicPlan plan([&](auto& g) { define(g, in, out, s); });
      INFO(in, " to ", out, " channels on ", s.height, "x", s.width, " kernel ", s.kernel, " stride ",
           s.stride, " padding ", s.padding);
      CHECK(runs_own_kernel(plan));
      const int batch = 1 + (which - 1) * 7 % (sanitized ? 5 : 29);
      const auto seed = static_cast<std::uint64_t>(which);
      CHECK(exec_compare::difference<HostF32>(
                plan, {.seed = seed, .batch = batch, .threads = 1 + which % 3}) == "");
    }
}

TEST_CASE("host: taps that only meet padding can be kept, and have a gradient of zero") {
  for (const Geometry& s : {Geometry{1, 1, 3, 1, 1}, Geometry{2, 2, 3, 2, 1}, Geometry{3, 2, 5, 1, 2}}) {
    const DynamicPlan lean([&](auto& g) { define(g, 64, 32, s); });
    const DynamicPlan kept(lean, {.keep_dead_taps = true});
    INFO(s.height, "x", s.width, " kernel ", s.kernel);
    REQUIRE(lean.plan().dead_parameters() > 0);
    CHECK(exec_compare::difference<HostF32>(kept, {.seed = 11, .batch = 9, .threads = 2}) == "");
    HostF32 with(kept, 4, {.threads = 1}), without(lean, 4, {.threads = 1});
    exec_compare::randomize(with, kept, Philox{1, 2});
    exec_compare::randomize(without, lean, Philox{1, 2});
    const exec_compare::Batch batch(kept, 4, Philox{3, 4});
    CHECK(exec_compare::forward(with, batch).loss() ==
          doctest::Approx(exec_compare::forward(without, batch).loss()).epsilon(1e-5));
    const int p = exec_compare::parameter_named(kept, "tested.weight");
    const auto size = static_cast<std::size_t>(kept.plan().parameter(p).shape.size());
    std::vector<float> a(size), b(size);
    const std::vector<float> scales(kept.plan().losses.size(), 1.0f);
    for (auto* exec : {&with, &without}) exec->backward(scales, [](std::int64_t) {});
    with.read_gradient(p, a);
    without.read_gradient(p, b);
    double worst = 0;
    for (std::size_t i = 0; i < size; ++i) worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
    CHECK(worst < 1e-4);
  }
}

TEST_CASE("host: a batch in several cache blocks agrees with the reference") {
  const DynamicPlan plan([](auto& g) { define(g, 64, 64, {8, 8, 3, 1, 1}); });
  CHECK(exec_compare::difference<HostF32>(plan, {.seed = 5, .batch = 50, .margin = 1e-6, .threads = 2}) ==
        "");
}

TEST_CASE("host: the canonical order gives the same model as the chosen one") {
  const DynamicPlan plan([](auto& g) { define(g, 32, 64, {2, 2, 3, 2, 1}); });
  HostF32 chosen(plan, 8, {.threads = 1}), canonical(plan, 8, {.threads = 1, .canonical = true});
  CHECK(chosen.layout_fingerprint() != canonical.layout_fingerprint());
  exec_compare::randomize(chosen, plan, Philox{1, 2});
  exec_compare::randomize(canonical, plan, Philox{1, 2});
  const exec_compare::Batch batch(plan, 8, Philox{3, 4});
  const double a = exec_compare::forward(chosen, batch).loss(),
               b = exec_compare::forward(canonical, batch).loss();
  CHECK(a == doctest::Approx(b).epsilon(1e-5));
  // A canonical slot holds the values in the plan's order.
  std::vector<float> values(64 * 32 * 9), in_plan_order(values.size());
  const int p = exec_compare::parameter_named(plan, "tested.weight");
  canonical.read_parameter(p, values);
  exec::read_canonical<float>(plan, p, canonical.parameters(), in_plan_order);
  CHECK(values == in_plan_order);
}

TEST_CASE("host: tells how weights stand as matrices") {
  const DynamicPlan dynamic([](auto& g) {
    define(g, 32, 64, {3, 3, 3, 2, 1});
    auto x = g.conv2d(g.input("large", {3, 40, 40}), {.channels = 32, .kernel = 3, .padding = 1});
    g.output("pooled", g.global_avg_pool(g.conv2d(x, {.channels = 64, .kernel = 5, .stride = 2})));
  });
  const Plan& plan = dynamic;
  HostF32 chosen(plan, 8, {.threads = 1}), canonical(plan, 8, {.threads = 1, .canonical = true});
  CHECK(chosen.panel(exec_compare::parameter_named(plan, "tested.weight")) == 32);
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) {
    const auto& parameter = plan.parameter_list[static_cast<std::size_t>(p)];
    if (parameter.shape.rank < 2) continue;
    INFO(parameter.name.view());
    CHECK(canonical.panel(p) == 1);
    const std::int64_t panel = chosen.panel(p), rows = parameter.shape[0];
    REQUIRE(panel > 0);
    std::vector<float> row_of(static_cast<std::size_t>(parameter.shape.size()));
    for (std::size_t i = 0; i < row_of.size(); ++i)
      row_of[i] = static_cast<float>(i / (row_of.size() / static_cast<std::size_t>(rows)));
    chosen.write_parameter(p, row_of);
    const Range live = plan.slots[static_cast<std::size_t>(p)].live;
    const std::int64_t strip = panel * (live.size() / rows);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < live.size(); ++i)
      wrong += chosen.parameters()[static_cast<std::size_t>(live.begin + i)] !=
               static_cast<float>(i / strip * panel + i % panel);
    CHECK(wrong == 0);
  }
}
