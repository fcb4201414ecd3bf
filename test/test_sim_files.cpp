// What the simulator reads and writes: clusters, steps of plans, traces.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "chrome_spans.hpp"
#include "near.hpp"
#include "sim_settings.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/sim/cluster_file.hpp>
#include <convoy/sim/simulate.hpp>
#include <convoy/sim/trace.hpp>
#include <convoy/sim/work_of.hpp>

using namespace convoy;

namespace {

const DynamicPlan& resnet18() {
  static const DynamicPlan plan([](graph::Builder& g) { models::ResNet18<Image{1, 28, 28}, 10>::define(g); });
  return plan;
}

template <class E>
void refuses(const char* text, const char* sentence) {
  CAPTURE(text);
  CHECK_THROWS_WITH_AS(sim::parse_cluster(text, "c.json"), sentence, E);
}

}  // namespace

TEST_CASE("sim: clusters are read strictly") {
  const sim::Cluster cluster = sim::parse_cluster(
      R"({"name": "two", "nodes": [{"count": 2, "ranks": 4}, {"speed": 0.5}],
          "inside": {"wiring": "pairs", "beta": 1e-10}, "nic": {"count": 2, "alpha": 5e-6}, "hide": 0.25})",
      "c.json");
  CHECK(cluster.name == "two");
  CHECK(cluster.ranks() == 9);
  CHECK(cluster.node_count() == 3);
  CHECK(cluster.nodes[1].speed == 0.5);
  CHECK(cluster.inside.wiring == sim::Wiring::pairs);
  CHECK(cluster.inside.beta == 1e-10);
  CHECK(cluster.nic.count == 2);
  CHECK(cluster.hide == 0.25);
  CHECK(cluster.hide_background == 1);
  CHECK_FALSE(cluster.uniform());

  CHECK(sim::parse_cluster("\xEF\xBB\xBF{\"nodes\": [{}]}", "c.json").ranks() == 1);
  refuses<CheckpointError>("\xEF\xBB\xBF[]", "c.json: at byte 3 there is no '{'");
  refuses<CheckpointError>("[]", "c.json: at byte 0 there is no '{'");
  refuses<CheckpointError>(R"({"speed": 1})",
                           "c.json: at byte 9 there is a member 'speed', which a cluster does not have");
  refuses<CheckpointError>(
      R"({"sp\need": 1})",
      R"(c.json: at byte 11 there is a member 'sp\u000aeed', which a cluster does not have)");
  refuses<CheckpointError>(R"({"name": "a", "name": "b"})",
                           "c.json: at byte 21 the member 'name' is there twice");
  refuses<CheckpointError>(
      R"({"inside": {"wiring": "stars"}})",
      "c.json: at byte 29 there is the wiring 'stars'; choose pairs, ports, bus or memory");
  refuses<CheckpointError>(R"({"nodes": [{"ranks": 5000000000}]})",
                           "c.json: at byte 31 there is the number 5000000000, which is too large");
  refuses<ConfigError>(R"({"name": "none"})", "cluster \"none\" has no nodes");
  refuses<ConfigError>(R"({"name": "a", "nodes": [{"speed": 0}]})",
                       "cluster \"a\": nodes[0].speed is 0; it must be above 0 and below 1e9");
  refuses<ConfigError>(R"({"name": "a", "nodes": [{"count": 1000000, "ranks": 1000000}]})",
                       "cluster \"a\": the number of ranks is 1e+12; it must be at most 2^20");
  refuses<ConfigError>(R"({"name": "a", "nodes": [{}], "hide": 1.5})",
                       "cluster \"a\": hide is 1.5; it must be a share, from 0 to 1");
  refuses<ConfigError>(R"({"name": "a", "nodes": [{}], "nic": {"beta": -1}})",
                       "cluster \"a\": nic.beta is -1; it must be seconds, at least 0 and below 1e9");
  refuses<ConfigError>(
      R"({"name": "a", "nodes": [{"count": 2}],
                           "fabric": {"nodes_per_leaf": 2147483647, "oversubscription": 2}})",
      "cluster \"a\": fabric.nodes_per_leaf is 2.14748e+09; it must be 0, or 1 to 2^20 nodes");
  refuses<ConfigError>(R"({"name": "a", "nodes": [{}, {"ranks": 65536}], "inside": {"wiring": "pairs"}})",
                       "cluster \"a\": nodes[1].ranks is 65536; it must be at most 1024 with the wiring "
                       "\"pairs\", which has a link for each pair of them");
  CHECK_THROWS_WITH_AS(sim::read_cluster("no/such/file.json"),
                       "no/such/file.json cannot be read: No such file or directory", Error);
}

TEST_CASE("sim: every member of a cluster is read") {
  const sim::Cluster c = sim::parse_cluster(
      R"({"name": "n", "source": "s", "nodes": [{"count": 2, "ranks": 3, "speed": 0.5}],
          "inside": {"wiring": "ports", "alpha": 1, "beta": 2},
          "nic": {"count": 3, "alpha": 4, "beta": 5, "receive": 6},
          "fabric": {"nodes_per_leaf": 7, "oversubscription": 8}, "staging": {"alpha": 9, "beta": 10},
          "gamma": 11, "launch": 12, "hide": 0.1, "hide_background": 0.2, "jitter": 0.3,
          "device": {"flops": 13, "bandwidth": 14}})",
      "c.json");
  CHECK(c.name == "n");
  CHECK(c.source == "s");
  CHECK(c.nodes.front().count == 2);
  CHECK(c.nodes.front().ranks == 3);
  CHECK(c.nodes.front().speed == 0.5);
  CHECK(c.inside.wiring == sim::Wiring::ports);
  CHECK(std::vector{c.inside.alpha, c.inside.beta} == std::vector{1.0, 2.0});
  CHECK(c.nic.count == 3);
  CHECK(std::vector{c.nic.alpha, c.nic.beta, c.nic.receive} == std::vector{4.0, 5.0, 6.0});
  CHECK(c.fabric.nodes_per_leaf == 7);
  CHECK(c.fabric.oversubscription == 8);
  CHECK(std::vector{c.staging.alpha, c.staging.beta} == std::vector{9.0, 10.0});
  CHECK(std::vector{c.gamma, c.launch} == std::vector{11.0, 12.0});
  CHECK(std::vector{c.hide, c.hide_background, c.jitter} == std::vector{0.1, 0.2, 0.3});
  CHECK(std::vector{c.device.flops, c.device.bandwidth} == std::vector{13.0, 14.0});
}

TEST_CASE("sim: numbers that a cluster cannot have are refused, each by its name") {
  const auto refused = [](const char* field, auto change) {
    sim::Setting s = test::setting(test::shared(2, 2), test::some_work(), "ring");
    change(s.cluster);
    CHECK_THROWS_WITH_AS(simulate(s), doctest::Contains(concat(": ", field, " is ").c_str()), ConfigError);
  };
  using sim::Cluster;
  refused("nodes[0].count", [](Cluster& c) { c.nodes[0].count = 0; });
  refused("nodes[0].ranks", [](Cluster& c) { c.nodes[0].ranks = 0; });
  refused("nodes[0].speed", [](Cluster& c) { c.nodes[0].speed = -1; });
  refused("inside.alpha", [](Cluster& c) { c.inside.alpha = -1; });
  refused("inside.beta", [](Cluster& c) { c.inside.beta = 1e9; });
  refused("nic.count", [](Cluster& c) { c.nic.count = 0; });
  refused("nic.count", [](Cluster& c) { c.nic.count = 1025; });
  refused("nic.alpha", [](Cluster& c) { c.nic.alpha = std::nan(""); });
  refused("nic.receive", [](Cluster& c) { c.nic.receive = -1; });
  refused("fabric.nodes_per_leaf", [](Cluster& c) { c.fabric.nodes_per_leaf = -1; });
  refused("fabric.oversubscription", [](Cluster& c) { c.fabric.oversubscription = 0.5; });
  refused("staging.alpha", [](Cluster& c) { c.staging.alpha = -1; });
  refused("staging.beta", [](Cluster& c) { c.staging.beta = -1; });
  refused("gamma", [](Cluster& c) { c.gamma = -1; });
  refused("launch", [](Cluster& c) { c.launch = -1; });
  refused("hide_background", [](Cluster& c) { c.hide_background = 1.5; });
  refused("jitter", [](Cluster& c) { c.jitter = 1.5; });
  refused("device.flops", [](Cluster& c) { c.device.flops = -1; });
  refused("device.bandwidth", [](Cluster& c) { c.device.bandwidth = -1; });
}

TEST_CASE("sim: numbers that work cannot have are refused") {
  const auto refused = [](const char* sentence, auto change) {
    sim::Setting s = test::setting(test::shared(2, 2), test::some_work(), "ring");
    change(s);
    CHECK_THROWS_WITH_AS(simulate(s), sentence, ConfigError);
  };
  using sim::Setting;
  refused("work: a step has 0 samples; it must be above 0 and below 1e12",
          [](Setting& s) { s.work.samples = 0; });
  refused("work: a step has 1e+12 samples; it must be above 0 and below 1e12",
          [](Setting& s) { s.work.samples = 1e12; });
  refused("work: forward takes -1 and backward 0.02 seconds, expected at least 0 and below 1e9",
          [](Setting& s) { s.work.forward = -1; });
  refused("work: forward takes 0.01 and backward 1e+09 seconds, expected at least 0 and below 1e9",
          [](Setting& s) { s.work.backward = 1e9; });
  refused("work: bucket 1 has -4 bytes, expected 0 to 2^46",
          [](Setting& s) { s.work.buckets[1].bytes = -4; });
  refused("work: bucket 1 has 70368744177668 bytes, expected 0 to 2^46",
          [](Setting& s) { s.work.buckets[1].bytes = (std::int64_t{1} << 46) + 4; });
  refused("work: the update of bucket 0 takes -1 seconds, expected at least 0 and below 1e9",
          [](Setting& s) { s.work.buckets[0].update = -1; });
  refused(
      "work: bucket 0 of 1048576 bytes has a matrix of 0 rows and 4 columns, which is empty or does not fit",
      [](Setting& s) {
        s.work.buckets[0].matrices = {{0, 4}};
      });
  refused(
      "work: bucket 0 of 1048576 bytes has a matrix of 4 rows and 0 columns, which is empty or does not fit",
      [](Setting& s) {
        s.work.buckets[0].matrices = {{4, 0}};
      });
  refused(
      "work: bucket 3 is ready 0.03 seconds after backward's beginning; it must be from 0.017, when the "
      "bucket "
      "before is, to 0.02",
      [](Setting& s) { s.work.buckets[3].ready = 0.03; });
  refused("sim: the number of steps must be at least 0, not -1", [](Setting& s) { s.steps = -1; });
}

TEST_CASE("sim: a cluster that is written is read again") {
  sim::Cluster cluster = test::shared(3, 2, sim::Wiring::pairs);
  cluster.name = "a \"name\" of\ntwo lines";
  cluster.source = "nobody";
  cluster.nodes.push_back({1, 4, 1.0 / 3});
  cluster.fabric = {2, 4};
  cluster.staging = {1e-5, 1.0 / 7e9};
  cluster.launch = 0.1 + 0.2;
  cluster.hide = 0.7;
  cluster.hide_background = 0.9;
  cluster.jitter = 0.03;
  cluster.device = {13.45e12, 616e9};
  const std::string text = sim::cluster_text(cluster);
  CHECK(sim::cluster_text(sim::parse_cluster(text, "c.json")) == text);
  const sim::Cluster again = sim::parse_cluster(text, "c.json");
  CHECK(again.name == cluster.name);
  CHECK(again.nodes.size() == 2);
  CHECK(again.nodes[1].speed == 1.0 / 3);
  CHECK(again.staging.beta == 1.0 / 7e9);
  CHECK(again.launch == 0.1 + 0.2);
  CHECK(again.inside.wiring == sim::Wiring::pairs);
}

TEST_CASE("sim: a cluster is resized") {
  sim::Cluster cluster = test::shared(4, 8);
  CHECK(cluster.sized(0, 0).ranks() == 32);
  CHECK(cluster.sized(2, 0).ranks() == 16);
  CHECK(cluster.sized(100, 2).ranks() == 200);
  cluster.nodes = {{2, 4, 1}, {3, 2, 0.5}};
  CHECK(cluster.sized(3, 0).ranks() == 10);
  CHECK(cluster.sized(3, 1).ranks() == 3);
  CHECK_THROWS_WITH_AS(
      cluster.sized(6, 0),
      "cluster \"shared\" has 5 nodes of 2 kinds and cannot grow to 6 nodes; only a cluster with one "
      "kind of nodes can grow",
      ConfigError);
}

TEST_CASE("sim: the step of a plan") {
  const Plan& plan = resnet18();
  graph::Profile profile = graph::spread(plan, 128, 100);
  profile.update = 0.1;
  const sim::Work work = sim::work_of(plan, profile, plan.buckets);
  CHECK(work.samples == 128);
  CHECK(work.alone() == test::near(1.38));
  CHECK(work.forward == test::near(profile.forward()));
  // A bucket takes the part of the update that it has of the bytes.
  CHECK(work.update() == test::near(profile.update));
  for (const sim::Bucket& bucket : work.buckets)
    CHECK(bucket.update * static_cast<double>(work.bytes()) ==
          test::near(profile.update * static_cast<double>(bucket.bytes)));
  CHECK(work.bytes() == 4 * plan.sizes.exchanged);
  CHECK(work.buckets.size() == plan.buckets.size());
  CHECK(work.buckets.front().ready > 0);
  CHECK(work.buckets.front().ready < 0.5 * work.backward);
  CHECK(work.buckets.back().ready == test::near(work.backward));
  work.check();

  const std::vector<Range> tensors = sim::bucket_per_tensor(plan);
  const sim::Work each = sim::work_of(plan, profile, tensors);
  CHECK(each.buckets.size() == plan.parameter_list.size());
  each.check();
  std::size_t matrices = 0;
  for (const sim::Bucket& bucket : work.buckets) matrices += bucket.matrices.size();
  CHECK(matrices == 21);  // 20 convolutions and a linear layer
  CHECK(work.buckets.front().matrices.front().rows == 10);
  // In a ResNet-18 for 28x28 images, many weights only meet padding.
  const sim::Work dead = sim::work_of(plan, profile, tensors, sim::DeadTaps::exchanged);
  CHECK(dead.bytes() == 4 * plan.parameters());
  CHECK(dead.bytes() > each.bytes());

  graph::Profile other = profile;
  other.operations.pop_back();
  CHECK_THROWS_AS(sim::work_of(plan, other, plan.buckets), ConfigError);
}

TEST_CASE("sim: invalid work is refused") {
  sim::Setting s = test::setting(test::shared(2, 1), test::some_work(), "ring");
  s.work.buckets[1].ready = 0.001;
  CHECK_THROWS_WITH_AS(
      simulate(s),
      "work: bucket 1 is ready 0.001 seconds after backward's beginning; it must be from 0.004, when "
      "the bucket before is, to 0.02",
      ConfigError);
  s.work.buckets[1].ready = 1;
  CHECK_THROWS_AS(simulate(s), ConfigError);
}

TEST_CASE("sim: a trace shows each bucket on each lane of the requested ranks") {
  const sim::Setting s = test::setting(test::shared(2, 2), test::some_work(), "ring");
  const sim::Outcome outcome = simulate(s, {.shown = 2});
  int computed = 0, exchanged = 0;
  for (const sim::Span& span : outcome.spans) {
    CHECK(span.rank < 2);
    CHECK(span.begin <= span.end);
    (span.track == 0 ? computed : exchanged) += 1;
  }
  CHECK(exchanged == 2 * 4);
  CHECK(computed == 2 * (2 + 4));
  const std::string text = sim::trace_text(outcome);
  CHECK(text.find(R"("name":"forward","pid":1,"tid":0,"ts":)") != std::string::npos);
  CHECK(text.find(R"("dur":10000.000})") != std::string::npos);
  CHECK(text.find(R"("args":{"name":"lane 4"})") != std::string::npos);
  CHECK(simulate(s).spans.empty());
}

TEST_CASE("sim: a trace shows buckets that servers update at the same time, on several tracks") {
  sim::Cluster cluster = test::shared(1, 4, sim::Wiring::bus);
  cluster.inside.beta = 1 / 7e9;
  const sim::Outcome outcome = simulate(test::setting(cluster, test::some_work(), "ps"), {.shown = 1});
  const std::string text = sim::trace_text(outcome);
  CHECK(test::broken_spans(text).empty());
  for (int b = 0; b < 4; ++b)
    CHECK(text.find(concat("\"name\":\"bucket ", b, "\",\"pid\":0")) != std::string::npos);
}
