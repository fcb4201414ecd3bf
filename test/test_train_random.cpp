// NEEDS: host
// TIMEOUT: 300
// Random trainings: models, exchanges, codecs, optimizers and options that nobody chose to go together. Each
// trains as one rank does with the rows of all ranks, and resumes with the same bits after it was killed.
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "sanitized.hpp"
#include "temporary_folder.hpp"
#include "train_support.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/optim/ema.hpp>
#include <convoy/optim/lookahead.hpp>
#include <convoy/optim/registry.hpp>
#include <convoy/train/checkpoint.hpp>
#include <convoy/train/plan_trainer.hpp>
#include <convoy/train/usual.hpp>

using namespace train_test;
using transport::Threads;
namespace fs = std::filesystem;

namespace {

using Any = train::PlanTrainer<optim::Any, comm::Any, exec::Host<f32>>;

/// Dropout, whose random numbers must not depend on how rows are divided among ranks.
struct Dropped {
  static constexpr void define(auto& g) {
    auto x = g.max_pool(g.relu(g.conv2d(g.input("image", image), {.channels = 6, .bias = true})));
    x = g.dropout(g.relu(g.linear(g.flatten(x), {.features = 12})), {.p = 0.3f});
    x = g.linear(x, {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

const Plan& plan_called(std::string_view model) {
  static const DynamicPlan plain([](auto&g) { Plain::define(g); }), dead([](auto&g) { Dead::define(g); }),
      normed([](auto&g) { Normed::define(g); }), dropped([](auto&g) { Dropped::define(g); });
  return model == "plain" ? plain : model == "dead" ? dead : model == "normed" ? normed : dropped;
}

struct Case {
  std::string_view model, policy, rule, around = "nothing";
  int workers = 1, rows = 0, readers = 1;
  bool validates = false;
  comm::Options exchange = {};
  comm::Choice choice = {};
  std::int64_t steps = 0;
  int epochs = 1;
  Any::Config config = {};

  bool serves() const { return policy.starts_with("ps"); }
  int ranks() const { return workers + (serves() && choice.servers_beside ? choice.servers : 0); }
  /// Whether an update waits for the gradients of all workers. Without that, results differ between runs.
  bool synchronous() const { return policy != "ps-async" && policy != "ps-stale"; }
  bool deterministic() const { return synchronous() || workers == 1; }
  /// Whether the sum of all gradients is that of one rank, up to rounding.
  bool exact() const {
    const bool statistics = model == "normed" && !config.sync_batch_norm && workers > 1;
    return deterministic() && choice.codec == "none" && !config.unsharded && !statistics;
  }
  std::string text() const {
    std::string text =
        concat(model, ", ", policy, " with codec ", choice.codec, ", ", around, " around ", rule, ", rows ",
               rows, ", readers ", readers, ", epochs ", epochs, ", steps ", steps);
    const auto add = [&](std::string_view name, const std::string& value, bool) {
      text += concat("\n  ", name, ' ', value);
    };
    fields::for_each_text("exchange", exchange, add);
    fields::for_each_text("choice", choice, add);
    fields::for_each_text("config", config, add);
    return text;
  }
};

/// The options of a rule at a rate at which 30 steps learn something. Epsilons are large, because otherwise
/// rules that divide by the size of a gradient would take full steps along rounding errors.
template <class R>
typename R::Options options_of(float decay) {
  typename R::Options options;
  options.weight_decay = decay;
  if constexpr (std::same_as<R, optim::Lars>) {
    options.trust = 1e-2f;
  } else if constexpr (std::same_as<R, optim::Sgd>) {
    options.lr = 2e-2f;
  } else {
    options.lr = 5e-3f;
    options.epsilon = 1e-2f;
  }
  return options;
}

template <class R>
optim::Any::Options around(std::string_view decorator, const typename R::Options& options) {
  if (decorator == "ema") return typename optim::Ema<R>::Options{.rule = options, .keep = 0.9f};
  if (decorator == "lookahead") return typename optim::Lookahead<R>::Options{.rule = options, .every = 3};
  return options;
}

Case draw(std::uint64_t seed) {
  Philox random(seed, 99);
  const auto below = [&](int n) { return static_cast<int>(random.below(static_cast<std::uint32_t>(n))); };
  const auto odds = [&](int one_in) { return below(one_in) == 0; };
  const auto one_of = [&](std::initializer_list<std::string_view> all) {
    return all.begin()[below(static_cast<int>(all.size()))];
  };
  Case c;
  c.model = one_of({"plain", "dead", "normed", "dropped"});
  c.policy = one_of({"ring", "ring", "ring", "halving-doubling", "tree", "direct", "auto", "sharded",
                     "reproducible", "ps", "ps-async", "ps-stale"});
  c.workers = 1 + below(5);
  c.rule = c.synchronous() ? one_of({"sgd", "adam", "adamw", "lars", "lamb", "muon"})
                           : one_of({"sgd", "adam", "adamw"});
  // Workers cannot decay dead taps at a rate that only servers know.
  if (c.model == "dead" && c.serves() && (c.rule == "lars" || c.rule == "lamb")) c.model = "plain";

  if (c.policy == "ring" && odds(2)) c.choice.codec = one_of({"bf16", "f16", "int8", "topk", "powersgd"});
  if (c.choice.codec == "topk") c.choice.topk.fraction = 0.1;
  if (c.serves()) {
    c.choice.servers = 1 + below(c.workers);
    c.choice.servers_beside = odds(2);
  }
  if (c.policy == "ps-stale") c.choice.staleness = below(3);
  c.choice.background = !c.serves() && odds(4);
  if (odds(3)) c.exchange.segment_bytes = static_cast<std::size_t>(64 + 4 * below(500));
  if (odds(3)) c.exchange.window = 1 + below(4);

  Any::Config& config = c.config;
  config.batch = 1 + below(7);
  config.accumulate = 1 + below(3);
  config.unsharded = odds(6);
  if (!config.unsharded && odds(4))
    for (int i = 0; i < c.workers; ++i) c.choice.weights.push_back(1 + below(3));
  config.overlap = !odds(4);
  config.sync_batch_norm = c.model == "normed" && c.synchronous() && c.choice.weights.empty() && odds(2);
  if (odds(2)) config.buckets = graph::BucketOptions{.first = 1 + below(400), .others = 1 + below(2000)};
  if (c.synchronous() && odds(3)) config.guard.max_norm = 0.3f;
  if (c.synchronous() && odds(4)) config.guard.measure = true;
  if (odds(2)) config.schedule.warmup = below(5);
  if (odds(3)) config.schedule.decay = optim::Decay::cosine;
  config.schedule.total = 30;
  config.decay_all = odds(4);
  if (odds(3)) config.groups.push_back({.match = "*bias", .lr_scale = 0.5f});
  if (odds(4)) config.groups.push_back({.match = "*0.weight", .lr_scale = 2, .weight_decay = 0.1f});
  // Together the two groups before it may leave this one empty, which is refused.
  if (odds(6) && config.groups.size() < 2) config.groups.push_back({.match = "linear*", .frozen = true});
  config.exec.threads = 1 + below(2);
  config.seed = seed;

  const float decay = odds(2) ? 0.05f : 0;
  if (c.rule == "sgd" || c.rule == "adam" || c.rule == "adamw")
    c.around =
        c.synchronous() ? one_of({"nothing", "nothing", "ema", "lookahead"}) : one_of({"nothing", "ema"});
  if (c.rule == "sgd") config.optimizer = around<optim::Sgd>(c.around, options_of<optim::Sgd>(decay));
  if (c.rule == "adam") config.optimizer = around<optim::Adam>(c.around, options_of<optim::Adam>(decay));
  if (c.rule == "adamw") config.optimizer = around<optim::AdamW>(c.around, options_of<optim::AdamW>(decay));
  if (c.rule == "lars") config.optimizer = options_of<optim::Lars>(decay);
  if (c.rule == "lamb") config.optimizer = options_of<optim::Lamb>(decay);
  if (c.rule == "muon") config.optimizer = options_of<optim::Muon>(decay);

  // A batch norm over the rows of all ranks needs some on each.
  const int global = config.batch * c.workers;
  c.rows = config.sync_batch_norm ? global * (2 + below(6)) : global + below(60);
  c.epochs = 1 + below(3);
  if (odds(4)) c.steps = 1 + below(6);
  c.readers = 1 + below(3);
  c.validates = odds(3);
  return c;
}

struct Killed {};

/// What is left of a training: rank 0's parameters and statistics, the steps, and the last epoch's loss.
struct Left {
  std::vector<float> values;
  std::int64_t steps = 0;
  double loss = 0;
};

Left fit(const Case& c, const train::CheckpointOptions* checkpoints = nullptr,
         std::int64_t killed_after = -1) {
  Left left;
  const Blobs training(static_cast<std::size_t>(c.rows)), testing(11, 8);
  const Plan& plan = plan_called(c.model);
  Threads::World(c.ranks()).run([&](const Threads& endpoint) {
    Any trainer(plan, c.config, comm::make(c.policy, endpoint, c.exchange, c.choice));
    std::optional<train::Checkpoints<Any>> keeper;
    if (checkpoints != nullptr) keeper.emplace(trainer, *checkpoints);
    std::int64_t steps = 0;
    const auto report = trainer.fit(training, {.epochs = c.epochs,
                                               .steps = c.steps,
                                               .validate = c.validates ? &testing : data::DatasetRef{},
                                               .on_step =
                                                   [&](const train::StepReport&) {
                                                     if (steps++ == killed_after) throw Killed();
                                                     return train::Control::go_on;
                                                   },
                                               .log = nullptr,
                                               .readers = c.readers,
                                               .keeper = keeper ? &*keeper : nullptr});
    if (trainer.rank() != 0) return;
    for (const auto& parameter : trainer.parameters()) {
      const auto values = parameter.values();
      left.values.insert(left.values.end(), values.begin(), values.end());
    }
    const auto statistics = trainer.exec().statistics();
    left.values.insert(left.values.end(), statistics.begin(), statistics.end());
    left.steps = report.steps;
    left.loss = report.epochs.back().loss;
  });
  return left;
}

constexpr std::uint64_t seeds = sanitized ? 12 : 80;

}  // namespace

TEST_CASE("a random training is that of one rank with the rows of all") {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const Case c = draw(seed);
    if (!c.exact()) continue;
    INFO("seed ", seed, ": ", c.text());
    Case alone = c;
    alone.policy = "none";
    alone.config.batch *= c.workers;
    alone.workers = 1;
    alone.exchange = {};
    alone.choice = {};
    const Left expected = fit(alone), found = fit(c);
    CHECK(found.steps == expected.steps);
    CHECK(found.loss == doctest::Approx(expected.loss).epsilon(1e-3));
    // Newton-Schulz iterations, which make all singular values equal, amplify the rounding of small ones.
    CHECK(largest_difference(found.values, expected.values) < (c.rule == "muon" ? 4e-3f : 1e-3f));
    ++compared;
  }
  CHECK(compared > static_cast<int>(seeds) / 4);
}

TEST_CASE("a random training that was killed resumes with the same bits") {
  const TemporaryFolder folder;
  int resumed = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const Case c = draw(seed);
    if (!c.deterministic()) continue;
    INFO("seed ", seed, ": ", c.text());
    const Left whole = fit(c);
    if (whole.steps < 2) continue;
    Philox random(seed, 5);
    const auto killed_after =
        static_cast<std::int64_t>(random.below(static_cast<std::uint32_t>(whole.steps)));
    const train::CheckpointOptions checkpoints{.directory = folder.path / "kept",
                                               .every = static_cast<std::int64_t>(random.below(4)),
                                               .resume = true};
    CAPTURE(killed_after);
    CAPTURE(checkpoints.every);
    CHECK_THROWS_AS(fit(c, &checkpoints, killed_after), Killed);
    const Left left = fit(c, &checkpoints);
    CHECK(left.values == whole.values);
    CHECK(left.loss == whole.loss);
    fs::remove_all(checkpoints.directory);
    ++resumed;
  }
  CHECK(resumed > static_cast<int>(seeds) / 2);
}
