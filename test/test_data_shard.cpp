// Batch plan: every sample once, the same steps on every rank, the same samples at any world size.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/data/shard.hpp>

using namespace convoy;
using data::BatchPlan;
using data_files::contains;
using data_files::sentence;

static_assert(BatchPlan(60'000, 128, {1, 2}).steps() == 235);
static_assert(BatchPlan(60'000, 128, {1, 2}).rows(0) == Range{128, 256});
static_assert(BatchPlan(1000, 10, {0, 1}).rows(99) == Range{990, 1000});

TEST_CASE("batch plan: exact at every size, batch and world") {
  Philox random(42);
  int short_steps = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const int world = 1 + static_cast<int>(random.below(9));
    const std::int64_t batch = 1 + random.below(trial % 2 ? 6 : 40);
    const std::int64_t samples = batch * world + random.below(1000);
    CAPTURE(world);
    CAPTURE(batch);
    CAPTURE(samples);
    const BatchPlan plan(static_cast<std::size_t>(samples), batch, {0, world});
    REQUIRE(plan.steps() == (samples + batch * world - 1) / (batch * world));
    std::int64_t at = 0;
    for (std::int64_t step = 0; step < plan.steps(); ++step) {
      const Range all = plan.global(step);
      REQUIRE(all.begin == at);
      REQUIRE(all.size() <= batch * world);
      if (step + 2 < plan.steps()) REQUIRE(all.size() == batch * world);
      std::int64_t fewest = samples, most = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Range rows = BatchPlan(static_cast<std::size_t>(samples), batch, {rank, world}).rows(step);
        REQUIRE(rows == plan.rows(step, rank));
        REQUIRE(rows.begin == at);
        at = rows.end;
        fewest = std::min(fewest, rows.size());
        most = std::max(most, rows.size());
      }
      REQUIRE(at == all.end);
      REQUIRE(most - fewest <= 1);
      REQUIRE(most <= batch);
      if (batch > 1) REQUIRE(fewest >= 1);
      short_steps += most < batch;
    }
    REQUIRE(at == samples);
  }
  CHECK(short_steps > 1000);
}

TEST_CASE("batch plan: unequal shares cut every step in proportion, exactly") {
  Philox random(43);
  int unequal = 0, none = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const int world = 1 + static_cast<int>(random.below(9));
    const std::int64_t batch = 1 + random.below(trial % 2 ? 6 : 40);
    const std::int64_t samples = batch * world + random.below(1000);
    std::vector<double> shares(static_cast<std::size_t>(world));
    for (double& share : shares) share = random.below(5) == 0 ? 0 : random.below(1000) + 1e-3;
    shares[random.below(static_cast<std::uint32_t>(world))] += 1;
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= sum;
    CAPTURE(world);
    CAPTURE(batch);
    CAPTURE(samples);
    const BatchPlan equal(static_cast<std::size_t>(samples), batch, {0, world});
    const BatchPlan plan(static_cast<std::size_t>(samples), batch, {0, world, shares});
    REQUIRE(plan.steps() == equal.steps());
    std::int64_t at = 0;
    for (std::int64_t step = 0; step < plan.steps(); ++step) {
      const Range all = plan.global(step);
      REQUIRE(all == equal.global(step));
      for (int rank = 0; rank < world; ++rank) {
        const BatchPlan own(static_cast<std::size_t>(samples), batch, {rank, world, shares});
        const Range rows = own.rows(step);
        REQUIRE(rows == plan.rows(step, rank));
        REQUIRE(rows.begin == at);
        REQUIRE(rows.size() >= 0);
        REQUIRE(rows.size() <= own.most_rows());
        at = rows.end;
        const double share = shares[static_cast<std::size_t>(rank)];
        REQUIRE(std::abs(static_cast<double>(rows.size()) - share * static_cast<double>(all.size())) < 1.001);
        if (share == 0) REQUIRE(rows.empty());
        unequal += rows != equal.rows(step, rank);
        none += rows.empty();
      }
      REQUIRE(at == all.end);
    }
    REQUIRE(at == samples);
  }
  CHECK(unequal > 1000);
  CHECK(none > 1000);
}

TEST_CASE("batch plan: there is room for the longest step, and for no more than a full or an only one") {
  for (std::size_t samples = 1; samples < 60; ++samples)
    for (int world = 1; world < 8; ++world)
      for (std::int64_t batch = 1; batch < 12; ++batch) {
        const BatchPlan plan(samples, batch, {0, world}, true);
        std::int64_t most = 0;
        for (std::int64_t step = 0; step < plan.steps(); ++step)
          for (int rank = 0; rank < world; ++rank) most = std::max(most, plan.rows(step, rank).size());
        CAPTURE(samples);
        CAPTURE(world);
        CAPTURE(batch);
        REQUIRE(most <= plan.most_rows());
        REQUIRE((plan.steps() > 1 ? batch : most) == plan.most_rows());
      }
}

TEST_CASE("batch plan: shares that are none are refused") {
  const auto refusal = [](std::vector<double> shares) {
    return sentence<ConfigError>([&] { BatchPlan(100, 10, {0, 2, shares}); });
  };
  CHECK(contains(refusal({0.5, 0.25, 0.25}), "3 shares for 2 ranks"));
  CHECK(contains(refusal({1.5, -0.5}), "share of rank 1 is -0.5"));
  CHECK(contains(refusal({0.0 / 0.0, 0.5}), "share of rank 0 is"));
  CHECK(contains(refusal({0.5, 0.4}), "sum to 0.9, not to 1"));
  CHECK(refusal({0.25, 0.75}).empty());
}

TEST_CASE("batch plan: a step holds the same samples at any world size") {
  for (std::size_t samples = 24; samples < 200; ++samples) {
    const BatchPlan one(samples, 24, {0, 1});
    for (int world : {2, 3, 4, 6, 8, 12}) {
      const BatchPlan many(samples, 24 / world, {0, world});
      REQUIRE(many.steps() == one.steps());
      for (std::int64_t step = 0; step < one.steps(); ++step) REQUIRE(many.global(step) == one.global(step));
    }
  }
}

TEST_CASE("batch plan: a small rest is shared with the step before, a large one is a step") {
  const BatchPlan small(64 + 1, 8,
                        {0, 4});  // with 32 + 32 + 1, three of four ranks would have no row in the last step
  CHECK(small.steps() == 3);
  CHECK(small.global(0).size() == 32);
  CHECK(small.global(1).size() == 17);
  CHECK(small.global(2).size() == 16);
  for (const std::int64_t rest : {16, 20}) {
    const BatchPlan large(static_cast<std::size_t>(64 + rest), 8, {0, 4});
    CHECK(large.global(1).size() == 32);
    CHECK(large.global(2).size() == rest);
  }
  const BatchPlan below_half(64 + 15, 8, {0, 4});
  CHECK(below_half.global(1).size() == 24);
  CHECK(below_half.global(2).size() == 23);
}

TEST_CASE("batch plan: what cannot be divided is refused with both numbers") {
  const auto refusal = [](std::size_t samples, std::int64_t batch, data::Shard shard) {
    return sentence<ConfigError>([&] { BatchPlan(samples, batch, shard); });
  };
  CHECK(contains(refusal(100, 51, {0, 2}),
                 "batch of 102 samples (51 on each of 2 ranks) is larger than the data set of 100"));
  CHECK(contains(refusal(1, 2, {0, 1}),
                 "batch of 2 samples (2 on each of 1 rank) is larger than the data set of 1 sample"));
  CHECK(refusal(100, 50, {0, 2}).empty());
  CHECK(contains(refusal(100, 0, {0, 1}), "must be at least 1, not 0"));
  CHECK(contains(refusal(100, -3, {0, 1}), "must be at least 1, not -3"));
  CHECK(contains(refusal(0, 1, {0, 1}), "no samples"));
  CHECK(contains(refusal(100, 1, {2, 2}), "rank 2 of 2"));
  CHECK(contains(refusal(100, 1, {-1, 2}), "rank -1 of 2"));
  CHECK(contains(refusal(100, 1, {0, 0}), "of 0 ranks"));
  CHECK_FALSE(refusal(100, std::int64_t{1} << 62, {0, 8}).empty());
  CHECK_FALSE(refusal((std::size_t{1} << 62) + 1, 1, {0, 1}).empty());

  const BatchPlan evaluation(10, 8, {2, 3}, true);
  CHECK(evaluation.steps() == 1);
  CHECK(evaluation.rows(0) == Range{6, 10});
}
