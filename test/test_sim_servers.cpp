// Simulated parameter servers against their bounds, and against each other.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "near.hpp"
#include "sim_settings.hpp"
#include <convoy/sim/simulate.hpp>

using namespace convoy;
using test::setting;

TEST_CASE("sim: servers take the time that their links need") {
  const std::int64_t bytes = 32 << 20;
  const auto m = static_cast<double>(bytes);
  for (const int workers : {2, 4, 6}) {
    for (const int servers : {1, 2, 4, 8}) {
      sim::Cluster cluster = test::shared(workers + servers, 1);
      cluster.nic.alpha = 1e-6;
      cluster.gamma = 0;
      sim::Setting s = setting(cluster, test::bytes_alone(bytes), "ps");
      s.exchange.servers = servers;
      s.exchange.servers_beside = true;
      s.steps = 1;
      CAPTURE(workers);
      CAPTURE(servers);
      const sim::Outcome outcome = simulate(s);
      // Pushes and replies overlap, so that a step takes max(M/B, nM/(kB)), and a little more at its
      // beginning and its end.
      const double bound = std::max(m, workers * m / servers) * cluster.nic.beta;
      CHECK(outcome.step_seconds >= bound);
      CHECK(outcome.step_seconds < 1.25 * bound);
      CHECK(outcome.bytes == test::near(2 * workers * m, 0.01));
      CHECK(outcome.binds == "nic");
    }
  }
}

TEST_CASE("sim: servers among the workers carry 2(n-1)M/n") {
  const std::int64_t bytes = 32 << 20;
  const int n = 4;
  sim::Setting s = setting(test::shared(n, 1), test::bytes_alone(bytes), "ps");
  s.exchange.servers = n;
  s.steps = 1;
  const double bound = 2.0 * (n - 1) / n * static_cast<double>(bytes) * s.cluster.nic.beta;
  const sim::Outcome outcome = simulate(s);
  CHECK(outcome.step_seconds >= bound);
  CHECK(outcome.step_seconds < 1.5 * bound);
  CHECK(outcome.bytes == test::near(2.0 * (n - 1) * static_cast<double>(bytes), 0.01));
}

TEST_CASE("sim: if the work has no updates, a server computes them at its memory's bandwidth") {
  const std::int64_t bytes = 32 << 20;
  sim::Setting s = setting(test::shared(2, 1), test::bytes_alone(bytes), "ps");
  s.steps = 1;
  const double before = simulate(s).step_seconds;
  s.cluster.device.bandwidth = 1e8;  // so slow that nothing else matters
  // Adam moves seven numbers for each gradient.
  CHECK(simulate(s).step_seconds - before == test::near(7.0 * bytes / 1e8, 0.02));
}

TEST_CASE("sim: without sync no worker waits for a slow one; with bounded staleness the fast ones wait") {
  sim::Cluster cluster = test::shared(5, 1);
  cluster.nodes = {{3, 1, 1}, {1, 1, 0.25}, {1, 1, 1}};
  cluster.nic.beta = 1 / 100e9;
  const sim::Work work = test::some_work();
  const auto run = [&](const char* comm, int staleness) {
    sim::Setting s = setting(cluster, work, comm);
    s.exchange.servers_beside = true;
    s.exchange.staleness = staleness;
    s.steps = 12;
    return simulate(s);
  };
  const sim::Outcome sync = run("ps", 0), async = run("ps-async", 0);
  const double alone = work.forward + work.backward;
  CHECK(sync.step_seconds >= 4 * alone);
  CHECK(sync.step_seconds < 4.5 * alone);
  // Three workers at full speed and one at a quarter: 3.25 times the throughput of one worker.
  CHECK(async.throughput < 3.25 * work.samples / alone);
  CHECK(async.throughput > 0.85 * 3.25 * work.samples / alone);
  // A step moves the gradients there and the parameters back, however many steps each worker makes.
  const double moved = 2.0 * 4 * static_cast<double>(work.bytes());
  CHECK(sync.bytes == test::near(moved, 0.05));
  CHECK(async.bytes == test::near(moved, 0.05));
  const sim::Outcome stale = run("ps-stale", 2), strict = run("ps-stale", 0);
  CHECK(stale.throughput < async.throughput);
  CHECK(stale.throughput > strict.throughput);
  CHECK(strict.throughput == test::near(sync.throughput, 0.1));
}

TEST_CASE("sim: no link is busy for longer than the run, also without sync") {
  for (const char* comm : {"ps", "ps-async", "ps-stale"})
    for (const int steps : {1, 2, 5}) {
      sim::Setting s = setting(test::shared(2, 4), test::some_work(), comm);
      s.cluster.nic.beta = 1 / 1e8;
      s.exchange.servers = 2;
      s.steps = steps;
      CAPTURE(comm);
      CAPTURE(steps);
      for (const sim::Use& link : simulate(s).links) CHECK(link.utilization <= 1);
    }
}

TEST_CASE("sim: without sync a worker whose steps take no time is refused") {
  sim::Setting s = setting(test::shared(3, 1), test::bytes_alone(1 << 20), "ps-async");
  s.cluster.gamma = 0;
  CHECK_THROWS_WITH_AS(
      simulate(s),
      "comm \"ps-async\": a step of worker 0 takes no time, so that it makes infinitely many "
      "while the others make one; give the work a time or place the servers beside",
      ConfigError);
  s.exchange.servers_beside = true;
  CHECK(simulate(s).step_seconds > 0);
}

TEST_CASE("sim: servers are deterministic, and invalid settings of servers are refused") {
  sim::Setting s = setting(test::shared(2, 3), test::some_work(), "ps-async");
  s.exchange.servers = 2;
  s.cluster.jitter = 0.2;
  CHECK(simulate(s).step_seconds == simulate(s).step_seconds);
  s.exchange.servers = 7;
  CHECK_THROWS_WITH_AS(simulate(s), "a parameter server needs 1 to 6 servers in a world of 6, not 7",
                       ConfigError);
  s.exchange.servers = 1;
  s.exchange.background = true;
  CHECK_THROWS_WITH_AS(simulate(s),
                       "background: a parameter server computes updates when it polls, so no background "
                       "thread may poll for it",
                       ConfigError);
}

TEST_CASE("sim: a worker of servers waits for launches, copies, messages and updates") {
  sim::Setting s = setting(test::apart(3, 0, 0, 0), test::bytes_alone(1 << 20), "ps");
  s.steps = 1;
  s.exchange.servers_beside = true;
  s.exchange.segment_bytes = 1 << 20;
  s.work.forward = 0.01;
  s.work.backward = 0.02;
  s.work.buckets[0].ready = 0.02;
  const auto extra = [](const sim::Setting& with) { return simulate(with).step_seconds - 0.03; };
  CHECK(std::abs(extra(s)) < 1e-12);
  sim::Setting launched = s;
  launched.cluster.launch = 1e-3;
  CHECK(extra(launched) == test::near(1e-3));
  sim::Setting staged = s;
  staged.exchange.staged = true;
  staged.cluster.staging = {1e-4, 1e-9};
  CHECK(extra(staged) == test::near(2 * (1e-4 + (1 << 20) * 1e-9)));
  // The server adds the gradients of the second worker to those of the first.
  sim::Setting added = s;
  added.cluster.gamma = 1e-9;
  CHECK(extra(added) == test::near((1 << 20) * 1e-9));
  sim::Setting updated = s;
  updated.work.buckets[0].update = 0.1;
  CHECK(extra(updated) == test::near(0.1));
  // A message to the server and one back, which an earlier bucket hides behind backward.
  s.cluster.nic.alpha = 1e-3;
  CHECK(extra(s) == test::near(2e-3));
  s.work.buckets[0].ready = 0.01;
  CHECK(std::abs(extra(s)) < 1e-12);
  s.exchange.overlap = false;
  CHECK(extra(s) == test::near(2e-3));
  s.exchange.overlap = true;
  s.cluster.hide = 0;
  CHECK(extra(s) == test::near(2e-3));
}
