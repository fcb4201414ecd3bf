// The simulator against results that are known without it: prices of schedules, bounds of collectives, and
// conserved quantities.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "near.hpp"
#include "sim_settings.hpp"
#include <convoy/comm/options.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/sim/legs.hpp>
#include <convoy/sim/paces.hpp>
#include <convoy/sim/simulate.hpp>

using namespace convoy;
using test::setting;

namespace {

constexpr sim::Manner whole{0, 1 << 30};

int between(Philox& random, int least, int most) {
  return least + static_cast<int>(random.next() % static_cast<std::uint32_t>(most - least + 1));
}

template <class S>
void costs_its_price(const char* comm) {
  Philox random(7);
  for (int round = 0; round < 60; ++round) {
    const int n = between(random, 2, 33);
    const std::int64_t count = between(random, 1, 1 << between(random, 1, 22));
    const schedule::CostModel model{1e-6 * between(random, 0, 50), 1e-10 * between(random, 1, 100),
                                    1e-11 * between(random, 0, 100)};
    sim::Setting s =
        setting(test::apart(n, model.alpha, model.beta, model.gamma), test::bytes_alone(4 * count), comm);
    s.steps = 1;
    s.exchange.segment_bytes = static_cast<std::size_t>(1) << between(random, 12, 18);
    s.exchange.window = between(random, 1, 6);
    comm::Options options;
    options.segment_bytes = s.exchange.segment_bytes;
    options.window = s.exchange.window;
    S schedule{};
    schedule.segments = comm::segments_for(count, 4, schedule.blocks(n), options);
    if constexpr (requires { schedule.window; }) schedule.window = options.window;
    const schedule::Price price = schedule::price(schedule, n, count, 4, model);
    const sim::Outcome outcome = simulate(s, whole);
    CAPTURE(n);
    CAPTURE(count);
    CAPTURE(schedule.segments);
    CHECK(outcome.step_seconds == test::near(price.seconds, 1e-12));
    CHECK(outcome.messages == price.messages);
    CHECK(outcome.bytes == price.bytes);
  }
}

double sum_of(const sim::Critical& c) {
  return c.compute + c.launch + c.latency + c.inside + c.nic + c.fabric + c.combining + c.staging;
}

double carried(const sim::Outcome& outcome, const std::string& what) {
  double sum = 0;
  for (const sim::Use& use : outcome.links)
    if (use.name.find(what) != std::string::npos) sum += use.bytes;
  return sum;
}

}  // namespace

TEST_CASE("sim: a collective without contention takes the time of its schedule's price") {
  SUBCASE("ring") { costs_its_price<schedule::Ring>("ring"); }
  SUBCASE("halving-doubling") { costs_its_price<schedule::HalvingDoubling>("halving-doubling"); }
  SUBCASE("tree") { costs_its_price<schedule::Tree>("tree"); }
}

TEST_CASE("sim: no all-reduce beats the bound of its links") {
  const double bytes = 24 << 20;
  for (const int nodes : {2, 3, 4, 7}) {
    for (const int ranks : {1, 2, 4}) {
      const sim::Cluster cluster = test::shared(nodes, ranks);
      // Every node must send and receive at least 2 (n - 1) / n times the bytes.
      const double bound = 2.0 * (nodes - 1) / nodes * bytes * cluster.nic.beta;
      for (const char* comm :
           {"ring", "halving-doubling", "tree", "auto", "nccl", "reproducible", "hierarchical"}) {
        CAPTURE(nodes);
        CAPTURE(ranks);
        CAPTURE(comm);
        const sim::Outcome outcome = simulate(setting(cluster, test::bytes_alone(24 << 20), comm));
        CHECK(outcome.step_seconds >= bound);
        CHECK(outcome.step_seconds < 40 * bound);
        CHECK(sum_of(outcome.critical) == test::near(outcome.step_seconds));
      }
    }
  }
}

TEST_CASE("sim: a ring between nodes takes the time of its formula, although ranks share a card") {
  const int nodes = 4, ranks = 4, n = nodes * ranks;
  sim::Cluster cluster = test::shared(nodes, ranks);
  cluster.inside.beta = 0;
  cluster.gamma = 0;
  const std::int64_t bytes = 64 << 20;
  sim::Setting s = setting(cluster, test::bytes_alone(bytes), "ring");
  s.steps = 1;
  const double line = 2.0 * (n - 1) / n * static_cast<double>(bytes) * cluster.nic.beta;
  CHECK(simulate(s).step_seconds == test::near(line, 0.05));
  // The ranks of a node exchange one shard each, so that a card carries every element as in a ring of nodes.
  s.exchange.comm = "hierarchical";
  const double shards = 2.0 * (nodes - 1) / nodes * static_cast<double>(bytes) * cluster.nic.beta;
  CHECK(simulate(s).step_seconds == test::near(shards, 0.05));
}

TEST_CASE("sim: NCCL's rings use all cards of a node") {
  sim::Cluster cluster = test::shared(4, 8);
  cluster.nic.count = 4;
  cluster.gamma = 0;
  const std::int64_t bytes = 128 << 20;
  sim::Setting s = setting(cluster, test::bytes_alone(bytes), "nccl");
  s.steps = 1;
  const sim::Outcome outcome = simulate(s);
  const double bound = 2.0 * 31 / 32 * static_cast<double>(bytes) / 4 * cluster.nic.beta;
  CHECK(outcome.step_seconds >= bound);
  CHECK(outcome.step_seconds < 1.2 * bound);
  double cards = 0;
  for (const sim::Use& use : outcome.links)
    if (use.kind == "nic") {
      CHECK(use.bytes == test::near(2.0 * 31 / 32 * static_cast<double>(bytes) / 4, 1e-3));
      ++cards;
    }
  CHECK(cards == 2 * 4 * 4);
}

TEST_CASE("sim: a direct exchange loads and stores each byte of each buffer once") {
  constexpr int ranks = 4;
  const std::int64_t bytes = 8 << 20;
  sim::Cluster cluster = test::shared(1, ranks, sim::Wiring::memory);
  sim::Setting s = setting(cluster, test::bytes_alone(bytes), "direct");
  s.steps = 1;
  // With Wiring::memory, a load or store takes half as long as a message. Over a bus, only accesses to a
  // peer's memory take time.
  const double message = static_cast<double>(bytes) * cluster.inside.beta;
  const sim::Outcome outcome = simulate(s);
  CHECK(outcome.step_seconds == test::near(2 * cluster.inside.alpha + ranks * message));
  CHECK(outcome.links.size() == 1);
  CHECK(outcome.links[0].name == "node 0 memory");
  CHECK(outcome.binds == "inside");
  s.cluster.inside.wiring = sim::Wiring::bus;
  CHECK(simulate(s).step_seconds == test::near(2 * cluster.inside.alpha + 2 * (ranks - 1) * message));
  s.cluster.nodes[0].count = 2;
  CHECK_THROWS_WITH_AS(simulate(s),
                       "comm \"direct\" needs ranks that see each other's memory; there are 2 nodes",
                       ConfigError);
}

TEST_CASE("sim: a ring in memory takes a further load for each byte that it combines") {
  const sim::Cluster cluster = test::shared(1, 2, sim::Wiring::memory);
  const std::int64_t bytes = 64 << 20;
  sim::Setting s = setting(cluster, test::bytes_alone(bytes), "ring");
  s.steps = 1;
  const double message = static_cast<double>(bytes) * cluster.inside.beta;
  CHECK(simulate(s).step_seconds == test::near(2.5 * message, 0.02));
}

TEST_CASE("sim: an exchange that backward hides takes no further time") {
  sim::Work work = test::some_work();
  for (sim::Bucket& bucket : work.buckets) bucket.ready = 0.001;
  sim::Setting s = setting(test::shared(2, 2), work, "ring");
  const double exchange = [&] {
    sim::Setting alone = s;
    alone.work.forward = alone.work.backward = 0;
    for (sim::Bucket& bucket : alone.work.buckets) bucket.ready = bucket.update = 0;
    return simulate(alone).step_seconds;
  }();
  CHECK(exchange < work.backward - 0.001);
  sim::Outcome outcome = simulate(s);
  CHECK(outcome.exposed_seconds < 1e-12);
  CHECK(outcome.step_seconds == test::near(work.alone()));
  CHECK(outcome.binds == "compute");
  CHECK(outcome.scalability == test::near(4));
  // Without overlap, nearly the whole exchange is exposed; updates still overlap with later buckets.
  s.exchange.overlap = false;
  outcome = simulate(s);
  CHECK(outcome.exposed_seconds <= exchange * (1 + 1e-12));
  CHECK(outcome.exposed_seconds > exchange - work.update());
  // If the exchange can overlap no part of backward, overlap does not help; a background thread does.
  s.exchange.overlap = true;
  s.cluster.hide = 0;
  CHECK(simulate(s).step_seconds == test::near(outcome.step_seconds));
  s.exchange.background = true;
  CHECK(simulate(s).exposed_seconds < 1e-12);
}

TEST_CASE("sim: bytes are conserved") {
  const std::int64_t bytes = 3 << 20;
  for (const char* comm : {"ring", "halving-doubling", "tree", "sharded", "reproducible", "hierarchical"}) {
    CAPTURE(comm);
    sim::Cluster cluster = test::shared(4, 2);
    cluster.fabric = {2, 2};
    const sim::Outcome outcome = simulate(setting(cluster, test::bytes_alone(bytes), comm));
    CHECK(carried(outcome, "NIC 0 out") == carried(outcome, "NIC 0 in"));
    CHECK(carried(outcome, "leaf 0 up") == carried(outcome, "leaf 1 down"));
    CHECK(carried(outcome, "leaf 1 up") == carried(outcome, "leaf 0 down"));
    for (const sim::Use& use : outcome.links) {
      CHECK(use.utilization > 0);
      CHECK(use.utilization <= 1);
    }
  }
  const int n = 8;
  const sim::Outcome ring = simulate(setting(test::shared(n, 1), test::bytes_alone(bytes), "ring"));
  CHECK(ring.bytes == 2.0 * (n - 1) * bytes);
  CHECK(ring.messages == 2 * (n - 1) * n);
  CHECK(ring.links.size() == 2 * n);
  for (const sim::Use& use : ring.links) CHECK(use.bytes == 2.0 * (n - 1) / n * bytes);
}

TEST_CASE("sim: a seed decides everything") {
  sim::Setting s = setting(test::shared(3, 2), test::some_work(), "tree");
  s.cluster.jitter = 0.1;
  const sim::Outcome one = simulate(s), again = simulate(s);
  CHECK(one.step_seconds == again.step_seconds);
  CHECK(one.critical.nic == again.critical.nic);
  CHECK(one.links.front().seconds == again.links.front().seconds);
  s.seed = 2;
  CHECK(simulate(s).step_seconds != one.step_seconds);
  // With jitter, all workers wait for the slowest.
  s.cluster.jitter = 0;
  CHECK(simulate(s).step_seconds < one.step_seconds);
  CHECK(one.critical.waiting > 0);
}

TEST_CASE("sim: steps of a worker differ by the jitter around a mean of 1") {
  sim::Setting s = setting(test::apart(2, 0, 0, 0), test::some_work(), "ring");
  s.cluster.nodes = {{1, 1, 1}, {1, 1, 0.5}};
  s.cluster.jitter = 0.2;
  const sim::Paces paces(s, 2);
  constexpr int steps = 10'000;
  double sum = 0, squares = 0;
  for (int step = 0; step < steps; ++step) {
    const double pace = paces.of(1, step) / 2;  // half the speed
    sum += pace;
    squares += pace * pace;
  }
  const double mean = sum / steps;
  CHECK(mean == test::near(1, 0.01));
  CHECK(std::sqrt(squares / steps - mean * mean) == test::near(0.2, 0.03));
  CHECK(paces.of_update(1) == 2);
}

TEST_CASE("sim: two levels meet twice inside the nodes, where each rank moves the parts of its peers") {
  sim::Setting s = setting(test::apart(2, 0, 0, 0), test::bytes_alone(1 << 20), "hierarchical");
  s.steps = 1;
  s.cluster.nodes = {{2, 2, 1}};
  // Each of two ranks loads half of its peer's buffer, and later stores half of its own to it.
  const double message = (1 << 20) * 1e-9;
  s.cluster.inside = {sim::Wiring::ports, 0, 1e-9};
  CHECK(simulate(s).step_seconds == test::near(message));
  s.cluster.inside = {sim::Wiring::bus, 0, 1e-9};
  CHECK(simulate(s).step_seconds == test::near(2 * message));
  s.cluster.inside = {sim::Wiring::bus, 1e-3, 0};
  CHECK(simulate(s).step_seconds == test::near(4e-3));
  // Four buckets at a time inside the nodes, and two between them.
  s.work.buckets.assign(8, s.work.buckets[0]);
  CHECK(simulate(s).step_seconds == test::near(6e-3));
  s.cluster.inside = {};
  s.cluster.nic.alpha = 1e-3;
  s.exchange.lanes = 2;
  CHECK(simulate(s).step_seconds == test::near(8e-3));
}

TEST_CASE("sim: slower workers are waited for, unless they take smaller shares") {
  sim::Cluster cluster = test::shared(2, 2);
  cluster.nodes = {{1, 2, 1}, {1, 2, 0.5}};
  sim::Work work = test::some_work();
  sim::Setting s = setting(cluster, work, "ring");
  const sim::Outcome unequal = simulate(s);
  CHECK(unequal.step_seconds >= 2 * work.alone());
  CHECK(unequal.binds == "waiting for slower workers");
  s.exchange.weighted = true;
  const sim::Outcome weighted = simulate(s);
  // Shares of 2/6 and 1/6: all compute 4/3 as long as a worker of speed 1 with an equal share.
  CHECK(weighted.step_seconds < 0.72 * unequal.step_seconds);
  CHECK(weighted.step_seconds > 4.0 / 3 * (work.forward + work.backward));
  s.exchange.weighted = false;
  s.exchange.weights = {2, 2, 1, 1};
  CHECK(simulate(s).step_seconds == weighted.step_seconds);
  s.exchange.weighted = true;
  CHECK_THROWS_WITH_AS(simulate(s), doctest::Contains("choose one of the two"), ConfigError);
  s.exchange.weighted = false;
  s.exchange.weights = {1, 2};
  CHECK_THROWS_WITH_AS(simulate(s), "weighted: 2 weights for 4 workers; give one to each", ConfigError);
}

TEST_CASE("sim: launches, copies and encodings take their time") {
  const std::int64_t bytes = 16 << 20;
  sim::Setting plain = setting(test::shared(2, 1), test::bytes_alone(bytes), "ring");
  plain.cluster.gamma = 0;
  plain.steps = 1;
  const double seconds = simulate(plain).step_seconds;
  sim::Setting s = plain;
  s.cluster.launch = 1e-3;
  CHECK(simulate(s).step_seconds == test::near(seconds + 1e-3));
  s = plain;
  s.exchange.staged = true;
  s.cluster.staging = {1e-5, 1 / 10e9};
  CHECK(simulate(s).step_seconds == test::near(seconds + 2 * (1e-5 + static_cast<double>(bytes) / 10e9)));
  s = plain;
  const double sent = simulate(plain).critical.nic;
  s.exchange.codec = "bf16";
  CHECK(simulate(s).critical.nic == test::near(sent / 2));
  CHECK(simulate(s).step_seconds == test::near(seconds / 2, 0.02));
  s.exchange.codec = "int8";  // 512 bytes and a scale for 512 elements
  CHECK(simulate(s).critical.nic == test::near(sent / 4 * 516 / 512));
  s.exchange.codec = "topk";  // every rank gets 1% of each rank's elements, with indices
  CHECK(simulate(s).critical.nic == test::near(sent * 0.02, 1e-3));
  s.exchange.codec = "powersgd";
  CHECK_THROWS_WITH_AS(
      simulate(s),
      "codec \"powersgd\" of rank 4 would compress nothing: no bucket of this work lists a matrix "
      "whose two factors have at most half of its elements",
      ConfigError);
  // Half of the bucket is a matrix, sent as two factors of rank 4; the other half is sent as it is.
  s.work.buckets[0].matrices = {{1024, bytes / 8 / 1024}, {1, 64}};
  s.exchange.codec_rank = 4;
  CHECK(simulate(s).critical.nic ==
        test::near(sent * (0.5 + 4 * (1024 + bytes / 8 / 1024.0) * 4 / static_cast<double>(bytes)), 1e-4));
  s.work.buckets[0].matrices = {{bytes, bytes}};
  CHECK_THROWS_WITH_AS(simulate(s),
                       "work: bucket 0 of 16777216 bytes has a matrix of 16777216 rows and 16777216 columns, "
                       "which is empty or does not fit",
                       ConfigError);
  s.work.buckets[0].matrices = {{1 << 20, 4}, {1, 1}};
  CHECK_THROWS_WITH_AS(
      simulate(s),
      "work: bucket 0 of 16777216 bytes has matrices of 4194305 elements, expected at most 4194304",
      ConfigError);
  s.work.buckets[0].matrices.clear();
  s.exchange.codec = "none";
  s.exchange.comm = "sometimes";
  CHECK_THROWS_WITH_AS(simulate(s),
                       doctest::Contains("there is no comm \"sometimes\" to simulate; choose none, ring"),
                       ConfigError);
}

TEST_CASE("sim: encodings and sums in the order of ranks pass over memory as often as they do") {
  constexpr double n = 2, m = 1 << 20;
  sim::Setting s = setting(test::apart(2, 0, 0, 1e-9), test::bytes_alone(1 << 20), "ring");
  s.steps = 1;
  s.exchange.segment_bytes = 1 << 20;
  s.work.buckets[0].matrices = {{512, 512}};
  s.exchange.codec_rank = 4;
  const auto passes = [&](const char* comm, const char* codec) {
    s.exchange.comm = comm;
    s.exchange.codec = codec;
    return simulate(s).step_seconds / (m * s.cluster.gamma);
  };
  // A ring adds to each rank's part once for each other rank.
  CHECK(passes("ring", "none") == test::near((n - 1) / n));
  CHECK(passes("reproducible", "none") == test::near(1));
  // Encoded, half of the bytes added, and decoded.
  CHECK(passes("ring", "bf16") == test::near(1 + (n - 1) / n / 2 + 1));
  // Encoded; a part of 1/n decoded from n ranks, and its sum encoded; decoded.
  CHECK(passes("ring", "int8") == test::near(1 + (1 + 1 / n) + 1));
  // The threshold, the pairs; cleared, and the pairs of all ranks added.
  CHECK(passes("ring", "topk") == test::near(2 + 1 + 2 * 0.01 * n));
  // The left factors; the right factors and what they leave out; the gradients. The factors are added.
  CHECK(passes("ring", "powersgd") == test::near(1 + 2 + 1 + (n - 1) / n * 2 * 4 / 512));
}

TEST_CASE("sim: buckets that only wait share the lanes of their exchange") {
  sim::Setting s = setting(test::apart(2, 1e-3, 0, 0), {}, "ring");
  s.steps = 1;
  // How long four small buckets take, in seconds of one.
  const auto rounds = [&](const char* comm, const char* codec, int lanes) {
    s.exchange.comm = comm;
    s.exchange.codec = codec;
    s.exchange.lanes = lanes;
    s.work.buckets.assign(1, {1 << 12, 0, 0, {{32, 32}}});
    const double one = simulate(s).step_seconds;
    s.work.buckets.assign(4, s.work.buckets[0]);
    return simulate(s).step_seconds / one;
  };
  s.exchange.codec_rank = 4;
  CHECK(rounds("ring", "none", 1) == test::near(4));
  CHECK(rounds("ring", "none", 2) == test::near(2));
  CHECK(rounds("ring", "none", 4) == test::near(1));
  CHECK(rounds("auto", "none", 4) == test::near(1));
  CHECK(rounds("nccl", "none", 4) == test::near(4));  // a library makes one exchange at a time
  // Of two halves, each has half of the lanes, but at least one; the second half of a bucket overlaps with
  // the first half of the next.
  for (const char* comm : {"sharded", "reproducible"}) {
    CAPTURE(comm);
    CHECK(rounds(comm, "none", 4) == test::near(1.5));
    CHECK(rounds(comm, "none", 1) == test::near(2.5));
  }
  for (const char* codec : {"int8", "powersgd"}) {
    CAPTURE(codec);
    CHECK(rounds("ring", codec, 4) == test::near(1.5));
    CHECK(rounds("ring", codec, 1) == test::near(2.5));
  }
}

TEST_CASE("sim: what an exchange does after backward is not hidden by it") {
  sim::Setting s = setting(test::apart(2, 0.01, 0, 0), test::bytes_alone(1 << 12), "ring");
  s.steps = 1;
  s.work.backward = 1;
  s.work.buckets[0].update = 0.5;
  CHECK(simulate(s).step_seconds == test::near(1 + 0.5));
  s.exchange.comm = "native";
  CHECK(simulate(s).step_seconds == test::near(1 + 2 * 0.01 + 0.5));
  // Each of two ranks updates half of the parameters, and then sends them.
  s.exchange.comm = "sharded";
  CHECK(simulate(s).step_seconds == test::near(1 + 0.25 + 0.01));
}

TEST_CASE("sim: in a large world the cheapest of the schedules is chosen") {
  for (const int n : {130, 256}) {
    for (const int kilobytes : {1, 64, 4096}) {
      sim::Setting s = setting(test::apart(n, 1e-5, 1e-9, 1e-10),
                               test::bytes_alone(std::int64_t{kilobytes} << 10), "ring");
      s.steps = 1;
      const auto seconds = [&](const char* comm) {
        s.exchange.comm = comm;
        return simulate(s).step_seconds;
      };
      const double ring = seconds("ring"), halving = seconds("halving-doubling"), tree = seconds("tree");
      CAPTURE(n);
      CAPTURE(kilobytes);
      CAPTURE(ring);
      CAPTURE(halving);
      CAPTURE(tree);
      CHECK(seconds("auto") <= 1.01 * std::min({ring, halving, tree}));
      CHECK(seconds("nccl") <= 1.01 * std::min(ring, tree));
    }
  }
}

TEST_CASE("sim: links between workers and switches carry what passes between them") {
  const std::int64_t bytes = 16 << 20;
  const auto names = [](const sim::Outcome& outcome) {
    std::vector<std::string> all;
    for (const sim::Use& use : outcome.links) all.push_back(use.name);
    std::sort(all.begin(), all.end());
    return all;
  };
  sim::Cluster cluster = test::shared(2, 2, sim::Wiring::pairs);
  sim::Setting s = setting(cluster, test::bytes_alone(bytes), "ring");
  CHECK(names(simulate(s)) == std::vector<std::string>{"node 0 NIC 0 in", "node 0 NIC 0 out",
                                                       "node 0 link 0 to 1", "node 1 NIC 0 in",
                                                       "node 1 NIC 0 out", "node 1 link 0 to 1"});
  s.cluster.inside.wiring = sim::Wiring::ports;
  CHECK(names(simulate(s)) == std::vector<std::string>{"node 0 NIC 0 in", "node 0 NIC 0 out",
                                                       "node 0 port 0 out", "node 0 port 1 in",
                                                       "node 1 NIC 0 in", "node 1 NIC 0 out",
                                                       "node 1 port 0 out", "node 1 port 1 in"});
  // Two cards send to the other leaf over uplinks with a third of their bandwidth.
  s = setting(test::shared(4, 1), test::bytes_alone(bytes), "ring");
  s.steps = 1;
  s.cluster.gamma = 0;
  const double unbound = simulate(s).step_seconds;
  s.cluster.fabric = {2, 3};
  CHECK(simulate(s).step_seconds == test::near(1.5 * unbound, 0.02));
  s.cluster.fabric = {1, 3};
  CHECK(simulate(s).step_seconds == test::near(3 * unbound, 0.02));
}
