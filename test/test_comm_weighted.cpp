// SANITIZE: thread
// Weighted: shares from weights or speeds, the same on all ranks; means weighted by the shares; everything
// else as without weights.
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include "near.hpp"
#include <convoy/comm/registry.hpp>

using namespace convoy;
using transport::Threads;

namespace {

using Weighted = comm::Weighted<comm::Ring<Threads>>;
static_assert(comm::Comm<Weighted>);
static_assert(comm::Comm<comm::Weighted<comm::Any>>);

const auto never = [](double, double&) { FAIL("given weights need no measurement"); };

// The error of constructing Weighted with these weights on two ranks.
std::string refusal(std::vector<double> weights) {
  std::string sentence;
  Threads::World(2).run([&](const Threads& endpoint) {
    try {
      Weighted comm({weights}, endpoint);
    } catch (const ConfigError& error) {
      if (endpoint.rank() == 0) sentence = error.what();
    }
  });
  return sentence;
}

}  // namespace

TEST_CASE("given weights become shares, and the mean is weighted by them") {
  Threads::World(3).run([&](const Threads& endpoint) {
    Weighted comm({.weights = {4, 0, 12}}, endpoint);
    CHECK(comm.shares(never) == std::vector<double>{0.25, 0, 0.75});
    const int r = comm.rank();
    float f[] = {1.0f + static_cast<float>(r), r == 1 ? std::numeric_limits<float>::quiet_NaN() : 8.0f};
    comm.all_reduce(std::span<float>(f), comm::mean);
    CHECK(f[0] == 0.25f * 1 + 0.75f * 3);
    CHECK(f[1] == 8.0f);
    double d[] = {static_cast<double>(r)};
    comm.all_reduce(std::span<double>(d), comm::mean);
    CHECK(d[0] == 1.5);
    bf16 b[] = {bf16(static_cast<float>(4 * r))};
    comm.all_reduce(std::span<bf16>(b), comm::mean);
    CHECK(static_cast<float>(b[0]) == 6.0f);
    f16 h[] = {f16(static_cast<float>(4 * r))};
    comm.all_reduce(h, 1, comm::reduction<f16>(comm::mean));
    CHECK(static_cast<float>(h[0]) == 6.0f);
    f[0] = static_cast<float>(r);
    comm.all_reduce(f, 1, comm::reduction<float>(comm::mean));
    CHECK(f[0] == 1.5f);

    i32 sum[] = {r}, least[] = {r}, most[] = {r};
    comm.all_reduce(std::span<i32>(sum), comm::sum);
    comm.all_reduce(std::span<i32>(least), comm::min);
    comm.all_reduce(most, 1, comm::reduction<i32>(comm::max));
    CHECK(sum[0] == 3);
    CHECK(least[0] == 0);
    CHECK(most[0] == 2);
  });
}

TEST_CASE("a rank that only serves has no share of a mean") {
  using Served = comm::ParameterServer<Threads, comm::Sync, 1, comm::Placement::beside>;
  Threads::World(3).run([](const Threads& endpoint) {
    comm::Weighted<Served> comm({.weights = {1, 3}}, endpoint);
    float mean[] = {static_cast<float>(4 * comm.rank())}, again[] = {mean[0]};
    comm.all_reduce(std::span<float>(mean), comm::mean);
    comm.all_reduce(again, 1, comm::reduction<float>(comm::mean));
    const float expected = comm.role() == comm::Role::worker ? 3 : 8;
    CHECK(mean[0] == expected);
    CHECK(again[0] == expected);
  });
}

TEST_CASE("measured speeds become shares, the same bits on all ranks") {
  std::atomic<int> measured = 0;
  std::vector<std::vector<double>> all(4);
  Threads::World(4).run([&](const Threads& endpoint) {
    Weighted comm({}, endpoint);
    const auto measure = [&](double, double& speed) {
      ++measured;
      speed = 100.0 / (1 + comm.rank() % 3);
    };
    all[static_cast<std::size_t>(comm.rank())] = comm.shares(measure);
  });
  CHECK(measured == 4 * Weighted::rounds);
  for (const auto& shares : all) CHECK(shares == all[0]);
  const double sum = 100 + 50 + 100.0 / 3 + 100;
  CHECK(all[0][0] == test::near(100 / sum));
  CHECK(all[0][1] == test::near(50 / sum));
  CHECK(all[0][2] == test::near(100 / 3.0 / sum));
}

TEST_CASE("shares make all workers end together where speed depends on the rows") {
  Threads::World(3).run([&](const Threads& endpoint) {
    Weighted comm({}, endpoint);
    // A batch of 300 rows: a constant number of seconds, and seconds per row.
    const auto seconds = [&](double share, int rank) {
      return 0.02 * (1 + rank) + 300 * share * 1e-3 * (1 + rank);
    };
    const auto measure = [&](double share, double& speed) {
      speed = 300 * share / seconds(share, comm.rank());
    };
    const std::vector<double> shares = comm.shares(measure);
    const auto first = seconds(shares[0], 0);
    for (int r = 1; r < 3; ++r)
      CHECK(seconds(shares[static_cast<std::size_t>(r)], r) == test::near(first, 0.02));
  });
}

TEST_CASE("gradients travel as without shares, whatever it wraps") {
  constexpr std::int64_t count = 1000;
  const auto expected = oracle::trained(3, count, 4);
  Threads::World(3).run([&](const Threads& endpoint) {
    Weighted ring({.weights = {1, 2, 3}}, endpoint);
    CHECK(oracle::train(ring, count, 4) == expected);
    comm::Weighted<comm::Sharded<comm::Ring<Threads>>> sharded({.weights = {1, 2, 3}}, endpoint);
    CHECK(oracle::train(sharded, count, 4) == expected);
    auto any = comm::make("ring", endpoint, {}, {.weights = {1, 2, 3}});
    CHECK(any.policy() == "ring");
    CHECK(any.shares(never)[2] == 0.5);
    CHECK(oracle::train(any, count, 4) == expected);
  });
}

TEST_CASE("weights that are none are refused in one sentence") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), huge = std::numeric_limits<double>::max();
  CHECK(refusal({1, 2, 3}) == "weighted: 3 weights for 2 workers; give one to each");
  CHECK(refusal({1}) == "weighted: 1 weight for 2 workers; give one to each");
  CHECK(refusal({1, -2}) == "weighted: the weight of rank 1 is -2; it must be a number that is not negative");
  CHECK(refusal({nan, 1}).find("the weight of rank 0 is ") != std::string::npos);
  CHECK(refusal({1, 1 / 0.0}).find("the weight of rank 1 is inf") != std::string::npos);
  CHECK(refusal({0, 0}) == "weighted: the sum of all 2 weights is 0, so there are no shares");
  CHECK(refusal({huge, huge}).find("the sum of all 2 weights is inf") != std::string::npos);
  CHECK(refusal({0, 1}) == "");
}

TEST_CASE("speeds that are none, and a mean before there are shares") {
  std::atomic<int> told = 0;
  Threads::World(2).run([&](const Threads& endpoint) {
    Weighted comm({}, endpoint);
    float f[] = {1};
    CHECK_THROWS_WITH_AS(comm.all_reduce(std::span<float>(f), comm::mean),
                         "weighted: a mean was asked for before the shares are known; call shares() first, "
                         "which measures them",
                         ConfigError);
    const auto measure = [&](double, double& speed) { speed = comm.rank() == 1 ? -1 : 1; };
    try {
      comm.shares(measure);
    } catch (const ConfigError& error) {
      CHECK(std::string(error.what()) ==
            "weighted: the measured speed of rank 1 is -1; it must be a number that is not negative");
      ++told;
    }
  });
  CHECK(told == 2);
}

TEST_CASE("ranks with different weights follow rank 0, and open names who differs") {
  for (const bool measures : {false, true}) {
    std::atomic<int> told = 0;
    try {
      Threads::World(2).run([&](const Threads& endpoint) {
        std::vector<double> weights{2, 1};
        if (endpoint.rank() == 1) weights = measures ? std::vector<double>{} : std::vector<double>{1, 1};
        Weighted comm({weights}, endpoint);
        CHECK(comm.shares(never)[0] == 2.0 / 3);
        try {
          comm.open({}, {});
        } catch (const ConfigError& error) {
          CHECK(std::string(error.what()) ==
                (measures ? "rank 1 differs from rank 0 in weighted.weights: [] instead of [2, 1]"
                          : "rank 1 differs from rank 0 in weighted.weights: [1, 1] instead of [2, 1]"));
          ++told;
        }
      });
    } catch (const Error&) {
    }
    CHECK(told == 2);
  }
}
