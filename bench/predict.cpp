// predict CLUSTER.json --model NAME: predicts the time of a training step on a described cluster by
// simulating the exchange's own schedules message by message (convoy/sim). Without --comm, compares and ranks
// all policies that fit.
//
// A worker's compute times come from a recorded profile, from a published throughput of one device, or from a
// roofline model of --flops and --bandwidth or of the device in the cluster file.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "../examples/common/command_line.hpp"
#include "../examples/common/json_text.hpp"
#include "../examples/common/numbers.hpp"
#include "../examples/common/printed.hpp"
#include "../examples/common/separate_files.hpp"
#include "predict/calibrate.hpp"
#include "predict/models.hpp"
#include <convoy/core/file.hpp>
#include <convoy/io/profile.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/optim/registry.hpp>
#include <convoy/sim/chakra.hpp>
#include <convoy/sim/cluster_file.hpp>
#include <convoy/sim/simulate.hpp>
#include <convoy/sim/trace.hpp>
#include <convoy/sim/work_of.hpp>
#include <convoy/train/arenas.hpp>

using namespace convoy;

namespace {

struct Options {
  std::string cluster, model, bucket = "default", optimizer = "adam";
  int batch = 0, nodes = 0, ranks_per_node = 0;
  std::vector<std::string> comms;
  sim::Exchange exchange;
  bool no_overlap = false, keep_dead_taps = false;
  double samples_per_second = 0, flops = 0, bandwidth = 0, jitter = -1;
  int steps = 0;
  std::uint64_t seed = 1;
  std::string profile, json, trace, chakra, from_chakra;
};

struct Prediction {
  std::string comm;
  sim::Outcome outcome;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("cluster", o.cluster, "Cluster file (see bench/clusters)")
      ->required()
      ->check(CLI::ExistingFile);
  std::vector<std::string> names;
  for (const bench::Model& model : bench::models()) names.emplace_back(model.name);
  auto* model =
      app.add_option("--model", o.model, "Model; ResNets take ImageNet's images, or with -mnist MNIST's")
          ->check(CLI::IsMember(names));
  auto* step = app.add_option("--from-chakra", o.from_chakra,
                              "Instead of --model: a Chakra trace of a worker's step, with its all-reduces")
                   ->check(CLI::ExistingFile);
  model->excludes(step);
  app.add_option("--batch", o.batch, "Samples per worker and step")
      ->required()
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--nodes", o.nodes,
                 "Use this many nodes (more than the cluster has only if all its nodes are alike)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--ranks-per-node", o.ranks_per_node, "Workers per node")->check(CLI::Range(1, 1 << 20));
  app.add_option("--comm", o.comms, "Policies to compare, comma-separated (default: all that fit)")
      ->delimiter(',');
  app.add_option("--codec", o.exchange.codec,
                 "Gradient compression (comm ring): none, bf16, f16, int8, topk or powersgd");
  app.add_option("--codec-fraction", o.exchange.codec_fraction, "Fraction of the gradients that topk keeps")
      ->check(examples::within(1e-6, 1));
  app.add_option("--codec-rank", o.exchange.codec_rank, "Rank of powersgd's low-rank factors")
      ->check(examples::positive());
  app.add_option("--bucket-mib", o.bucket,
                 "Bucket size in MiB, or 'tensor' for a bucket per tensor (default: the model's own)")
      ->excludes(step);
  std::vector<std::string> rules;
  for (const optim::RuleEntry& rule : optim::rules()) rules.emplace_back(rule.name);
  app.add_option("--optimizer", o.optimizer,
                 "Optimizer; one that needs whole matrices keeps them whole where updates are sharded")
      ->check(CLI::IsMember(rules))
      ->excludes(step);
  app.add_flag("--no-overlap", o.no_overlap, "Exchange gradients after backward instead of during it");
  app.add_flag("--background", o.exchange.background, "Advance the exchange in a background thread");
  app.add_flag("--staged", o.exchange.staged, "Stage gradients through host memory");
  app.add_flag("--weighted", o.exchange.weighted,
               "Divide each batch among workers in proportion to their speeds");
  app.add_flag("--keep-dead-taps", o.keep_dead_taps, "Also exchange weights that only ever meet padding")
      ->excludes(step);
  app.add_option("--lanes", o.exchange.lanes, "Maximum number of buckets in flight")
      ->check(CLI::Range(1, 64));
  app.add_option("--servers", o.exchange.servers, "Number of parameter servers")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--servers-beside", o.exchange.servers_beside,
               "Place parameter servers on the last ranks instead of among the workers");
  app.add_option("--staleness", o.exchange.staleness,
                 "Steps that a worker may be ahead of the slowest (comm ps-stale)")
      ->check(examples::not_negative());
  auto* profile =
      app.add_option("--profile", o.profile, "Recorded profile of the model")->check(CLI::ExistingFile);
  auto* rate = app.add_option("--samples-per-second", o.samples_per_second,
                              "Samples per second that one device trains alone")
                   ->check(examples::positive(1e12));
  auto* flops = app.add_option("--flops", o.flops, "FLOP/s of a device, for a roofline (with --bandwidth)")
                    ->check(examples::positive(1e24));
  auto* bandwidth = app.add_option("--bandwidth", o.bandwidth,
                                   "Memory bandwidth of a device in bytes/s, for a roofline (with --flops)")
                        ->check(examples::positive(1e24));
  flops->needs(bandwidth)->excludes(profile)->excludes(rate);
  bandwidth->needs(flops);
  profile->excludes(rate);
  for (auto* option : {profile, rate, flops, bandwidth}) option->excludes(step);
  app.add_option("--jitter", o.jitter,
                 "Relative standard deviation of a worker's step time (default: the cluster's)")
      ->check(examples::within(0, 1));
  app.add_option("--steps", o.steps, "Steps to simulate (default: enough for a stable mean)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", o.seed, "Random seed of the jitter");
  app.add_option("--json", o.json, "Write the predictions to this file as JSON ('-': standard output)")
      ->check(examples::path());
  app.add_option("--trace", o.trace,
                 "Write a Chrome trace of the fastest policy's step, with up to 16 ranks, to this file")
      ->check(examples::path());
  app.add_option("--chakra", o.chakra, "Write each worker's step as a Chakra trace, to FILE.RANK.et")
      ->check(examples::path());
}

std::unique_ptr<DynamicPlan> plan_of(const Options& o) {
  const auto model = std::find_if(bench::models().begin(), bench::models().end(),
                                  [&](const bench::Model& m) { return m.name == o.model; });
  BucketOptions buckets;
  if (o.bucket != "default" && o.bucket != "tensor") {
    double mib = 0;
    if (!CLI::detail::lexical_cast(o.bucket, mib) || !(mib > 0) || !(mib < 1 << 20))
      fail<ConfigError>("--bucket-mib takes MiB above 0 and below 2^20, or 'tensor', not '", o.bucket, "'");
    buckets.others = std::max<std::int64_t>(64, static_cast<std::int64_t>(mib * (1 << 20)));
    buckets.first = std::min(buckets.first, buckets.others);
  }
  return model->plan(buckets);
}

graph::Profile profile_of(const Options& o, const sim::Cluster& cluster, const Plan& plan) {
  if (!o.profile.empty()) {
    graph::Profile profile = io::read_profile(o.profile, plan);
    if (profile.rows != o.batch)
      fail<ConfigError>(o.profile, " was recorded with batches of ", profile.rows, " rows, not with --batch ",
                        o.batch);
    return profile;
  }
  if (o.samples_per_second > 0) return graph::spread(plan, o.batch, o.samples_per_second);
  if (o.flops > 0) return graph::roofline(plan, o.batch, o.flops, o.bandwidth);
  if (!(cluster.device.flops > 0) || !(cluster.device.bandwidth > 0))
    fail<ConfigError>(
        "cluster \"", cluster.name,
        "\" describes no device; give --profile, --samples-per-second or --flops and --bandwidth");
  return graph::roofline(plan, o.batch, cluster.device.flops, cluster.device.bandwidth);
}

const std::string& name_of(const Options& o) { return o.model.empty() ? o.from_chakra : o.model; }

sim::Work work_of(const Options& o, const sim::Cluster& cluster) {
  if (!o.from_chakra.empty()) return sim::chakra::work_of(sim::chakra::read(o.from_chakra), o.batch);
  if (o.model.empty()) fail<ConfigError>("give --model or --from-chakra");
  const std::unique_ptr<DynamicPlan> made = plan_of(o);
  const Plan& plan = made->plan();
  if (o.keep_dead_taps && (plan.used >> graph::index_of<graph::Conv2d> & 1u) == 0)
    fail<ConfigError>("--keep-dead-taps is for models with convolutions, and ", o.model, " has none");
  const std::vector<Range> buckets = o.bucket == "tensor"
                                         ? sim::bucket_per_tensor(plan)
                                         : std::vector<Range>(plan.buckets.begin(), plan.buckets.end());
  memory::Host space;
  const train::TensorGroups tensors = train::tensor_groups(plan, {}, false);
  const optim::Arena<optim::Any> arena(space, optim::make(o.optimizer), tensors.tensors, tensors.groups);
  return sim::work_of(plan, profile_of(o, cluster, plan), buckets,
                      o.keep_dead_taps ? sim::DeadTaps::exchanged : sim::DeadTaps::left_out,
                      arena.matrices());
}

// Workers of different speed have the same trace with scaled times.
void write_chakra(const Options& o, const sim::Setting& setting) {
  int rank = 0;
  for (const sim::Nodes& some : setting.cluster.nodes)
    for (int i = 0; i < some.count * some.ranks; ++i, ++rank)
      sim::chakra::write(concat(o.chakra, '.', rank, ".et"),
                         sim::chakra::trace_of(setting.work, 1 / some.speed));
}

// Every policy that can train on such a cluster with the same result as the others. "ps" and "reproducible"
// send messages between all pairs, so that with many ranks they are simulated only on request. "ps" cannot
// have a background thread.
std::vector<std::string> fitting(const sim::Cluster& cluster, bool background) {
  if (cluster.ranks() == 1) return {"none"};
  std::vector<std::string> names{"ring", "halving-doubling", "tree", "auto", "sharded", "native", "nccl"};
  if (cluster.node_count() == 1) names.emplace_back("direct");
  if (cluster.node_count() > 1 && cluster.ranks() > cluster.node_count()) names.emplace_back("hierarchical");
  if (cluster.ranks() <= 128) names.emplace_back("reproducible");
  if (cluster.ranks() <= 128 && !background) names.emplace_back("ps");
  return names;
}

// Throws ConfigError for an option that none of the policies has, because it would change nothing.
void expect_used(const CLI::App& app, const Options& o, const std::vector<std::string>& comms) {
  const auto expect = [&](std::string_view option, bool used, std::string_view users) {
    if (app.count(std::string(option)) > 0 && !used)
      fail<ConfigError>(option, " is for ", users, ", which is not among what is predicted");
  };
  const auto there = [&](std::string_view prefix) {
    return std::any_of(comms.begin(), comms.end(),
                       [&](const std::string& comm) { return comm.starts_with(prefix); });
  };
  expect("--servers", there("ps"), "--comm ps, ps-async and ps-stale");
  expect("--servers-beside", there("ps"), "--comm ps, ps-async and ps-stale");
  expect("--staleness", there("ps-stale"), "--comm ps-stale");
  expect("--codec-fraction", o.exchange.codec == "topk", "--codec topk");
  expect("--codec-rank", o.exchange.codec == "powersgd", "--codec powersgd");
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

void print(const Options& o, const sim::Setting& setting, const std::vector<Prediction>& ranked,
           std::string_view unit) {
  const sim::Cluster& cluster = setting.cluster;
  std::printf("%s, batches of %d on %s of %s: %s\n", name_of(o).c_str(), o.batch,
              counted(cluster.ranks(), "rank").c_str(), counted(cluster.node_count(), "node").c_str(),
              cluster.name.c_str());
  std::printf("alone %.3f ms a step, %s, %.2f MiB\n\n", 1e3 * setting.work.alone(),
              counted(setting.work.buckets.size(), "bucket").c_str(),
              static_cast<double>(setting.work.bytes()) / (1 << 20));
  std::printf("%-18s %12s %12s %14s %12s  %-28s %s\n", "comm", "step ms", "exposed ms",
              concat(unit, "/s").c_str(), "scalability", "binds", "busiest link");
  for (const Prediction& p : ranked) {
    const sim::Outcome& out = p.outcome;
    std::string link = "none";
    if (!out.links.empty())
      link = concat(out.links.front().name, " ", percent(out.links.front().utilization));
    std::printf("%-18s %12.3f %12.3f %14.1f %12.2f  %-28s %s\n", p.comm.c_str(), 1e3 * out.step_seconds,
                1e3 * out.exposed_seconds, out.throughput, out.scalability, out.binds.c_str(), link.c_str());
  }
}

nlohmann::ordered_json json_of(const Prediction& p) {
  const sim::Outcome& out = p.outcome;
  nlohmann::ordered_json object = {{"comm", p.comm},
                                   {"step_seconds", out.step_seconds},
                                   {"exposed_seconds", out.exposed_seconds},
                                   {"throughput", out.throughput},
                                   {"scalability", out.scalability},
                                   {"binds", out.binds},
                                   {"messages", out.messages},
                                   {"bytes", out.bytes}};
  const sim::Critical& c = out.critical;
  object["critical"] = {{"compute", c.compute}, {"waiting", c.waiting},     {"launch", c.launch},
                        {"latency", c.latency}, {"inside", c.inside},       {"nic", c.nic},
                        {"fabric", c.fabric},   {"combining", c.combining}, {"staging", c.staging}};
  object["links"] = nlohmann::ordered_json::array();
  // Only the busiest: thousands of similar links say nothing more.
  for (std::size_t i = 0; i < std::min<std::size_t>(64, out.links.size()); ++i)
    object["links"].push_back({{"name", out.links[i].name},
                               {"kind", out.links[i].kind},
                               {"utilization", out.links[i].utilization},
                               {"bytes", out.links[i].bytes}});
  return object;
}

void run(const CLI::App& app, Options& o) {
  examples::expect_separate_files(
      {{"the cluster", o.cluster}, {"--profile", o.profile}, {"--from-chakra", o.from_chakra}},
      {{"--json", o.json == "-" ? "" : o.json}, {"--trace", o.trace}});
  sim::Setting setting;
  const sim::Cluster described = sim::read_cluster(o.cluster);
  for (const sim::Nodes& some : described.nodes)
    if (o.ranks_per_node > some.ranks) {
      std::cerr << "predict: --ranks-per-node " << o.ranks_per_node << " is more than the "
                << counted(some.ranks, "worker") << " that " << o.cluster << " describes in a node\n";
      break;
    }
  setting.cluster = described.sized(o.nodes, o.ranks_per_node);
  if (o.jitter >= 0) setting.cluster.jitter = o.jitter;
  setting.cluster.check();
  setting.exchange = o.exchange;
  setting.exchange.overlap = !o.no_overlap;
  setting.steps = o.steps;
  setting.seed = o.seed;
  setting.work = work_of(o, setting.cluster);
  std::vector<Prediction> ranked;
  const std::vector<std::string> comms = !o.comms.empty() ? o.comms
                                         : o.exchange.codec != "none"
                                             ? std::vector<std::string>{"ring"}
                                             : fitting(setting.cluster, o.exchange.background);
  expect_used(app, o, comms);
  for (const std::string& comm : comms) {
    setting.exchange.comm = comm;
    ranked.push_back({comm, simulate(setting)});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Prediction& a, const Prediction& b) {
    return a.outcome.throughput > b.outcome.throughput;
  });
  const auto model = std::find_if(bench::models().begin(), bench::models().end(),
                                  [&](const bench::Model& m) { return m.name == o.model; });
  const std::string_view unit = model == bench::models().end() ? "samples" : model->unit;
  if (!o.chakra.empty()) write_chakra(o, setting);
  if (!o.trace.empty()) {
    setting.exchange.comm = ranked.front().comm;
    write_trace(o.trace, simulate(setting, {.shown = 16}));
  }
  if (o.json != "-") print(o, setting, ranked, unit);
  if (o.json.empty()) return;
  nlohmann::ordered_json object = {{"cluster", setting.cluster.name},
                                   {"model", name_of(o)},
                                   {"batch", o.batch},
                                   {"nodes", setting.cluster.node_count()},
                                   {"ranks", setting.cluster.ranks()},
                                   {"buckets", setting.work.buckets.size()},
                                   {"gradient_bytes", setting.work.bytes()},
                                   {"alone_seconds", setting.work.alone()},
                                   {"unit", unit}};
  for (const Prediction& p : ranked) object["predictions"].push_back(json_of(p));
  const std::string text = examples::json_text(object, 1);
  if (o.json == "-")
    std::cout << text;
  else
    write_file(o.json, text);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::string_view(argv[1]) == "calibrate") {
      const int code = bench::calibrate(argc - 1, argv + 1);
      examples::expect_printed();
      return code;
    }
    CLI::App app{"Predicts the time of a training step on a described cluster"};
    app.footer(
        "Without --profile, --samples-per-second or --flops, the compute times are a roofline of the device "
        "in "
        "the cluster file, which is a lower bound.\n\n"
        "predict calibrate FILE: fits a cluster's parameters to measured throughputs");
    Options options;
    add_options(app, options);
    if (const auto code = examples::parse_command_line(app, argc, argv)) return *code;
    run(app, options);
    examples::expect_printed();
  } catch (const std::exception& error) {
    std::cerr << "predict: " << error.what() << '\n';
    return 1;
  }
}
