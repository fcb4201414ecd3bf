// SANITIZE: address thread
// ALONE
// TIMEOUT: 300
// Training in memory that the host cannot touch, with work that runs late, over every policy of the host: the
// bits are those of exec::Reference.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "remote_exec.hpp"
#include "sanitized.hpp"
#include "train_support.hpp"
#include <convoy/comm/policy/hierarchical.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/core/clock.hpp>

using namespace train_test;
using remote_test::Remote;
using remote_test::RemoteExec;
using Local = transport::Group<transport::Threads>;

/// Two ranks on each node.
template <>
struct comm::NodeOf<Local, transport::Threads> {
  static Nodes nodes(const transport::Threads& world) {
    std::vector<int> node_of;
    for (int r = 0; r < world.size(); ++r) node_of.push_back(r / 2);
    return Nodes(node_of);
  }
  static Local local(const transport::Threads& world, const Nodes& nodes) {
    return Local(world, nodes.members(nodes.node_of(world.rank())));
  }
};

namespace {

/// Batch statistics, taps that only meet padding, and a bucket for each layer.
struct Mixed {
  static constexpr BucketOptions buckets{.first = 64, .others = 64};
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 4})));
    x = g.conv2d(g.max_pool(x, {.kernel = 8}), {.channels = 6, .kernel = 3});
    x = g.linear(g.flatten(g.relu(x)), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// The results and reports of a training on one rank.
struct Trace {
  std::vector<float> parameters, statistics, predicted;
  std::vector<double> losses, accuracies, norms;
  std::vector<std::int64_t> steps;
  std::vector<double> evaluated;
  friend bool operator==(const Trace&, const Trace&) = default;
};

struct Settings {
  int batch = 6, accumulate = 1, epochs = 2;
  float clip = 0;
  std::int64_t steps = 0;
  bool overlap = true;
};

template <class Trainer>
typename Trainer::Config config_of(const Settings& settings) {
  typename Trainer::Config config;
  config.batch = settings.batch;
  config.accumulate = settings.accumulate;
  config.overlap = settings.overlap;
  config.optimizer.lr = 0.02f;
  config.optimizer.weight_decay = 0.05f;
  config.guard.max_norm = settings.clip;
  return config;
}

template <class Trainer>
Trace trace_of(Trainer& trainer, const Settings& settings) {
  const Blobs training(67), test(19, 8);
  Trace trace;
  const auto report = trainer.fit(training, {.epochs = settings.epochs,
                                             .steps = settings.steps,
                                             .validate = &test,
                                             .on_step =
                                                 [&](const train::StepReport& step) {
                                                   trace.steps.push_back(step.step);
                                                   trace.losses.push_back(step.loss);
                                                   trace.norms.push_back(step.gradient_norm.value_or(-1));
                                                   trace.accuracies.push_back(step.accuracy.value());
                                                   return train::Control::go_on;
                                                 },
                                             .log = nullptr});
  if (trainer.comm().role() == comm::Role::server) return trace;
  for (const train::EpochReport& epoch : report.epochs) {
    trace.evaluated.push_back(epoch.loss);
    trace.evaluated.push_back(epoch.test.loss);
    trace.evaluated.push_back(epoch.test.accuracy.value());
  }
  trace.predicted = trainer.predict(test).values;
  for (const auto& parameter : trainer.parameters()) {
    const std::vector<float> values = parameter.values();
    trace.parameters.insert(trace.parameters.end(), values.begin(), values.end());
  }
  auto& exec = trainer.exec();
  trace.statistics.resize(exec.statistics().size());
  exec.space().read(trace.statistics.data(), exec.statistics().data(), exec.statistics().size_bytes());
  if constexpr (requires { exec.overwritten(); }) {
    CHECK(exec.overwritten() == 0);
    CHECK(exec.untold() == 0);
  }
  return trace;
}

using Policy = std::function<comm::Any(const transport::Threads&)>;

template <class Model>
using Near = Trainer<Model, optim::Adam, comm::Any, exec::Reference<f32>>;
template <class Model>
using Far = Trainer<Model, optim::Adam, comm::Staged<comm::Any, Remote>, RemoteExec>;

template <class Trainer>
std::vector<Trace> traces(int ranks, const Policy& policy, const Settings& settings) {
  std::vector<Trace> all(static_cast<std::size_t>(ranks));
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    Trainer trainer(config_of<Trainer>(settings), policy(endpoint));
    all[static_cast<std::size_t>(endpoint.rank())] = trace_of(trainer, settings);
  });
  return all;
}

void compare(std::string_view name, int ranks, const Policy& policy, const Settings& settings) {
  CAPTURE(name);
  CAPTURE(ranks);
  CAPTURE(settings.accumulate);
  CAPTURE(settings.clip);
  const auto near = traces<Near<Mixed>>(ranks, policy, settings);
  const auto far = traces<Far<Mixed>>(ranks, policy, settings);
  for (std::size_t r = 0; r < near.size(); ++r) {
    CAPTURE(r);
    CHECK(near[r].parameters == far[r].parameters);
    CHECK(near[r].statistics == far[r].statistics);
    CHECK(near[r].losses == far[r].losses);
    CHECK(near[r] == far[r]);
  }
  CHECK(!near[0].parameters.empty());
}

void compare(std::string_view name, std::initializer_list<int> worlds, const Policy& policy) {
  for (const int ranks : worlds) {
    if (sanitized && ranks != std::max(worlds)) continue;
    compare(name, ranks, policy, {});
    compare(name, ranks, policy, {.batch = 3, .accumulate = 2, .clip = 0.5f});
  }
}

template <class C>
Policy of() {
  return [](const transport::Threads& endpoint) { return comm::Any(C(endpoint)); };
}
Policy named(std::string name, comm::Choice choice = {}) {
  return [=](const transport::Threads& endpoint) { return comm::make(name, endpoint, {}, choice); };
}

using Ring = comm::Ring<transport::Threads>;
using Tree = comm::Tree<transport::Threads>;

}  // namespace

TEST_CASE("one rank without an exchange trains to the reference's bits") {
  using NearAlone = Trainer<Mixed, optim::Adam, comm::None, exec::Reference<f32>>;
  using FarAlone = Trainer<Mixed, optim::Adam, comm::None, RemoteExec>;
  for (const Settings& settings :
       {Settings{}, Settings{.accumulate = 3, .clip = 0.1f}, Settings{.steps = 7, .overlap = false}}) {
    NearAlone near(config_of<NearAlone>(settings));
    FarAlone far(config_of<FarAlone>(settings));
    const Trace expected = trace_of(near, settings);
    const Trace seen = trace_of(far, settings);
    CHECK(expected == seen);
    for (std::size_t i = 0; i < seen.steps.size(); ++i) CHECK(seen.steps[i] == static_cast<std::int64_t>(i));
    if (settings.steps > 0) CHECK(seen.steps.size() == 7);
  }
}

TEST_CASE("all-reduces of the host under a remote exec") {
  compare("ring", {1, 2, 3}, of<Ring>());
  compare("halving-doubling", {3}, of<comm::HalvingDoubling<transport::Threads>>());
  compare("tree", {3}, of<Tree>());
  compare("direct", {2, 3}, of<comm::Direct<transport::Threads>>());
  compare("auto", {2}, of<comm::Auto<transport::Threads>>());
  compare("hierarchical", {3}, of<comm::Hierarchical<Ring, Tree, schedule::Every<2>>>());
  compare("hierarchical over two transports", {3}, of<comm::Hierarchical<comm::Ring<Local>, Tree>>());
  compare("reproducible", {3}, of<comm::Reproducible<Ring>>());
  compare("background", {2, 3}, named("ring", {.background = true}));
}

TEST_CASE("updates divided among ranks under a remote exec") {
  compare("sharded", {1, 2, 3}, of<comm::Sharded<Ring>>());
  compare("sharded reproducible", {3}, of<comm::Sharded<comm::Reproducible<Ring>>>());
  compare("sharded in the background", {2}, [](const transport::Threads& endpoint) {
    return comm::Any(comm::Background<comm::Sharded<Ring>>(endpoint));
  });
}

TEST_CASE("codecs under a remote exec") {
  for (const char* codec : {"bf16", "f16", "int8"}) compare(codec, {2, 3}, named("ring", {.codec = codec}));
  compare("topk", {2, 3}, named("ring", {.codec = "topk", .topk = {.fraction = 0.1, .warm_up_steps = 2}}));
  compare("powersgd", {2, 3},
          named("ring", {.codec = "powersgd", .powersgd = {.rank = 2, .warm_up_steps = 2}}));
}

TEST_CASE("parameter servers whose optimizer is in the remote space") {
  compare("one server", {1, 2, 3}, named("ps"));
  compare("two servers", {2, 3}, named("ps", {.servers = 2}));
  compare("a server beside", {2, 3}, named("ps", {.servers_beside = true}));
  compare("two servers beside", {3}, named("ps", {.servers = 2, .servers_beside = true}));
  // One worker alone is never stale.
  compare("asynchronous", 1, named("ps-async"), {});
  compare("stale", 1, named("ps-stale", {.staleness = 1}), {});
}

TEST_CASE("unequal shares under a remote exec") {
  compare("weighted", {2, 3}, [](const transport::Threads& endpoint) {
    std::vector<double> weights = {2, 1, 1};
    weights.resize(static_cast<std::size_t>(endpoint.size()));
    return comm::make("ring", endpoint, {}, {.background = true, .weights = weights});
  });
}

TEST_CASE("asynchronous servers leave all workers with the same parameters, which have learned") {
  const Blobs training(200);
  for (const std::string policy : {"ps-async", "ps-stale"}) {
    CAPTURE(policy);
    std::vector<std::vector<float>> all(3);
    transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
      Far<Plain> trainer{{.batch = 10, .optimizer = {.lr = 0.005f}},
                         comm::make(policy, endpoint, {}, {.servers = 2})};
      const double before = trainer.evaluate(training).loss;
      trainer.fit(training, {.epochs = 4, .log = nullptr});
      CHECK(trainer.evaluate(training).loss < before / 2);
      CHECK(trainer.exec().untold() == 0);
      all[static_cast<std::size_t>(endpoint.rank())] = all_parameters(trainer);
    });
    CHECK(all[0] == all[1]);
    CHECK(all[0] == all[2]);
  }
}

TEST_CASE("a skipped step changes nothing in a user's own loop") {
  const auto run = [&]<class T>(int ranks, const auto& policy) {
    std::vector<Trace> all(static_cast<std::size_t>(ranks));
    transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
      T trainer{{.batch = 4, .optimizer = {.lr = 0.01f}, .guard = {.max_norm = 1, .skip_not_finite = true}},
                policy(endpoint)};
      const Blobs blobs(8);
      const std::array<data::Field, 2> fields = {blobs.fields()[0], blobs.fields()[1]};
      data::Samples batch(fields, 4);
      Trace& trace = all[static_cast<std::size_t>(endpoint.rank())];
      const auto steps = [&] {
        for (int step = 0; step < 4; ++step) {
          for (std::size_t row = 0; row < 4; ++row)
            blobs.read((row + static_cast<std::size_t>(step)) % 8, batch.row(row));
          const std::array<const void*, 2> columns = {batch.columns()[0], batch.columns()[1]};
          const exec::BatchView view{columns, 4};
          trainer.forward(view);
          trainer.backward();
          trainer.forward(view);
          trainer.backward();
          const auto first = trainer.parameters()[0];
          if (step == 2 && trainer.rank() == ranks - 1) {
            auto gradient = first.gradient();
            gradient[0] = std::numeric_limits<float>::infinity();
            first.write_gradient(gradient);
          }
          const auto before = all_parameters(trainer);
          trace.losses.push_back(trainer.step().loss);
          trace.parameters = all_parameters(trainer);
          CHECK((before == trace.parameters) == (step == 2));
        }
      };
      trainer.with_servers(steps);
    });
    return all;
  };
  for (const int ranks : {1, 3}) {
    for (const Policy& policy :
         {of<Ring>(), of<comm::Sharded<Ring>>(), named("ps"), named("ps", {.servers = ranks}),
          named("ring", {.codec = "topk", .topk = {.warm_up_steps = 0}})})
      CHECK(run.template operator()<Near<Bucketed>>(ranks, policy) ==
            run.template operator()<Far<Bucketed>>(ranks, policy));
    // A policy that is chosen by type takes its own arguments.
    using ByType = Trainer<Bucketed, optim::Adam, comm::Staged<Ring, Remote>, RemoteExec>;
    const auto itself = [](const transport::Threads& endpoint) { return endpoint; };
    CHECK(run.template operator()<ByType>(ranks, itself) ==
          run.template operator()<Near<Bucketed>>(ranks, of<Ring>()));
  }
}

TEST_CASE("a callback ends a fit later by the delay of results, at the same step on all ranks") {
  const Blobs training(200);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Far<Plain> trainer{{.batch = 10}, comm::Any(Ring(endpoint))};
    CHECK(trainer.fit(training, {.epochs = 9, .steps = 13, .log = nullptr}).steps == 13);
    std::vector<std::int64_t> told;
    const auto stopped_at_4 = [&](std::int64_t steps) {
      told.clear();
      return trainer.fit(training, {.epochs = 9,
                                    .steps = steps,
                                    .on_step =
                                        [&](const train::StepReport& report) {
                                          told.push_back(report.step);
                                          return trainer.rank() == 1 && report.step == 4
                                                     ? train::Control::stop
                                                     : train::Control::go_on;
                                        },
                                    .log = nullptr});
    };
    const auto called = stopped_at_4(0);
    CHECK(called.stopped == train::StopReason::callback);
    // Step 4 is reported in step 6. Rank 1's answer is exchanged in step 7 and known in step 9.
    CHECK(called.steps == 10);
    REQUIRE(told.size() == 10);
    for (std::size_t i = 0; i < told.size(); ++i) CHECK(told[i] == static_cast<std::int64_t>(i));
    // The answer of rank 1 comes once the fit has made its steps.
    const auto reached = stopped_at_4(9);
    CHECK(reached.stopped == train::StopReason::steps_reached);
    CHECK(reached.steps == 9);
    CHECK(told.size() == 9);
  });
}

TEST_CASE("what is kept within an epoch counts all its rows so far, also if results are late") {
  const Blobs training(200);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Far<Plain> trainer{{.batch = 10}, comm::Any(Ring(endpoint))};
    Positions positions(1);
    trainer.fit(training, {.epochs = 1, .log = nullptr, .keeper = &positions});
    REQUIRE(positions.kept.size() == 10);
    double before = 0;
    for (const train::FitPosition& at : positions.kept) {
      CHECK(at.rows == 20 * at.steps);
      CHECK(at.labels == at.rows);
      CHECK(at.next_row == at.rows);
      CHECK(at.loss > before);
      before = at.loss;
    }
  });
}

TEST_CASE("early stop and a loss that is not a number reach every rank") {
  const Blobs training(200), test(50, 8), poisoned(80, 7, first_sample(80, 10, 2, 1, 1));
  std::atomic<int> told = 0;
  std::array<std::string, 2> sentences;
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Far<Plain> trainer{{.batch = 10}, comm::Any(Ring(endpoint))};
    const auto early = trainer.fit(
        training, {.epochs = 30, .validate = &test, .early_stop = {.target_accuracy = 0.4}, .log = nullptr});
    CHECK(early.stopped == train::StopReason::early_stop);
    Far<Plain> other{{.batch = 10}, comm::Any(Ring(endpoint))};
    try {
      other.fit(poisoned, {.epochs = 1, .log = nullptr});
    } catch (const ExecError& error) {
      sentences[static_cast<std::size_t>(endpoint.rank())] = error.what();
      ++told;
    }
  });
  CHECK(told == 2);
  CHECK(sentences[0] == sentences[1]);
  CHECK(sentences[0].starts_with("rank 1: the loss of step 1 is not finite"));
}

TEST_CASE("a staged exchange refuses invalid calls, and waits no longer than its deadline") {
  transport::Threads::World(1).run([&](const transport::Threads& endpoint) {
    std::atomic<bool> open = false, refused = false;  // outlive the space, whose thread waits for one
    Remote space;
    memory::Array<float, Remote> gradients(space, 64), parameters(space, 64);
    const std::array<Range, 2> buckets = {Range{0, 32}, Range{32, 64}};
    comm::Staged<Ring, Remote> staged({.deadline = Seconds(0.05)}, endpoint);
    comm::Layout layout{{gradients.data(), 64}, {parameters.data(), 64}, buckets};
    CHECK_THROWS_AS(staged.open({}, layout), ConfigError);
    layout.space = &space;
    staged.open({}, layout);
    staged.begin(1, space.mark());
    CHECK_THROWS_WITH(staged.begin(1), "bucket 1 was begun twice in one step");
    CHECK_THROWS_WITH(staged.begin(2), "there is no bucket 2; 2 were opened");
    int updates = 0;
    staged.finish([&](Range, float) { ++updates; });
    CHECK(updates == 2);

    space.later([&](memory::Host&) { open.wait(false); });
    staged.begin(0, space.mark());
    std::thread later([&] {
      const Deadline most(Seconds(20));
      while (!refused && !most.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      open = true;
      open.notify_all();
    });
    try {
      staged.finish([&](Range, float) { ++updates; });
      FAIL("the bucket was exchanged before it was final");
    } catch (const CommError& error) {
      CHECK(!open);  // and not only once the bucket was final after all
      CHECK(error.culprit == 0);
      CHECK(std::string(error.what()).find("were not final within 0.05 s") != std::string::npos);
    }
    refused = true;
    later.join();
    CHECK(updates == 2);
  });
}

namespace {

/// Sleeps, forward and backward.
struct Slow {
  static constexpr auto nap = std::chrono::milliseconds(4);
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T> x, View<T> y) {
    std::this_thread::sleep_for(nap);
    std::copy_n(x.data, x.size(), y.data);
  }
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T> dy, View<T> dx) {
    std::this_thread::sleep_for(nap);
    std::copy_n(dy.data, dy.size(), dx.data);
  }
};

struct SlowNet {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.flatten(g.input("image", image)), {.features = classes});
    g.loss(g.cross_entropy(g.custom(Slow{}, x), g.label("label", classes)));
  }
};

using OverThreads = comm::Staged<comm::Ring<transport::Threads>, Remote>;

}  // namespace

TEST_CASE("a timeline shows when the stream did the work, not when the host enqueued it") {
  const Blobs training(48);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    train::Timeline timeline;
    Trainer<SlowNet, optim::Sgd, OverThreads, RemoteExec> trainer{
        {.batch = 6, .guard = {.max_norm = 1}, .timeline = &timeline}, endpoint};
    const double nap = Seconds(Slow::nap).count();
    int steps = 0;
    const auto report = trainer.fit(training, {.epochs = 1,
                                               .on_step =
                                                   [&](const train::StepReport& step) {
                                                     ++steps;
                                                     CHECK(step.backward_seconds >= nap);
                                                     CHECK(step.update_seconds > 0);
                                                     CHECK(step.exposed_comm_seconds >= 0);
                                                     return train::Control::go_on;
                                                   },
                                               .log = nullptr});
    CHECK(steps == 4);
    CHECK(report.backward_ms >= 1e3 * nap);
    int forward = 0, backward = 0, norm = 0, update = 0;
    double free_from = 0;  // the stream does one thing at a time
    for (const train::TimelineEvent& event : timeline.events()) {
      const std::string_view name(event.name.data());
      forward += name == "forward";
      backward += name == "backward";
      norm += name == "norm";
      update += name == "update";
      if (event.track == train::Track::exchange) continue;
      CHECK(event.begin >= free_from);
      free_from = event.end;
      if (name == "forward" || name == "backward") CHECK(event.end - event.begin >= nap);
    }
    const int updates = 4 * static_cast<int>(trainer.plan.buckets.size());
    CHECK(forward == 4);
    CHECK(backward == 4);
    CHECK(norm == updates);
    CHECK(update == updates);
  });
}

TEST_CASE("without a timeline, a stream whose work runs late is not timed") {
  const Blobs training(48);
  Trainer<SlowNet, optim::Sgd, comm::None, RemoteExec> trainer{{.batch = 6}};
  const auto report = trainer.fit(training, {.epochs = 1,
                                             .on_step =
                                                 [&](const train::StepReport& step) {
                                                   CHECK(!step.backward_seconds);
                                                   CHECK(!step.update_seconds);
                                                   CHECK(!step.exposed_comm_seconds);
                                                   return train::Control::go_on;
                                                 },
                                             .log = nullptr});
  CHECK(!report.backward_ms);
  CHECK(!report.exposed_comm_ms);
}
