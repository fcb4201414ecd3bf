// Profiles: computed from a roofline or from a throughput, and refused for a plan that is not theirs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include "near.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/graph/profile.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;

namespace {

constexpr const Plan& small = plan_of<models::ResNet18<Image{1, 28, 28}, 10>>;
constexpr const Plan& large = plan_of<models::ResNet18<Image{1, 224, 224}, 10>>;

/// A model of one matrix product with 16 inputs and `features` outputs.
DynamicPlan one_product(int features) {
  return DynamicPlan([&](auto& g) {
    auto x = g.input("x", Shape{16});
    auto y = g.linear(x, {.features = features, .bias = false, .name = "product"});
    g.loss(g.cross_entropy(y, g.label("label", features), {.name = "loss"}));
  });
}

std::string refusal(const Plan& plan, const graph::Profile& profile) {
  try {
    graph::expect_profile(plan, profile);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

const graph::OperationTime& time_of(const graph::Profile& profile, std::string_view name) {
  return *std::find_if(profile.operations.begin(), profile.operations.end(),
                       [&](const auto& time) { return time.name == name; });
}

}  // namespace

TEST_CASE("a roofline takes as long as the slower of FLOPs and bytes, and moves parameters once a batch") {
  const DynamicPlan plan = one_product(8);
  const double inf = std::numeric_limits<double>::max();
  // 16 x 8 multiply-accumulates a row; backward computes no gradient of the input.
  const auto by_flops = graph::roofline(plan, 4, 1, inf);
  CHECK(time_of(by_flops, "product").forward == test::near(2 * 16 * 8 * 4));
  CHECK(time_of(by_flops, "product").backward == test::near(2 * 16 * 8 * 4));
  // A row reads 16 and writes 8 elements. The weight moves once per batch; in backward its gradient does too.
  const auto by_bytes = graph::roofline(plan, 4, inf, 1);
  CHECK(time_of(by_bytes, "product").forward == test::near(4 * (4 * (16 + 8) + 16 * 8)));
  CHECK(time_of(by_bytes, "product").backward == test::near(4 * (4 * (16 + 8) + 2 * 16 * 8)));
  CHECK(by_bytes.update == test::near(7 * 4 * 16 * 8));
  // Each operation has its own limit.
  const auto both = graph::roofline(plan, 4, 2, 1);
  for (std::size_t i = 0; i < both.operations.size(); ++i) {
    CHECK(both.operations[i].forward ==
          test::near(std::max(by_flops.operations[i].forward / 2, by_bytes.operations[i].forward)));
    CHECK(both.operations[i].backward ==
          test::near(std::max(by_flops.operations[i].backward / 2, by_bytes.operations[i].backward)));
  }
}

TEST_CASE("a throughput is spread over every operation") {
  const auto profile = graph::spread(small, 128, 81.84);
  CHECK(profile.step() == test::near(128 / 81.84));
  CHECK(profile.rows == 128);
  CHECK(profile.update == 0);
  CHECK(profile.backward() > 1.5 * profile.forward());
  CHECK(profile.backward() < 2.5 * profile.forward());
  graph::expect_profile(small, profile);
  for (const auto& time : profile.operations)
    if (time.operation != "flatten") CHECK(time.forward > 0);
  // The operations' shares of the time do not depend on the throughput.
  const auto faster = graph::spread(small, 128, 163.68);
  for (std::size_t i = 0; i < profile.operations.size(); ++i)
    CHECK(faster.operations[i].backward == profile.operations[i].backward / 2);
  // If only FLOPs take time, products take nearly all of the step.
  const auto products = graph::spread(small, 128, 81.84, 1e-9);
  double share = 0;
  for (const auto& time : products.operations)
    if (time.operation == "conv2d" || time.operation == "linear") share += time.forward + time.backward;
  CHECK(share > 0.97 * products.step());
}

TEST_CASE("a profile is refused for another plan, and with values that are no times") {
  const auto profile = graph::spread(small, 128, 100);
  CHECK(refusal(small, profile) == "");
  auto named = profile;
  named.model = "resnet18";
  CHECK(refusal(large, named) ==
        "profile: the profile of resnet18 is for another plan: its operation 0 is conv2d conv1 [64x14x14], "
        "where this plan has conv2d conv1 [64x112x112]");
  auto shorter = profile;
  shorter.operations.pop_back();
  const auto count = profile.operations.size();
  CHECK(refusal(small, shorter) == concat("profile: the profile is for another plan: it has ", count - 1,
                                          " operations, where this plan has ", count));
  auto wrong = profile;
  wrong.operations[2].backward = -1;
  CHECK(refusal(small, wrong) == concat("profile: ", wrong.operations[2].name, " takes ",
                                        wrong.operations[2].forward,
                                        " and -1 seconds, expected times from 0 to 1e9"));
  wrong = profile;
  wrong.operations[1].forward = std::nan("");
  CHECK(refusal(small, wrong) != "");
  wrong = profile;
  wrong.update = std::numeric_limits<double>::infinity();
  CHECK(refusal(small, wrong) != "");
  wrong = profile;
  wrong.rows = 0;
  CHECK(refusal(small, wrong) == "profile: the profile has a batch of 0 rows, expected at least 1");
}

TEST_CASE("rates that are not positive make no profile") {
  CHECK_THROWS_AS(graph::roofline(small, 1, 0, 1), ConfigError);
  CHECK_THROWS_AS(graph::roofline(small, 1, 1, -1), ConfigError);
  CHECK_THROWS_AS(graph::roofline(small, 0, 1, 1), ConfigError);
  CHECK_THROWS_AS(graph::spread(small, 1, 0), ConfigError);
  CHECK_THROWS_AS(graph::spread(small, 1, std::nan("")), ConfigError);
  CHECK_THROWS_AS(graph::spread(small, 1, 1, 0), ConfigError);
}
