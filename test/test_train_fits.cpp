// SANITIZE: address
// Around a fit: fits that follow one another, a learning rate that the program changes, steps whose loss is
// not finite, options that differ between ranks, and predictions without labels.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"
#include "train_support.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/data/synthetic.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/train/checkpoint.hpp>

using namespace convoy;
using namespace train_test;
using transport::Threads;

namespace {

/// Draws a mask in each pass.
struct Dropped {
  static constexpr void define(auto& g) {
    auto x = g.dropout(g.flatten(g.input("image", image)), {.p = 0.5f});
    x = g.linear(x, {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// A kernel whose outer taps see only padding, and a mean, which is not finite if a pixel is not.
struct DeadMean {
  static constexpr void define(auto& g) {
    auto x = g.avg_pool(g.input("image", image), {.kernel = 8});
    x = g.conv2d(x, {.channels = 3, .kernel = 3});
    x = g.linear(g.flatten(x), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

template <class Model>
using Alone = Trainer<Model, optim::Sgd, comm::None, exec::Reference<f32>>;

constexpr int batch = 10;
const Blobs training(50), testing(20, 8);

train::FitOptions epochs(int n) { return {.epochs = n, .log = nullptr}; }

/// Blobs without labels.
class Unlabeled {
 public:
  std::size_t size() const { return testing.size(); }
  std::span<const data::Field> fields() const { return testing.fields().first(1); }
  void read(std::size_t index, data::Sample out) const {
    data::Samples whole(testing.fields(), 1);
    testing.read(index, whole.row(0));
    const auto to = out.as<float>(0);
    std::memcpy(to.data(), whole.columns()[0], to.size_bytes());
  }
};

/// Has one output that depends on a sequence and its length, and another that depends on neither.
void two_towers(auto& g) {
  const auto right = g.input("right", {3, 2});
  const auto length = g.input("length", {}, {.dtype = DType::i32});
  const auto a = g.linear(g.input("left", {4}), {.features = 2, .name = "left_fc"});
  const auto b = g.linear(g.mean(right, length), {.features = 2, .name = "right_fc"});
  g.output("left", a);
  g.output("right", b);
  g.loss(g.mse_loss(a, b));
}

}  // namespace

TEST_CASE("fits that follow one another are one fit of all their epochs") {
  const auto trained = [](std::initializer_list<int> fits) {
    Alone<Dropped> trainer({.batch = batch, .optimizer = {.lr = 0.05f}});
    for (const int n : fits) trainer.fit(training, epochs(n));
    return all_parameters(trainer);
  };
  const auto whole = trained({3});
  CHECK(trained({1, 2}) == whole);
  CHECK(trained({1, 1, 1}) == whole);
  CHECK(trained({2}) != whole);
}

TEST_CASE("a fit that follows another one resumes with the orders and draws that it would have had") {
  const TemporaryFolder folder;
  const auto fit_second = [&](Alone<Dropped>& trainer, bool keeps, std::int64_t steps) {
    train::FitOptions options = epochs(2);
    options.steps = steps;
    if (!keeps) return trainer.fit(training, options).steps;
    train::Checkpoints checkpoints(trainer, {.directory = folder.path, .every = 1, .resume = true});
    options.keeper = &checkpoints;
    return trainer.fit(training, options).steps;
  };
  const typename Alone<Dropped>::Config config{.batch = batch, .optimizer = {.lr = 0.05f}};
  Alone<Dropped> whole(config), first(config), resumed(config);
  for (auto* trainer : {&whole, &first}) trainer->fit(training, epochs(1));
  fit_second(whole, false, 0);
  fit_second(first, true, 7);
  CHECK(fit_second(resumed, true, 0) == 3);
  CHECK(all_parameters(resumed) == all_parameters(whole));
  for (auto* trainer : {&whole, &resumed}) trainer->fit(training, epochs(1));
  CHECK(all_parameters(resumed) == all_parameters(whole));
}

TEST_CASE("a program changes the learning rate while it trains, and checkpoints keep the factor") {
  const TemporaryFolder folder;
  const typename Alone<Plain>::Config config{.batch = batch, .optimizer = {.lr = 0.5f}};
  Alone<Plain> trainer(config), resumed(config);
  train::Checkpoints checkpoints(trainer, {.directory = folder.path});
  std::vector<float> rates;
  train::FitOptions options = epochs(1);
  options.keeper = &checkpoints;
  options.on_step = [&](const train::StepReport& report) {
    rates.push_back(report.lr);
    trainer.set_lr_factor(trainer.lr_factor() / 2);
    return train::Control::go_on;
  };
  trainer.fit(training, options);
  CHECK(rates == std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f});
  train::Checkpoints(resumed, {.directory = folder.path}).restore();
  CHECK(resumed.lr_factor() == trainer.lr_factor());
  resumed.set_lr_factor(0);
  const auto before = all_parameters(resumed);
  resumed.fit(training, epochs(1));
  CHECK(all_parameters(resumed) == before);
}

TEST_CASE("a factor on the learning rate that cannot be used is refused on all ranks") {
  std::array<std::string, 2> said;
  Threads::World(2).run([&](const Threads& endpoint) {
    ThreadTrainer<Plain> trainer({.batch = batch}, endpoint);
    const auto refusal = [&](double factor) {
      try {
        trainer.set_lr_factor(factor);
      } catch (const ConfigError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    const std::string differs = refusal(endpoint.rank() + 1.0), wrong = refusal(-1),
                      infinite = refusal(std::numeric_limits<double>::infinity());
    said[static_cast<std::size_t>(endpoint.rank())] = differs + '\n' + wrong + '\n' + infinite;
    if (trainer.lr_factor() != 1) fail("the factor changed");
  });
  for (int r = 0; r < 2; ++r)
    CHECK(said[static_cast<std::size_t>(r)] ==
          concat("trainer: the ranks' factors on the learning rate differ; rank ", r, " has ", r + 1,
                 "\ntrainer: the factor on the learning rate must be finite and at least 0, not -1\n"
                 "trainer: the factor on the learning rate must be finite and at least 0, not inf"));
  Threads::World(1).run([](const Threads& endpoint) {
    Trainer<Plain, optim::Sgd, comm::ParameterServer<Threads>, exec::Reference<f32>> served({}, endpoint);
    CHECK_THROWS_WITH_AS(served.set_lr_factor(1),
                         "trainer: a factor on the learning rate does not reach the servers, which make the "
                         "updates by Config::schedule",
                         ConfigError);
  });
}

TEST_CASE("skip_not_finite skips a step whose loss is not finite, and the epoch goes on without its rows") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const Blobs poisoned(50, 7, 3);
    Threads::World(ranks).run([&](const Threads& endpoint) {
      ThreadTrainer<Plain> trainer(
          {.batch = batch / ranks, .optimizer = {.lr = 0.05f}, .guard = {.skip_not_finite = true}}, endpoint);
      int skipped = 0;
      train::FitOptions options = epochs(2);
      options.on_step = [&](const train::StepReport& report) {
        skipped += std::isfinite(report.loss) ? 0 : 1;
        return train::Control::go_on;
      };
      const auto report = trainer.fit(poisoned, options);
      if (skipped != 2) fail("skipped ", skipped, " steps");
      for (const auto& epoch : report.epochs)
        if (!std::isfinite(epoch.loss) || !epoch.accuracy) fail("the loss of an epoch is ", epoch.loss);
      for (const float value : all_parameters(trainer))
        if (!std::isfinite(value)) fail("a parameter is not finite");
    });
  }
}

TEST_CASE("a skipped step leaves the running statistics finite, and later steps move them") {
  Alone<Normed> trainer({.batch = 5, .optimizer = {.lr = 0.05f}, .guard = {.skip_not_finite = true}});
  trainer.fit(Blobs(20, 7, 3), epochs(1));
  const auto statistics = [&] {
    const auto there = trainer.exec().statistics();
    return std::vector<float>(there.begin(), there.end());
  };
  const std::vector<float> after = statistics();
  for (const float value : after) CHECK(std::isfinite(value));
  trainer.fit(Blobs(20), epochs(1));
  CHECK(statistics() != after);
  CHECK(std::isfinite(trainer.evaluate(Blobs(20)).loss));
}

TEST_CASE("a fit that stops within an epoch need not have a finite loss in it yet") {
  const Blobs poisoned(20, 7, 3);
  int skipped_first = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Alone<Plain> trainer(
        {.batch = 10, .optimizer = {.lr = 0.05f}, .guard = {.skip_not_finite = true}, .seed = seed});
    train::FitOptions options = epochs(2);
    options.steps = 3;
    const auto report = trainer.fit(poisoned, options);
    CHECK(report.stopped == train::StopReason::steps_reached);
    REQUIRE(report.epochs.size() == 2);
    skipped_first += std::isfinite(report.epochs.back().loss) ? 0 : 1;
  }
  CHECK(skipped_first > 0);
  CHECK(skipped_first < 8);
}

TEST_CASE_TEMPLATE("a skipped step decays dead taps on no rank, also if the rank's updates are a server's",
                   Comm, comm::ParameterServer<Threads>,
                   comm::ParameterServer<Threads, comm::Sync, 1, comm::Placement::beside>) {
  static_assert(plan_of<DeadMean>.dead_parameters() == 24);
  const Blobs poisoned(50, 7, 3);
  const auto trained = [&]<class C>(int ranks, int workers) {
    std::vector<std::vector<float>> all(static_cast<std::size_t>(workers));
    Threads::World(ranks).run([&](const Threads& endpoint) {
      Trainer<DeadMean, optim::Adam, C, exec::Reference<f32>> trainer(
          {.batch = batch,
           .optimizer = {.lr = 0.05f, .weight_decay = 0.1f},
           .guard = {.skip_not_finite = true}},
          endpoint);
      trainer.fit(poisoned, epochs(2));
      if (endpoint.rank() < workers) all[static_cast<std::size_t>(endpoint.rank())] = all_parameters(trainer);
    });
    CHECK(all[0] == all[1]);
    return all[0];
  };
  const int servers = std::is_same_v<Comm, comm::ParameterServer<Threads>> ? 0 : 1;
  CHECK(trained.template operator()<Comm>(2 + servers, 2) ==
        trained.template operator()<comm::Ring<Threads>>(2, 2));
}

TEST_CASE("a fit in which no loss is finite ends, even if such steps are skipped") {
  Alone<Plain> trainer({.batch = batch, .optimizer = {.lr = 0.05f}, .guard = {.skip_not_finite = true}});
  const Blobs poisoned(batch, 7, 0);
  CHECK_THROWS_WITH_AS(trainer.fit(poisoned, epochs(3)),
                       "the loss of every step of epoch 0 is not finite, so training stops", ExecError);
}

TEST_CASE("ranks whose fits would differ say so before the first step, and in what") {
  std::array<std::string, 2> said;
  const auto differ = [&](std::string_view field, auto&& change) {
    CAPTURE(field);
    said = {};
    Threads::World(2).run([&](const Threads& endpoint) {
      ThreadTrainer<Plain> trainer({.batch = batch}, endpoint, comm::Options{.deadline = Seconds(20)});
      train::FitOptions options = epochs(1);
      options.validate = data::DatasetRef(&testing);
      if (endpoint.rank() == 1) change(options);
      try {
        trainer.fit(training, options);
      } catch (const ConfigError& error) {
        said[static_cast<std::size_t>(endpoint.rank())] = error.what();
      }
      options = epochs(1);
      if (trainer.fit(training, options).steps != 3) fail("the next fit made other steps");
    });
    CHECK(said[0] == said[1]);
    return said[0];
  };
  using Options = train::FitOptions;
  CHECK(differ("epochs", [](Options& o) { o.epochs = 2; }) ==
        "rank 1 differs from rank 0 in fit.epochs: 2 instead of 1");
  CHECK(differ("steps", [](Options& o) { o.steps = 7; }) ==
        "rank 1 differs from rank 0 in fit.steps: 7 instead of 0");
  CHECK(differ("patience", [](Options& o) { o.early_stop.patience = 2; }) ==
        "rank 1 differs from rank 0 in fit.early_stop.patience: 2 instead of 0");
  CHECK(differ("min_delta", [](Options& o) { o.early_stop.min_delta = 0.5; }) ==
        "rank 1 differs from rank 0 in fit.early_stop.min_delta: 0.5 instead of 0");
  CHECK(differ("target_accuracy", [](Options& o) { o.early_stop.target_accuracy = 0.5; }) ==
        "rank 1 differs from rank 0 in fit.early_stop.target_accuracy: 0.5 instead of none");
}

TEST_CASE("a fit that one rank refuses is refused by all, and the next one trains") {
  std::array<std::string, 3> said;
  Threads::World(3).run([&](const Threads& endpoint) {
    ThreadTrainer<Plain> trainer({.batch = batch}, endpoint, comm::Options{.deadline = Seconds(20)});
    train::FitOptions options = epochs(1);
    if (endpoint.rank() == 1) options.readers = 0;
    try {
      trainer.fit(training, options);
    } catch (const ConfigError& error) {
      said[static_cast<std::size_t>(endpoint.rank())] = error.what();
    }
    if (trainer.fit(training, epochs(1)).steps != 2) fail("the next fit made other steps");
  });
  CHECK(said[1] == "data: a loader needs at least 1 reader thread, not 0");
  for (const int r : {0, 2})
    CHECK(said[static_cast<std::size_t>(r)] == "fit is refused by rank 1: " + said[1]);
}

TEST_CASE("servers beside the workers learn that the workers refuse a fit, and serve the next one") {
  std::array<std::string, 3> said;
  Threads::World(3).run([&](const Threads& endpoint) {
    using Beside = comm::ParameterServer<Threads, comm::Sync, 1, comm::Placement::beside>;
    Trainer<Plain, optim::Sgd, Beside, exec::Reference<f32>> trainer({.batch = batch}, endpoint,
                                                                     comm::Options{.deadline = Seconds(20)});
    const auto before = all_parameters(trainer);
    try {
      trainer.fit(Unlabeled{}, epochs(1));
    } catch (const ConfigError& error) {
      said[static_cast<std::size_t>(endpoint.rank())] = error.what();
    }
    const auto report = trainer.fit(training, epochs(1));
    if (endpoint.rank() == 2) return;
    if (report.steps != 3) fail("the next fit made other steps");
    if (all_parameters(trainer) == before) fail("the next fit did not train");
  });
  const std::string lacks =
      "the model's input 'label' has no field of that name in the data set, which has 'image'";
  CHECK(said == std::array{lacks, lacks, "fit is refused by rank 0: " + lacks});
}

TEST_CASE("a prediction needs no labels") {
  Alone<Plain> trainer({.batch = batch});
  const auto with = trainer.predict(testing), without = trainer.predict(Unlabeled{});
  CHECK(with.values == without.values);
  CHECK_THROWS_WITH_AS(
      trainer.evaluate(Unlabeled{}),
      "the model's input 'label' has no field of that name in the data set, which has 'image'", ConfigError);
}

TEST_CASE("a prediction needs only the inputs on which its output depends") {
  const DynamicPlan plan([](auto& g) { two_towers(g); });
  train::PlanTrainer<optim::Sgd, comm::None, exec::Reference<f32>> trainer(plan, {.batch = batch});
  const std::vector<data::RandomField> left{{{"left", DType::f32, {4}}}};
  const data::Synthetic set(20, left, 0);
  CHECK(trainer.predict(set, 0).values.size() == 40);
  CHECK_THROWS_WITH_AS(
      trainer.predict(set, 1),
      "the model's input 'right' has no field of that name in the data set, which has 'left'", ConfigError);
  for (const int output : {-1, 2})
    CHECK_THROWS_WITH_AS(train::Binding::for_output(plan, set.fields(), output),
                         concat("the model has 2 outputs, so there is no output ", output).c_str(),
                         ConfigError);
  const DynamicPlan single([](auto& g) {
    const auto x = g.linear(g.input("left", {4}), {.features = 2});
    g.output("left", x);
    g.loss(g.mse_loss(x, g.input("right", {2})));
  });
  CHECK_THROWS_WITH_AS(train::Binding::for_output(single, set.fields(), 1),
                       "the model has 1 output, so there is no output 1", ConfigError);
}

TEST_CASE("backward without a forward is refused, in the first step and in later ones") {
  Alone<Plain> trainer({.batch = batch});
  const auto refused = [&] {
    CHECK_THROWS_WITH_AS(trainer.backward(), "exec: backward needs a forward pass in Mode::train before it",
                         ExecError);
  };
  refused();
  data::Samples samples(training.fields(), batch);
  for (std::size_t i = 0; i < batch; ++i) training.read(i, samples.row(i));
  const std::vector<const void*> fields{samples.columns()[0], samples.columns()[1]};
  trainer.forward({fields, batch});
  trainer.backward();
  refused();
  trainer.step();
  refused();
}

TEST_CASE("a forward before the backward of the one before it is refused on all ranks, and loses nothing") {
  data::Samples samples(training.fields(), batch);
  for (std::size_t i = 0; i < batch; ++i) training.read(i, samples.row(i));
  const std::vector<const void*> fields{samples.columns()[0], samples.columns()[1]};
  Threads::World(2).run([&](const Threads& endpoint) {
    const typename ThreadTrainer<Plain>::Config config{.batch = batch, .optimizer = {.lr = 0.05f}};
    ThreadTrainer<Plain> trainer(config, endpoint), expected(config, endpoint);
    const exec::BatchView whole{fields, batch}, none;
    const exec::BatchView a = endpoint.rank() == 0 ? whole : none, b = endpoint.rank() == 0 ? none : whole;
    trainer.forward(a, batch);
    try {
      trainer.forward(b, batch);
      fail("it was not refused");
    } catch (const ConfigError& error) {
      if (std::string_view(error.what()) != "trainer: forward needs a backward after the forward before it")
        throw;
    }
    expected.forward(a, batch);
    for (ThreadTrainer<Plain>* each : {&trainer, &expected}) {
      each->backward();
      each->forward(b, batch);
      each->backward();
      each->step();
    }
    if (all_parameters(trainer) != all_parameters(expected)) fail("a gradient was lost");
  });
}

TEST_CASE("a batch with a null field is refused") {
  Alone<Plain> trainer({.batch = batch});
  const std::vector<const void*> fields{nullptr, nullptr};
  CHECK_THROWS_WITH_AS(trainer.step({fields, batch}), "exec: field 0 of a batch is a null pointer",
                       ConfigError);
}

TEST_CASE("a label that is no class is named by its sample of the data set, in a fit and an evaluation") {
  class Mislabeled : public Blobs {
   public:
    Mislabeled() : Blobs(50) {}
    void read(std::size_t index, data::Sample out) const {
      Blobs::read(index, out);
      if (index == 37) out.as<i32>(1)[0] = classes;
    }
  };
  const Mislabeled set;
  const std::string refusal =
      concat("exec: the label 'label' of sample 37 is ", int{classes}, ", expected 0 to ", classes - 1);
  Alone<Plain> trainer({.batch = batch});
  CHECK_THROWS_WITH_AS(trainer.fit(set, epochs(1)), refusal.c_str(), ExecError);
  CHECK_THROWS_WITH_AS(trainer.evaluate(set), refusal.c_str(), ExecError);
}

TEST_CASE("a fit keeps its state once after each step that is due, and at its end") {
  const auto kept_steps = [](int rows, std::int64_t steps) {
    Positions positions(2);
    Alone<Plain> trainer({.batch = rows});
    trainer.fit(training, {.epochs = 2, .steps = steps, .log = nullptr, .keeper = &positions});
    std::vector<std::int64_t> kept;
    for (const train::FitPosition& at : positions.kept) kept.push_back(at.steps);
    return kept;
  };
  using Steps = std::vector<std::int64_t>;
  CHECK(kept_steps(batch, 6) == Steps{2, 4, 6});  // 5 steps an epoch
  CHECK(kept_steps(batch, 8) == Steps{2, 4, 6, 8});
  CHECK(kept_steps(batch, 5) == Steps{2, 4, 5});
  CHECK(kept_steps(25, 0) == Steps{2, 4});  // the steps that are due are those that end epochs
}
