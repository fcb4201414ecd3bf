// NEEDS: host
// Recorded profiles: the times of stages become times of a plan's operations.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/exec/host/recorder.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace convoy;
using exec::host::Recorder;
using exec::host::StageProfile;

namespace {

DynamicPlan small_net() {
  return DynamicPlan([](auto& g) {
    auto x = g.input("image", Image{1, 8, 8});
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 8, .name = "conv"}), {.name = "norm"}),
               {.name = "relu"});
    x = g.linear(g.flatten(x), {.features = 5, .name = "fc"});
    g.loss(g.cross_entropy(x, g.label("label", 5), {.name = "loss"}));
  });
}

const graph::OperationTime& time_of(const graph::Profile& profile, std::string_view name) {
  return *std::find_if(profile.operations.begin(), profile.operations.end(),
                       [&](const auto& time) { return time.name == name; });
}

}  // namespace

TEST_CASE("the seconds of a stage are shared out over its operations, and steps have a median") {
  const DynamicPlan made = small_net();
  const Plan& plan = made;
  std::vector<StageProfile> stages(2);
  stages[0].name = plan.node(plan.members[0]).name.view();
  REQUIRE(stages[0].name == "conv");
  stages[1].name = "fc";
  Recorder recorder(plan, 4);
  CHECK_THROWS_AS(recorder.profile("", ""), ConfigError);
  for (const double seconds : {2.0, 900.0, 3.0}) {
    for (auto& stage : stages) stage.forward = stage.backward = {};
    stages[0].forward.take(seconds);
    stages[0].backward.take(2 * seconds);
    stages[0].backward.take(2 * seconds);  // two micro-steps
    stages[1].forward.take(1);
    recorder.take(stages, seconds / 10);
  }
  CHECK(recorder.steps() == 3);
  const auto profile = recorder.profile("a machine", "a model");
  graph::expect_profile(plan, profile);
  CHECK(profile.machine == "a machine");
  CHECK(profile.model == "a model");
  CHECK(profile.rows == 4);
  CHECK(profile.update == doctest::Approx(0.3));
  CHECK(profile.forward() == doctest::Approx(3 + 1));
  CHECK(profile.backward() == doctest::Approx(6));
  const auto prices = graph::roofline(plan, 4, 20, 1);
  CHECK(time_of(profile, "conv").forward / time_of(profile, "relu").forward ==
        doctest::Approx(time_of(prices, "conv").forward / time_of(prices, "relu").forward));
  CHECK(time_of(profile, "fc").backward == 0);

  stages[1].name = "elsewhere";
  CHECK_THROWS_WITH_AS(Recorder(plan, 4).take(stages, 0), "profile: the stage elsewhere is of another plan",
                       ConfigError);
}

TEST_CASE("a run of exec::Host is recorded") {
  const DynamicPlan made = small_net();
  const Plan& plan = made;
  exec::Host<f32> host(plan, 16, {.threads = 1, .profile = true});
  exec_compare::randomize(host, plan, Philox{1, 2});
  const exec_compare::Batch batch(plan, 16, Philox{3, 4});
  Recorder recorder(plan, 16);
  for (int step = 0; step < 3; ++step) {
    host.reset_profile();
    exec_compare::forward(host, batch);
    host.backward(std::vector<float>(1, 1.0f), [](std::int64_t) {});
    recorder.take(host.profile(), 0);
  }
  const auto profile = recorder.profile("", "");
  graph::expect_profile(plan, profile);
  CHECK(time_of(profile, "conv").forward > 0);
  CHECK(time_of(profile, "conv").backward > 0);
  CHECK(time_of(profile, "fc").backward > 0);
}
