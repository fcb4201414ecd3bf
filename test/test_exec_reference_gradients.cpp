// The reference against central differences: every operation separately over awkward shapes, then random
// models.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_models.hpp"
#include "exec_operations.hpp"
#include "exec_random_graphs.hpp"
#include "exec_random_models.hpp"
#include "sanitized.hpp"

using namespace convoy;
using exec_compare::Batch;

namespace {

/// The losses of one training pass, summed over its rows.
double loss_of(exec::Reference<double>& e, const Batch& batch) {
  return exec_compare::forward(e, batch).loss();
}

/// A message about the first gradient that differs from a central difference; empty if there is none.
std::string wrong_gradient(const Plan& plan, int rows, std::uint64_t seed) {
  constexpr double step = 1e-6;
  // A kink within the step would spoil the difference. Norms enlarge the step on its way to the kink.
  constexpr double margin = 30 * step;
  exec::Reference<double> e(plan, rows);
  exec_compare::randomize(e, plan, Philox{seed, 1});
  Philox random{seed, 2};
  const auto batch = exec_compare::away_from_kinks(e, plan, margin, [&] {
    return Batch(plan, rows, Philox{seed, random.next()});
  });
  if (!batch)
    return concat("every batch drawn is within ", margin, " of a kink in\n",
                  exec_compare::Model::describe(plan));
  double scale = std::max(1.0, std::abs(e.result().loss()));
  exec_compare::backward(e, plan);
  const std::vector<double> gradients(e.gradients().begin(), e.gradients().end());
  for (const double value : gradients) scale = std::max(scale, std::abs(value));
  const double rounding = 1e-14 * scale / step;  // of the difference
  for (int p : plan.exchange_order) {
    const Range live = plan.slots[static_cast<std::size_t>(p)].live;
    double largest = 0;
    for (std::int64_t at = live.begin; at < live.end; ++at)
      largest = std::max(largest, std::abs(gradients[static_cast<std::size_t>(at)]));
    constexpr std::int64_t most = sanitized ? 4 : 24;  // elements per tensor that are checked
    for (std::int64_t k = 0; k < std::min(most, live.size()); ++k) {
      const auto at = static_cast<std::size_t>(
          live.begin + (live.size() <= most ? k : random.below(static_cast<std::uint32_t>(live.size()))));
      double& value = e.parameters()[at];
      const double before = value;
      value = before + step;
      const double above = loss_of(e, *batch);
      value = before - step;
      const double below = loss_of(e, *batch);
      value = before;
      const double error = std::abs((above - below) / (2 * step) - gradients[at]);
      if (!(error <= 1e-6 * largest + rounding))
        return concat("the gradient of ", plan.parameter_list[static_cast<std::size_t>(p)].name, " at ", at,
                      " is ", gradients[at], ", off by ", error, " (the largest being ", largest, ") in\n",
                      exec_compare::Model::describe(plan));
    }
  }
  return {};
}

struct Map {
  int channels, height, width;
};
constexpr Map maps[] = {{1, 1, 1}, {3, 1, 1}, {2, 2, 2}, {3, 2, 1}, {1, 5, 7}, {3, 4, 3}, {2, 9, 5}};

/// Checks an operation over maps and batch sizes. A convolution with bias before the operation turns its
/// input gradient into gradients of parameters; a convolution after it makes its output gradient uneven.
template <class Operation>
void check_operation(Operation operation, int kernel = 1, int padding = 0) {
  std::uint64_t seed = 40;
  for (const Map& map : maps)
    for (const int rows : {1, 3}) {
      if (map.height + 2 * padding < kernel || map.width + 2 * padding < kernel) continue;
      const DynamicPlan plan([&](auto& g) {
        auto x = g.input("image", {map.channels, map.height, map.width});
        x = g.conv2d(x, {.channels = map.channels, .kernel = 1, .bias = true, .name = "before"});
        x = operation(g, x);
        if (x.shape.rank == 3) {
          x = g.conv2d(x, {.channels = 2, .kernel = 3, .bias = true, .name = "after"});
          x = g.flatten(x);
        }
        g.loss(g.cross_entropy(g.linear(x, {.features = 4, .name = "fc"}), g.label("label", 4),
                               {.name = "loss"}));
      });
      CHECK(wrong_gradient(plan, rows, ++seed) == "");
    }
}

}  // namespace

TEST_CASE("reference: gradients of convolutions agree with central differences") {
  for (const int kernel : {1, 2, 3, 5, 7})
    for (const int stride : {1, 2, 3})
      for (const int padding : {0, 1, kernel / 2})
        for (const bool bias : {false, true}) {
          if (padding >= kernel) continue;
          check_operation(
              [&](auto& g, auto x) {
                return g.conv2d(
                    x, {.channels = 3, .kernel = kernel, .stride = stride, .padding = padding, .bias = bias});
              },
              kernel, padding);
        }
}

TEST_CASE("reference: gradients of batch norm, ReLU, add and flatten agree with central differences") {
  check_operation([](auto& g, auto x) { return g.batch_norm(x); });
  check_operation([](auto& g, auto x) { return g.batch_norm(x, {.epsilon = 0.1f, .momentum = 0.5f}); });
  check_operation([](auto& g, auto x) { return g.relu(x); });
  check_operation([](auto& g, auto x) { return g.add(x, x); });
  check_operation(
      [](auto& g, auto x) { return g.relu(g.add(g.batch_norm(g.conv2d(x, {.channels = x.shape[0]})), x)); });
  check_operation([](auto& g, auto x) { return g.flatten(x); });
  check_operation([](auto& g, auto x) { return g.flatten(g.flatten(x)); });
}

TEST_CASE("reference: gradients of poolings agree with central differences") {
  for (const int kernel : {1, 2, 3})
    for (const int stride : {0, 1, 2, 3})
      for (const int padding : {0, kernel / 2}) {
        check_operation(
            [&](auto& g, auto x) {
              return g.max_pool(x, {.kernel = kernel, .stride = stride, .padding = padding});
            },
            kernel, padding);
        check_operation(
            [&](auto& g, auto x) {
              return g.avg_pool(x, {.kernel = kernel, .stride = stride, .padding = padding});
            },
            kernel, padding);
      }
  check_operation([](auto& g, auto x) { return g.global_avg_pool(x); });
}

TEST_CASE("reference: gradients of linear layers agree with central differences") {
  for (const bool bias : {false, true})
    for (const int features : {1, 6})
      check_operation([&](auto& g, auto x) {
        return g.relu(g.linear(g.flatten(x), {.features = features, .bias = bias}));
      });
}

TEST_CASE("reference: gradients of custom operations and losses agree with central differences") {
  check_operation([](auto& g, auto x) { return g.custom(exec_compare::Swish{}, x); });
  check_operation([](auto& g, auto x) { return g.custom(exec_compare::Product{}, x, g.relu(x)); });
  check_operation([](auto& g, auto x) { return g.custom(exec_compare::Product{}, x, x); });
  check_operation([](auto& g, auto x) {
    g.loss(g.custom_loss(exec_compare::Energy{}, x));
    auto y = g.linear(g.flatten(x), {.features = 3});
    g.loss(g.custom_loss(exec_compare::SquaredHinge{}, y, g.label("other", 3)));
    return x;
  });
}

TEST_CASE(
    "reference: gradients of shared parameters, sequences and custom parameters agree with differences") {
  exec_models::for_each([](const std::string& name, const Plan& plan) {
    INFO(name);
    for (const int rows : {1, 3}) CHECK(wrong_gradient(plan, rows, 7) == "");
  });
}

TEST_CASE("reference: gradients of each operation agree with central differences") {
  std::uint64_t seed = 300;
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    CHECK(wrong_gradient(plan, 2, ++seed) == "");
  }
}

TEST_CASE("reference: gradients of random graphs of all operations agree with central differences") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const DynamicPlan plan([&](auto& g) { exec_random_graphs::define(g, Philox{seed, 79}); });
    INFO("seed ", seed);
    CHECK(wrong_gradient(plan, 1 + static_cast<int>(seed % 3), seed) == "");
  }
}

TEST_CASE("reference: gradients of random models agree with central differences") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const exec_compare::Model model{seed};
    CHECK(wrong_gradient(model.plan(), 1 + static_cast<int>(seed % 4), seed) == "");
  }
}
