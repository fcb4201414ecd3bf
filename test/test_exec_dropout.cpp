// SANITIZE: none
// NEEDS: host
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// Dropout's draws are a function of the seed, the layer, the epoch, the row's position and the element.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/exec/host/host.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace convoy;

namespace {

constexpr int rows = 7;
const exec::Pass training{.mode = exec::Mode::train, .seed = 3, .epoch = 2, .position = 40};

/// Dropout of a row, a sequence or an image.
DynamicPlan dropping(Shape shape, float p = 0.3f, std::string_view name = "drop") {
  return DynamicPlan([&](auto& g) {
    const auto x = g.dropout(g.input("x", shape), {.p = p, .name = name});
    g.output("y", x);
    g.loss(g.mse_loss(x, x));
  });
}

/// A sum with a dropped-out summand, with or without a layer norm. If the intermediate values are outputs,
/// the operations are not fused.
DynamicPlan adding(Shape shape, bool norm, bool together) {
  return DynamicPlan([&](auto& g) {
    const auto x = g.input("x", shape), dropped = g.dropout(x, {.p = 0.5f, .name = "drop"});
    const auto sum = g.add(x, dropped);
    const auto y = norm ? g.layer_norm(sum) : sum;
    g.output("y", y);
    if (!together) g.output("dropped", dropped);
    if (!together) g.output("sum", sum);
    g.loss(g.mse_loss(y, y));
  });
}

/// Rows [from, to) of ones after dropout.
template <class E>
std::vector<float> dropped(const Plan& plan, exec::Pass pass, int from = 0, int to = rows, int threads = 1) {
  typename E::Options options{};
  options.threads = threads;
  E e(plan, rows, options);
  const std::vector<float> ones(static_cast<std::size_t>(rows * plan.node(0).shape.size()), 1.0f);
  const std::vector<const void*> fields{ones.data()};
  pass.position += from;
  e.forward({fields, to - from}, pass);
  const auto y = e.output(0);
  return {y.begin(), y.end()};
}

using Host = exec::Host<f32>;
using Reference = exec::Reference<float>;

}  // namespace

TEST_CASE("dropout: a row's elements do not depend on how a batch is split, on threads or on the Exec") {
  for (const Shape shape : {Shape{1}, Shape{67}, Shape{13, 37}, Shape{19, 5, 7}, Shape{64, 40, 30}}) {
    const DynamicPlan plan = dropping(shape);
    const auto whole = dropped<Reference>(plan, training);
    CHECK(dropped<Host>(plan, training) == whole);
    CHECK(dropped<Host>(plan, training, 0, rows, 3) == whole);
    for (const int cut : {1, 3, 6}) {
      auto parts = dropped<Host>(plan, training, 0, cut);
      const auto rest = dropped<Host>(plan, training, cut, rows);
      parts.insert(parts.end(), rest.begin(), rest.end());
      CHECK(parts == whole);
    }
  }
}

TEST_CASE("dropout: as many elements are dropped as are to be, and the others make up for them") {
  for (const float p : {0.0f, 0.1f, 0.5f, 0.9f}) {
    const DynamicPlan plan = dropping({300, 100}, p);
    const auto y = dropped<Host>(plan, training);
    const auto zeros = static_cast<double>(std::count(y.begin(), y.end(), 0.0f));
    const auto kept = std::count(y.begin(), y.end(), 1.0f / (1.0f - p));
    CHECK(static_cast<double>(kept) + zeros == static_cast<double>(y.size()));
    // 210000 draws: five standard deviations are below 0.6 %.
    CHECK(zeros / static_cast<double>(y.size()) == doctest::Approx(p).epsilon(0.006));
  }
}

TEST_CASE("dropout: other seeds, epochs, positions and layers drop other elements; evaluation drops none") {
  const DynamicPlan plan = dropping({200});
  const auto first = dropped<Host>(plan, training);
  exec::Pass pass = training;
  pass.seed = 4;
  CHECK(dropped<Host>(plan, pass) != first);
  pass = training;
  pass.epoch = 3;
  CHECK(dropped<Host>(plan, pass) != first);
  pass = training;
  pass.position = 41;
  const auto later = dropped<Host>(plan, pass);
  CHECK(std::equal(first.begin() + 200, first.end(), later.begin()));
  CHECK(!std::equal(first.begin(), first.begin() + 200, later.begin()));
  CHECK(dropped<Host>(dropping({200}, 0.3f, "another"), training) != first);
  pass.mode = exec::Mode::evaluate;
  CHECK(dropped<Host>(plan, pass) == std::vector<float>(first.size(), 1.0f));
}

TEST_CASE("dropout: a sum and its norm drop the same bits together as one by one, however a batch is split") {
  for (const Shape shape : {Shape{3}, Shape{67}, Shape{13, 37}, Shape{5, 64}, Shape{9, 256}, Shape{19, 5, 7}})
    for (const bool norm : {false, true}) {
      if (norm && shape.rank > 2) continue;
      const DynamicPlan together = adding(shape, norm, true), apart = adding(shape, norm, false);
      CHECK(together.plan().stages.size() < apart.plan().stages.size());
      // Ones dropped out at p = 0.5 are doubled, so no sum is rounded.
      const auto whole = dropped<Host>(apart, training);
      if (!norm) CHECK(dropped<Reference>(apart, training) == whole);
      CHECK(dropped<Host>(together, training) == whole);
      CHECK(dropped<Host>(together, training, 0, rows, 3) == whole);
      for (const int cut : {1, 3, 6}) {
        auto parts = dropped<Host>(together, training, 0, cut);
        const auto rest = dropped<Host>(together, training, cut, rows);
        parts.insert(parts.end(), rest.begin(), rest.end());
        CHECK(parts == whole);
      }
      exec::Pass pass = training;
      pass.mode = exec::Mode::evaluate;
      CHECK(dropped<Host>(together, pass) == dropped<Host>(apart, pass));
      if (!norm) CHECK(dropped<Host>(together, pass) == std::vector<float>(whole.size(), 2.0f));
    }
}
