// exec::Replay: the times of a profile, when gradients are final, and what it refuses. Times are only bounded
// from below, since a machine may be busy.
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "near.hpp"
#include <convoy/exec/reference/reference.hpp>
#include <convoy/exec/replay.hpp>
#include <convoy/exec/stages.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using exec::Replay;

namespace {

constexpr const Plan& resnet = plan_of<models::ResNet18<Image{1, 28, 28}, 10>>;
constexpr int classes = 5;

/// Three layers, one of which shares the first one's weight; some labels are ignored.
DynamicPlan three_layers() {
  return DynamicPlan([](auto& g) {
    auto w = g.parameter("shared", {8, 8});
    auto x = g.input("x", Shape{8});
    x = g.relu(g.linear(x, w, {.name = "first"}));
    x = g.relu(g.linear(x, {.features = 8, .name = "second"}));
    x = g.linear(g.relu(g.linear(x, w, {.name = "third"})), {.features = classes, .name = "last"});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes, {.ignore = -100})));
  });
}

struct Batch {
  std::vector<float> x;
  std::vector<i32> labels;
  std::vector<const void*> fields;
  explicit Batch(const Plan& plan, int rows)
      : x(static_cast<std::size_t>(rows) * static_cast<std::size_t>(plan.nodes[0].shape.size())),
        labels(static_cast<std::size_t>(rows)),
        fields{x.data(), labels.data()} {}
  exec::BatchView view() const { return {fields, static_cast<int>(labels.size())}; }
};

/// The values passed to on_final, without repetitions, and the seconds since backward began.
struct Finals {
  std::vector<std::int64_t> ends;
  std::vector<double> seconds;
  int calls = 0;
};
template <class E>
Finals finals_of(E& exec, const Batch& batch) {
  exec.forward(batch.view(), {});
  const std::vector<float> scales(1, 1.0f);
  Finals finals;
  const Stopwatch watch;
  exec.backward(scales, [&](std::int64_t n) {
    ++finals.calls;
    if (n == 0 || (!finals.ends.empty() && n == finals.ends.back())) return;
    finals.ends.push_back(n);
    finals.seconds.push_back(watch.seconds());
  });
  return finals;
}

std::string refusal(const Plan& plan, const exec::ReplayOptions& options) {
  try {
    Replay(plan, 4, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

static_assert([] {
  for (const auto& kernel : exec::kernels<Replay>)
    if (!kernel) return false;
  return true;
}());

TEST_CASE("gradients are final in the order of an Exec that computes") {
  for (const DynamicPlan plan = three_layers(); const Plan* p : {&plan.plan(), &resnet}) {
    const Batch batch(*p, 1);
    Replay replay(*p, 1, {.profile = graph::spread(*p, 1, 1000), .poll = 0});
    exec::Reference<float> reference(*p, 1);
    const Finals said = finals_of(replay, batch), wanted = finals_of(reference, batch);
    CHECK(said.ends == wanted.ends);
    CHECK(said.ends.back() == static_cast<std::int64_t>(replay.gradients().size()));
    CHECK(said.calls == static_cast<int>(p->stages.size()));
  }
}

TEST_CASE("passes take the seconds of the profile for the rows of their batch, at least") {
  const DynamicPlan made = three_layers();
  const Plan& plan = made;
  const auto profile = graph::spread(plan, 8, 200);  // 40 ms
  for (const double speed : {0.5, 2.0})
    for (const int rows : {2, 8}) {
      CAPTURE(speed);
      CAPTURE(rows);
      Replay replay(plan, 8, {.profile = profile, .speed = speed});
      const Batch batch(plan, rows);
      const double factor = rows / (8 * speed);
      CHECK(replay.forward_seconds(rows) == test::near(profile.forward() * factor));
      CHECK(replay.backward_seconds(rows) == test::near(profile.backward() * factor));
      Stopwatch watch;
      replay.forward(batch.view(), {});
      CHECK(watch.seconds() >= profile.forward() * factor * (1 - 1e-6));
      watch.restart();
      const std::vector<float> scales(1);
      replay.backward(scales, [](std::int64_t) {});
      CHECK(watch.seconds() >= profile.backward() * factor * (1 - 1e-6));
      watch.restart();
      replay.forward(batch.view(), {.mode = exec::Mode::evaluate});
      CHECK(watch.seconds() >= profile.forward() * factor * (1 - 1e-6));
    }
}

TEST_CASE("a gradient is final once the stages behind it have taken their time") {
  const DynamicPlan made = three_layers();
  const Plan& plan = made;
  auto profile = graph::untimed(plan, 1);
  const double seconds = 5e-3;
  for (auto& time : profile.operations) time.backward = seconds;
  const Batch batch(plan, 1);
  Replay replay(plan, 1, {.profile = profile, .poll = 0});
  const Finals finals = finals_of(replay, batch);
  const auto finality =
      exec::find_finality(plan, std::vector<graph::Stage>(plan.stages.begin(), plan.stages.end()));
  int operations = 0;
  std::size_t said = 0;
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    operations += plan.stages[s].count;
    if (said == finals.ends.size() || finality.end[s] != finals.ends[said]) continue;
    CHECK(finals.seconds[said] >= operations * seconds * (1 - 1e-6));
    ++said;
  }
  CHECK(said == finals.ends.size());
  CHECK(said >= 3);
}

TEST_CASE("messages go on within a stage, and the update's seconds pass before the next forward") {
  const DynamicPlan made = three_layers();
  const Plan& plan = made;
  auto profile = graph::untimed(plan, 1);
  for (auto& time : profile.operations)
    if (time.name == "last") time.backward = 0.1;
  profile.update = 0.02;
  const Batch batch(plan, 1);
  Replay replay(plan, 1, {.profile = profile, .poll = 1e-3});
  CHECK(finals_of(replay, batch).calls > static_cast<int>(plan.stages.size()));

  Replay updating(plan, 1, {.profile = profile});
  const auto elements = static_cast<std::int64_t>(updating.gradients().size());
  const Stopwatch watch;
  CHECK(updating.updates({0, elements / 2}));
  CHECK(updating.updates({elements / 2, elements}));
  updating.forward(batch.view(), {});
  CHECK(watch.seconds() >= profile.update * (1 - 1e-6));
  CHECK_FALSE(Replay(plan, 1, {.profile = profile, .rule = true}).updates({0, elements}));
}

TEST_CASE("nothing is computed, and results say so") {
  const DynamicPlan made = three_layers();
  const Plan& plan = made;
  Replay replay(plan, 4, {.profile = graph::spread(plan, 4, 1e5), .gradient = 0.25f});
  CHECK_THROWS_AS(replay.result(), ExecError);
  CHECK_THROWS_AS(replay.output(0), ExecError);
  Batch batch(plan, 3);
  batch.labels = {1, -100, 2};
  CHECK_THROWS_AS(replay.backward(std::vector<float>(1), [](std::int64_t) {}), ExecError);
  replay.forward(batch.view(), {});
  replay.forward(batch.view(), {});
  for (int pass = 0; pass < 2; ++pass) {
    const exec::Result result = replay.result();
    CHECK(result.loss() == 0);
    CHECK(result.losses.size() == 1);
    CHECK(result.metrics.empty());
    CHECK(result.correct == 0);
    CHECK(result.labels == 0);
  }
  CHECK(replay.output(0).size() == 3 * classes);
  CHECK_THROWS_AS(replay.output(1), ConfigError);

  replay.backward(std::vector<float>(1), [](std::int64_t) {});
  for (const float value : replay.gradients()) CHECK(value == 0.25f);
  std::vector<float> weight(64, 3.0f), back(64), gradient(64);
  replay.write_parameter(0, weight);
  replay.read_parameter(0, back);
  replay.read_gradient(0, gradient);
  CHECK(back == weight);
  CHECK(gradient == std::vector<float>(64, 0.25f));
  // Backward overwrites the sum of an exchange.
  replay.gradients()[0] = 7;
  replay.backward(std::vector<float>(1), [](std::int64_t) {});
  CHECK(replay.gradients()[0] == 0.25f);

  replay.forward(batch.view(), {.mode = exec::Mode::evaluate});
  CHECK_THROWS_AS(replay.backward(std::vector<float>(1), [](std::int64_t) {}), ExecError);
  batch.labels[0] = classes;
  CHECK_THROWS_AS(replay.forward(batch.view(), {}), ExecError);
  CHECK_THROWS_AS(replay.forward(Batch(plan, 5).view(), {}), ConfigError);
}

TEST_CASE("what cannot be replayed is refused in a sentence") {
  const DynamicPlan made = three_layers();
  const Plan& plan = made;
  const auto profile = graph::spread(plan, 4, 100);
  CHECK(refusal(plan, {.profile = profile}) == "");
  CHECK(refusal(plan, {}) == "exec: a replay needs a profile of the plan");
  CHECK(refusal(resnet, {.profile = profile}) ==
        "profile: the profile is for another plan: its operation 0 is linear first [8], where this plan has "
        "conv2d conv1 [64x14x14]");
  CHECK(refusal(plan, {.profile = profile, .speed = 0}) ==
        "exec: the speed of a replay must be positive and not too small, not 0");
  CHECK(refusal(plan, {.profile = profile, .speed = -1}) != "");
  CHECK(refusal(plan, {.profile = profile, .speed = std::nan("")}) != "");
  CHECK(refusal(plan, {.profile = profile, .poll = -1}) == "exec: a replay cannot poll every -1 seconds");
  CHECK_THROWS_AS(Replay(plan, 0, {.profile = profile}), ConfigError);
}
