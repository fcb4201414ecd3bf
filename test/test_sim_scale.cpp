// Folding: simulating one unit for all equal units gives the same results, and makes large worlds cheap.
// SANITIZE: none
#include <cmath>

#include <doctest/doctest.h>

#include "near.hpp"
#include "sim_settings.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/sim/legs.hpp>
#include <convoy/sim/places.hpp>
#include <convoy/sim/simulate.hpp>

using namespace convoy;
using test::setting;

namespace {

constexpr sim::Manner whole{0, 1 << 30}, folded{0, 1};

// Whether one unit of a setting is simulated for all.
bool folds(const sim::Setting& s) {
  return sim::legs_of(s.cluster, s.work, s.exchange, sim::Places::foldable(s.cluster)).folded;
}

}  // namespace

TEST_CASE("sim: one unit represents all units that do the same") {
  Philox random(3);
  for (int round = 0; round < 24; ++round) {
    const int nodes = 2 + static_cast<int>(random.next() % 6),
              ranks = 1 + static_cast<int>(random.next() % 3);
    sim::Cluster cluster = test::shared(nodes, ranks, static_cast<sim::Wiring>(random.next() % 3));
    cluster.launch = 1e-5 * static_cast<double>(random.next() % 3);
    if (nodes % 2 == 0 && round % 3 == 0) cluster.fabric = {2, 3};
    sim::Work work = test::some_work();
    // Sizes of which all chunks are equally long, so that nothing is rounded.
    const std::int64_t grain = std::int64_t{64} * nodes * ranks * nodes * ranks * 16;
    for (sim::Bucket& bucket : work.buckets) bucket.bytes = bucket.bytes / grain * grain;
    for (const char* comm : {"ring", "sharded", "reproducible", "hierarchical"}) {
      sim::Setting s = setting(cluster, work, comm);
      s.exchange.segment_bytes = std::size_t{1} << 26;
      CAPTURE(nodes);
      CAPTURE(ranks);
      CAPTURE(comm);
      CAPTURE(cluster.fabric.binds());
      REQUIRE(folds(s));
      const sim::Outcome all = simulate(s, whole), one = simulate(s, folded);
      CHECK(one.step_seconds == test::near(all.step_seconds, 1e-12));
      CHECK(one.exposed_seconds == test::near(all.exposed_seconds, 1e-9));
      CHECK(one.critical.latency == test::near(all.critical.latency, 1e-9));
      CHECK(one.throughput == test::near(all.throughput, 1e-12));
      CHECK(one.messages == all.messages);
      CHECK(one.bytes == test::near(all.bytes, 1e-12));
      CHECK(one.links.front().utilization == test::near(all.links.front().utilization, 1e-9));
    }
  }
}

TEST_CASE("sim: shares by speed of equal workers change nothing, folded or not") {
  sim::Setting s = setting(test::shared(6, 2), test::some_work(), "ring");
  const double unweighted = simulate(s, folded).step_seconds;
  s.exchange.weighted = true;
  REQUIRE(folds(s));
  CHECK(simulate(s, folded).step_seconds == test::near(unweighted, 1e-12));
  CHECK(simulate(s, whole).step_seconds == test::near(simulate(s, folded).step_seconds, 0.01));
}

TEST_CASE("sim: rounding chunks to cache lines moves no message by more than a cache line") {
  for (const std::int64_t bytes : {1000, 100'004, 12'345'676}) {
    for (const char* comm : {"ring", "hierarchical", "sharded"}) {
      sim::Setting s = setting(test::shared(8, 2), test::bytes_alone(bytes), comm);
      s.steps = 1;
      const sim::Outcome all = simulate(s, whole), one = simulate(s, folded);
      const double line = 64 * (s.cluster.nic.beta + s.cluster.inside.beta + s.cluster.gamma);
      CAPTURE(comm);
      CHECK(std::abs(all.step_seconds - one.step_seconds) <= static_cast<double>(all.messages) / 8 * line);
      if (bytes > 1'000'000) CHECK(one.step_seconds == test::near(all.step_seconds, 0.01));
    }
  }
}

TEST_CASE("sim: units that do not do the same are not folded") {
  const sim::Work work = test::some_work();
  CHECK_FALSE(folds(setting(test::shared(4, 2), work, "tree")));
  CHECK_FALSE(folds(setting(test::shared(4, 2), work, "halving-doubling")));
  sim::Setting unequal = setting(test::shared(4, 2), work, "ring");
  CHECK(folds(unequal));
  unequal.cluster.nodes = {{3, 2, 1}, {1, 2, 0.9}};
  CHECK_FALSE(folds(unequal));
  unequal.cluster.nodes = {{4, 2, 1}};
  unequal.cluster.jitter = 0.01;
  CHECK_FALSE(folds(unequal));
  unequal.cluster.jitter = 0;
  unequal.cluster.fabric = {3, 2};
  CHECK_FALSE(folds(unequal));
}

TEST_CASE("sim: large worlds send the expected numbers of messages") {
  sim::Work work = test::some_work();
  const auto buckets = static_cast<std::int64_t>(work.buckets.size());
  SUBCASE("a ring of 1024") {
    const sim::Outcome outcome = simulate(setting(test::shared(128, 8), work, "ring"));
    CHECK(outcome.messages == 2 * 1023 * 1024 * buckets);
    CHECK(outcome.binds == "latency");
  }
  SUBCASE("a ring of 1024 with different paces") {
    sim::Setting s = setting(test::shared(128, 8), test::bytes_alone(1 << 20), "ring");
    s.cluster.jitter = 0.1;
    s.work.forward = 0.01;
    s.steps = 1;
    CHECK(simulate(s).messages == 2 * 1023 * 1024);
  }
  SUBCASE("a tree of 1024, cut in segments") {
    sim::Setting s = setting(test::shared(128, 8), test::bytes_alone(8 << 20), "tree");
    s.steps = 1;
    CHECK(simulate(s).messages == 2 * 1023 * 2 * ((4 << 20) / (128 << 10)));
  }
  SUBCASE("16384 in nodes of 8") {
    sim::Setting s = setting(test::shared(2048, 8), test::bytes_alone(32 << 20), "hierarchical");
    s.steps = 1;
    CHECK(simulate(s).messages == 2 * std::int64_t{2047} * 16384);
  }
}
