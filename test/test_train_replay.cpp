// SANITIZE: address thread
// exec::Replay in a Trainer: real exchanges at the pace of another machine.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/exec/replay.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace convoy;
using namespace train_test;

namespace {

template <class Model>
using ReplayTrainer = Trainer<Model, optim::Sgd, comm::Ring<transport::Threads>, exec::Replay>;

/// A profile in which a batch of `rows` rows takes `seconds`.
graph::Profile batch_in(const Plan& plan, int rows, double seconds) {
  return graph::spread(plan, rows, rows / seconds);
}

}  // namespace

TEST_CASE("ranks of unequal speed exchange gradients and update, at the pace of the slowest") {
  const Blobs blobs(300);
  const double seconds = 0.02;
  std::vector<std::vector<float>> all(3);
  transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
    const int rank = endpoint.rank();
    using Net = ReplayTrainer<Bucketed>;
    Net trainer{{.batch = 10,
                 .optimizer = {.lr = 0.5f, .momentum = 0, .weight_decay = 0},
                 .exec = {.profile = batch_in(Net::plan, 10, seconds),
                          .speed = rank == 1 ? 1 : 4.0,
                          .rule = true,
                          .gradient = static_cast<float>(rank + 1)}},
                endpoint};
    const std::span<float> now = trainer.exec().parameters();
    const std::vector<float> before(now.begin(), now.end());
    const Stopwatch watch;
    const auto report = trainer.fit(blobs, {.steps = 5, .log = nullptr});
    CHECK(report.steps == 5);
    const auto& profile = trainer.config().exec.profile;
    CHECK(watch.seconds() >= 5 * (profile.forward() + profile.backward()) * (1 - 1e-6));
    CHECK(report.epochs.back().loss == 0);
    // Five steps of 0.5 times 1 + 2 + 3.
    const Plan& plan = Net::plan;
    for (std::size_t p = 0; p < plan.parameter_list.size(); ++p)
      for (std::int64_t i = plan.slots[p].live.begin; i < plan.slots[p].live.end; ++i)
        CHECK(now[static_cast<std::size_t>(i)] ==
              doctest::Approx(before[static_cast<std::size_t>(i)] - 5 * 0.5f * 6));
    all[static_cast<std::size_t>(rank)] = all_parameters(trainer);
  });
  CHECK(all[0] == all[1]);
  CHECK(all[0] == all[2]);
}

TEST_CASE("a plan that is known at run time is replayed, and shares go by the replayed speed") {
  const DynamicPlan plan([](auto& g) { Normed::define(g); });
  const Blobs blobs(120);
  using Net = train::PlanTrainer<optim::Sgd, comm::Any, exec::Replay>;
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    const double speed = endpoint.rank() == 0 ? 1 : 3;
    Net trainer{plan,
                {.batch = 12, .exec = {.profile = batch_in(plan, 12, 0.03), .speed = speed}},
                comm::make("ring", endpoint, {}, {.weighted = true})};
    REQUIRE(trainer.shares().size() == 2);
    CHECK(trainer.shares()[1] > trainer.shares()[0]);
    const auto report = trainer.fit(blobs, {.steps = 3, .log = nullptr});
    CHECK(report.samples == 3 * 24);
    CHECK(!trainer.evaluate(blobs).accuracy);
    // Without `rule`, the profile's seconds replace the update, so that parameters do not change.
    const std::span<const float> now = trainer.exec().parameters();
    Net untrained{plan,
                  {.batch = 12, .exec = {.profile = batch_in(plan, 12, 0.03), .speed = speed}},
                  comm::make("ring", endpoint, {}, {.weights = {1, 3}})};
    CHECK(std::equal(now.begin(), now.end(), untrained.exec().parameters().begin()));
  });
}

TEST_CASE("a profile of another plan is refused") {
  const DynamicPlan other([](auto& g) { Normed::define(g); });
  using Net = ReplayTrainer<Plain>;
  transport::Threads::World(1).run([&](const transport::Threads& endpoint) {
    CHECK_THROWS_WITH_AS((Net{{.batch = 4, .exec = {.profile = graph::spread(other, 4, 10)}}, endpoint}),
                         "profile: the profile is for another plan: its operation 0 is conv2d conv2d.0 "
                         "[4x8x8], where this plan has "
                         "conv2d conv2d.0 [6x8x8]",
                         ConfigError);
  });
}
