// The simulator's shards are those of the policies that train. If an optimizer updates whole matrices, no
// rank and no server has a part of a matrix, and a rank with a larger shard sends, receives and updates more.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "near.hpp"
#include "sim_settings.hpp"
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/transport/threads.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/optim/muon.hpp>
#include <convoy/sim/legs.hpp>
#include <convoy/sim/simulate.hpp>
#include <convoy/sim/work_of.hpp>
#include <convoy/train/arenas.hpp>

using namespace convoy;
using test::setting;

namespace {

DynamicPlan resnet18(bool keep_dead_taps) {
  const DynamicPlan traced([](graph::Builder& g) { models::ResNet18<Image{1, 28, 28}, 10>::define(g); });
  return DynamicPlan(traced.plan(), PlanOptions{.keep_dead_taps = keep_dead_taps});
}

std::vector<Range> matrices_of(const Plan& plan) {
  memory::Host space;
  const train::TensorGroups all = train::tensor_groups(plan, {}, false);
  return optim::Arena<optim::Muon>(space, {}, all.tensors, all.groups).matrices();
}

sim::Work work_of(const Plan& plan) {
  return sim::work_of(plan, graph::roofline(plan, 32, 1e12, 1e11), plan.buckets, sim::DeadTaps::left_out,
                      matrices_of(plan));
}

// The ranges of the buckets that each rank updates, according to the policy itself.
std::vector<std::vector<Range>> updates_by_policy(const Plan& plan, int ranks) {
  const std::vector<Range> whole = matrices_of(plan), buckets(plan.buckets.begin(), plan.buckets.end());
  std::vector<std::vector<Range>> updates(static_cast<std::size_t>(ranks));
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    comm::Sharded<comm::Ring<transport::Threads>> sharded(endpoint);
    std::vector<float> arena(static_cast<std::size_t>(plan.sizes.exchanged));
    sharded.open({}, {.gradients = arena, .parameters = arena, .buckets = buckets, .whole = whole});
    updates[static_cast<std::size_t>(endpoint.rank())] = sharded.updates(buckets);
  });
  return updates;
}

// Two ranks on nodes of their own, and a bucket of which three quarters must stay whole.
sim::Setting quarters(const char* comm) {
  sim::Setting s = setting(test::apart(2, 1e-6, 1e-9, 0), test::bytes_alone(4 << 20), comm);
  s.work.forward = s.work.backward = 1e-3;
  s.work.buckets[0].ready = 1e-3;
  s.work.buckets[0].update = 0.1;
  s.work.buckets[0].whole = {{0, 3 << 18}};
  return s;
}

}  // namespace

TEST_CASE("sim: ranks have the shards that the policy gives them") {
  const DynamicPlan made = resnet18(false);
  const Plan& plan = made.plan();
  const sim::Work work = work_of(plan);
  work.check();
  sim::Exchange exchange{.comm = "sharded"};
  exchange.segment_bytes = std::size_t{1} << 30;  // a chunk is a rank's part
  for (const int ranks : {2, 3, 4, 8}) {
    CAPTURE(ranks);
    const sim::Legs legs = sim::legs_of(test::apart(ranks, 1e-6, 1e-9, 0), work, exchange, false);
    std::vector<std::vector<Range>> updates(static_cast<std::size_t>(ranks));
    double most = 0, all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      double mine = 0;
      for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
        for (const sim::Leg& leg : legs.legs) {
          const std::vector<double>& at = leg.crossings[b].offsets;
          const auto r = static_cast<std::size_t>(rank);
          REQUIRE(at.size() == static_cast<std::size_t>(ranks) + 1);
          const std::int64_t begin = plan.buckets[b].begin;
          const Range part{begin + static_cast<std::int64_t>(at[r]) / 4,
                           begin + static_cast<std::int64_t>(at[r + 1]) / 4};
          if (&leg == &legs.legs.front() && !part.empty()) updates[r].push_back(part);
          if (&leg == &legs.legs.front()) mine += static_cast<double>(part.size());
        }
      }
      most = std::max(most, mine);
      all += mine;
    }
    CHECK(updates == updates_by_policy(plan, ranks));
    if (ranks == 8) CHECK(most * ranks / all > 1.1);  // matrices do not allow even parts
    // The ranks' shares of the updates add up to the whole update.
    double seconds = 0;
    for (int rank = 0; rank < ranks; ++rank) seconds += legs.update_of(rank);
    CHECK(seconds == test::near(work.update()));
  }
}

TEST_CASE("sim: the rank with the longest part decides when an update is over") {
  sim::Setting s = quarters("sharded");
  const double uneven = sim::simulate(s).step_seconds;
  s.work.buckets[0].whole.clear();
  const double even = sim::simulate(s).step_seconds;
  CHECK(uneven - even > 0.9 * 0.025);
  CHECK(uneven - even < 1.2 * 0.025);
  // A matrix of the whole bucket, which one rank must update alone.
  s.work.buckets[0].whole = {{0, 1 << 20}};
  CHECK(sim::simulate(s).step_seconds > 0.1);
}

TEST_CASE("sim: an update of no gradients beside ones that stay whole takes its time") {
  sim::Work work = test::bytes_alone(1 << 20);
  work.buckets[0].whole = {{0, 1000}};
  work.buckets.push_back({0, 0, 1e-3});
  const sim::Outcome outcome = simulate(test::setting(test::shared(2, 2), work, "sharded"));
  CHECK(outcome.step_seconds > 1e-3 / 4);
  CHECK(outcome.step_seconds < 1);
}

TEST_CASE("sim: unequal shards are not folded, even if folding is allowed at any size") {
  sim::Setting s = setting(test::shared(4, 2), test::some_work(), "sharded");
  s.work.buckets[1].whole = {{0, 2 << 20}};
  const sim::Outcome folded = sim::simulate(s, {.folds_from = 1}), all = sim::simulate(s);
  CHECK(folded.step_seconds == all.step_seconds);
  CHECK(folded.messages == all.messages);
  s.work.buckets[1].whole.clear();
  CHECK(sim::simulate(s).step_seconds < all.step_seconds);
}

TEST_CASE("sim: no server has a part of a matrix") {
  sim::Setting s = quarters("ps");
  s.exchange.servers = 2;
  const auto sent = [&](const sim::Outcome& out, const char* link) {
    for (const sim::Use& use : out.links)
      if (use.name == link) return use.bytes;
    return 0.0;
  };
  // Each of two ranks is worker and server: its card sends gradients of the other's shard, and parameters of
  // its own shard.
  s.work.buckets[0].whole = {{0, 1 << 20}};
  const sim::Outcome one = sim::simulate(s);
  s.work.buckets[0].whole.clear();
  const sim::Outcome both = sim::simulate(s);
  CHECK(one.bytes == test::near(both.bytes, 0.01));
  CHECK(sent(both, "node 0 NIC 0 out") == test::near(4 << 20, 0.01));
  CHECK(one.step_seconds > both.step_seconds + 0.04);  // all of the update is on one server
}

TEST_CASE("sim: matrices lie in buckets as in the arena, with their dead taps if those are exchanged") {
  const DynamicPlan without = resnet18(false), with = resnet18(true);
  const auto whole_of = [](const sim::Work& work) {
    std::vector<Range> all;
    for (const sim::Bucket& bucket : work.buckets)
      all.insert(all.end(), bucket.whole.begin(), bucket.whole.end());
    return all;
  };
  CHECK(work_of(without.plan()).arena().whole == matrices_of(without.plan()));
  // One bucket of all gradients has the same matrices as one of a plan that keeps the dead taps.
  const auto one = [&](const Plan& plan, sim::DeadTaps dead) {
    const std::vector<Range> all{{0, plan.sizes.exchanged}};
    return sim::work_of(plan, graph::roofline(plan, 32, 1e12, 1e11), all, dead, matrices_of(plan));
  };
  const sim::Work grown = one(without.plan(), sim::DeadTaps::exchanged);
  const sim::Work kept = one(with.plan(), sim::DeadTaps::left_out);
  grown.check();
  REQUIRE(without.plan().exchange_order.size() == with.plan().exchange_order.size());
  CHECK(whole_of(grown) == whole_of(kept));
  // A bucket for each tensor ends with the tensor, without padding.
  const Plan& plan = without.plan();
  const sim::Work each =
      sim::work_of(plan, graph::roofline(plan, 32, 1e12, 1e11), sim::bucket_per_tensor(plan),
                   sim::DeadTaps::exchanged, matrices_of(plan));
  each.check();
  CHECK(each.bytes() == 4 * plan.parameters());
  CHECK(whole_of(each).size() == matrices_of(plan).size());
}

TEST_CASE("sim: ranges that cannot stay whole are refused") {
  sim::Setting s = quarters("sharded");
  const auto refuse = [&](std::vector<Range> whole, const char* sentence) {
    s.work.buckets[0].whole = std::move(whole);
    CHECK_THROWS_WITH_AS(sim::simulate(s), sentence, ConfigError);
  };
  const char* tail = "; such ranges must ascend within the bucket and begin at multiples of 16";
  refuse({{0, (1 << 20) + 1}},
         concat("work: bucket 0 of 4194304 bytes keeps the elements from 0 to 1048577 whole", tail).c_str());
  refuse({{32, 64}, {48, 80}},
         concat("work: bucket 0 of 4194304 bytes keeps the elements from 48 to 80 whole", tail).c_str());
  refuse({{8, 64}},
         concat("work: bucket 0 of 4194304 bytes keeps the elements from 8 to 64 whole", tail).c_str());
}
