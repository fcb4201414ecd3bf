// SANITIZE: address thread
// Trainer: the effects of ranks, batches, accumulation and callbacks on a training.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/data/synthetic.hpp>

using namespace convoy;
using namespace train_test;

namespace {

template <class Model>
typename ThreadTrainer<Model>::Config config(int batch) {
  return {.batch = batch, .optimizer = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f}};
}

/// Most of its parameters are in matrices.
struct Wide {
  static constexpr void define(auto& g) {
    auto x = g.relu(g.linear(g.flatten(g.input("image", image)), {.features = 96}));
    x = g.linear(g.relu(g.linear(x, {.features = 96})), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

struct Level {
  static double measure(View<const float> x) { return std::accumulate(x.data, x.data + x.size(), 0.0); }
};

/// The number of labels that count is known only after a batch was read.
struct Ignoring {
  static constexpr void define(auto& g) {
    const auto x = g.linear(g.flatten(g.input("image", image)), {.features = classes});
    g.loss(g.cross_entropy(x, g.label("label", classes, {.ignore = 2})));
  }
};

/// A model that classifies nothing.
struct Regression {
  static constexpr void define(auto& g) {
    const auto x = g.linear(g.input("x", Shape{4}), {.features = 1});
    g.output("value", x);
    g.loss(g.mse_loss(x, g.input("y", Shape{1})));
    g.metric("level", Level{}, x);
  }
};

}  // namespace

TEST_CASE("a model that classifies nothing is logged by its loss") {
  const std::vector<data::RandomField> fields{{{"x", DType::f32, {4}}}, {{"y", DType::f32, {1}}}};
  const data::Synthetic set(20, fields, 0);
  std::ostringstream log;
  Trainer<Regression, optim::Sgd, comm::None, exec::Reference<f32>> trainer({.batch = 5});
  const auto report = trainer.fit(set, {.validate = &set,
                                        .on_step =
                                            [](const train::StepReport& step) {
                                              CHECK(!step.accuracy);
                                              return train::Control::go_on;
                                            },
                                        .log = &log});
  CHECK(report.steps == 4);
  CHECK(!report.epochs[0].accuracy);
  CHECK(!report.epochs[0].test.accuracy);
  CHECK(log.str().find("test loss:") != std::string::npos);
  CHECK(log.str().find("accuracy") == std::string::npos);
  const auto values = trainer.predict(set).values;
  const double level = std::accumulate(values.begin(), values.end(), 0.0) / 20;
  CHECK(report.epochs[0].test.metric("level") == doctest::Approx(level));
  CHECK(log.str().find(", level:") != std::string::npos);
  CHECK_THROWS_WITH_AS(static_cast<void>(report.epochs[0].test.metric("levels")),
                       "evaluation: the model has no metric \"levels\"", ConfigError);
  CHECK_THROWS_WITH_AS(
      trainer.fit(set, {.validate = &set, .early_stop = {.target_accuracy = 0.5}, .log = nullptr}),
      "fit: a target accuracy needs a model with a cross-entropy, and this model has none", ConfigError);
  CHECK(trainer.steps_done() == 4);
}

TEST_CASE("two ranks with batch B train as one rank with batch 2B") {
  const Blobs blobs(400);
  const data::DatasetRef set(&blobs);
  const auto one =
      train_test::train<ThreadTrainer<Plain>>(1, config<Plain>(20), set, {.steps = 20, .log = nullptr});
  for (const int ranks : {2, 4}) {
    const auto many = train_test::train<ThreadTrainer<Plain>>(ranks, config<Plain>(20 / ranks), set,
                                                              {.steps = 20, .log = nullptr});
    CHECK(largest_difference(one, many) < 1e-5f);
  }
  // After one step the parameters are others, so that the comparison can fail.
  const auto start =
      train_test::train<ThreadTrainer<Plain>>(1, config<Plain>(20), set, {.steps = 1, .log = nullptr});
  CHECK(largest_difference(one, start) > 1e-3f);
}

TEST_CASE("a Comm that factors matrices is given those of the plan, and sends fewer bytes") {
  const Blobs blobs(400);
  using Factored =
      Trainer<Wide, optim::Sgd, comm::Compressed<comm::Ring<transport::Threads>, comm::codec::PowerSgd>,
              exec::Reference<f32>>;
  std::vector<std::vector<float>> all(2);
  std::array<std::int64_t, 2> bytes{};
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    const auto me = static_cast<std::size_t>(endpoint.rank());
    Factored trainer{config<Wide>(20), endpoint, comm::Options{}, comm::codec::PowerSgd{.warm_up_steps = 10}};
    const std::int64_t before = trainer.comm().traffic().bytes;
    const auto report = trainer.fit(blobs, {.epochs = 6, .log = nullptr});
    bytes[me] = (trainer.comm().traffic().bytes - before) / report.steps;
    CHECK(report.epochs.back().loss < report.epochs.front().loss / 2);
    all[me] = all_parameters(trainer);
  });
  CHECK(all[0] == all[1]);
  for (const std::int64_t b : bytes) CHECK(b < Factored::plan.parameters() * 4 / 3);
}

TEST_CASE("ranks with unequal shares train as one rank with the same global batches") {
  const Blobs blobs(410);
  const data::DatasetRef set(&blobs);
  const auto one =
      train_test::train<ThreadTrainer<Plain>>(1, config<Plain>(24), set, {.epochs = 2, .log = nullptr});
  using Unequal =
      Trainer<Plain, optim::Sgd, comm::Weighted<comm::Ring<transport::Threads>>, exec::Reference<f32>>;
  struct Case {
    std::vector<double> weights;
    std::vector<int> most;
  };
  for (const Case& c : {Case{{2, 1, 1}, {12, 6, 6}}, Case{{0, 3, 1}, {1, 18, 6}}})
    transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
      Unequal trainer{config<Plain>(8), comm::WeightedOptions{c.weights}, endpoint};
      CHECK(trainer.most_rows() == c.most[static_cast<std::size_t>(endpoint.rank())]);
      const auto report = trainer.fit(blobs, {.epochs = 2, .log = nullptr});
      CHECK(report.samples == 2 * 410);
      CHECK(largest_difference(one, all_parameters(trainer)) < 1e-5f);
      CHECK(trainer.evaluate(blobs).rows == 410);
      CHECK(trainer.predict(blobs).values.size() == 410 * classes);
    });
}

TEST_CASE("ranks with shares by measured speed train as one rank") {
  const Blobs blobs(120);
  const data::DatasetRef set(&blobs);
  const auto one =
      train_test::train<ThreadTrainer<Plain>>(1, config<Plain>(24), set, {.epochs = 1, .log = nullptr});
  using Measured = Trainer<Plain, optim::Sgd, comm::Any, exec::Reference<f32>>;
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Measured trainer{config<Plain>(12), comm::make("ring", endpoint, {}, {.weighted = true})};
    REQUIRE(trainer.shares().size() == 2);
    CHECK(trainer.shares()[0] > 0);
    CHECK(trainer.shares()[1] > 0);
    CHECK(trainer.shares()[0] + trainer.shares()[1] == doctest::Approx(1));
    trainer.fit(blobs, {.log = nullptr});
    CHECK(largest_difference(one, all_parameters(trainer)) < 1e-5f);
  });
}

TEST_CASE("two runs give the same bits, and another seed gives others") {
  const Blobs blobs(90);
  const data::DatasetRef set(&blobs);
  auto settings = config<Normed>(10);
  const auto first =
      train_test::train<ThreadTrainer<Normed>>(3, settings, set, {.epochs = 2, .log = nullptr});
  const auto again =
      train_test::train<ThreadTrainer<Normed>>(3, settings, set, {.epochs = 2, .log = nullptr});
  CHECK(first == again);
  settings.seed = 1;
  CHECK(first != train_test::train<ThreadTrainer<Normed>>(3, settings, set, {.epochs = 2, .log = nullptr}));
}

TEST_CASE("accumulated micro-steps train as one larger batch") {
  const Blobs blobs(240);
  const data::DatasetRef set(&blobs);
  auto micro = config<Plain>(8);
  micro.accumulate = 3;
  const auto whole =
      train_test::train<ThreadTrainer<Plain>>(1, config<Plain>(24), set, {.epochs = 2, .log = nullptr});
  CHECK(largest_difference(whole, train_test::train<ThreadTrainer<Plain>>(
                                      1, micro, set, {.epochs = 2, .log = nullptr})) < 1e-5f);
  micro.batch = 4;
  CHECK(largest_difference(whole, train_test::train<ThreadTrainer<Plain>>(
                                      2, micro, set, {.epochs = 2, .log = nullptr})) < 1e-5f);
}

TEST_CASE("a step of more micro-steps than an epoch has batches is the whole epoch, as one larger batch") {
  const Blobs blobs(40);
  const data::DatasetRef set(&blobs);
  auto micro = config<Ignoring>(8);
  micro.accumulate = std::numeric_limits<int>::max();
  const auto whole =
      train_test::train<ThreadTrainer<Ignoring>>(1, config<Ignoring>(40), set, {.epochs = 2, .log = nullptr});
  CHECK(largest_difference(whole, train_test::train<ThreadTrainer<Ignoring>>(
                                      1, micro, set, {.epochs = 2, .log = nullptr})) < 1e-5f);
}

TEST_CASE("a ragged last batch counts each sample once") {
  const Blobs blobs(103);
  const data::DatasetRef set(&blobs);
  const auto one =
      train_test::train<ThreadTrainer<Plain>>(1, config<Plain>(20), set, {.epochs = 3, .log = nullptr});
  const auto two =
      train_test::train<ThreadTrainer<Plain>>(2, config<Plain>(10), set, {.epochs = 3, .log = nullptr});
  CHECK(largest_difference(one, two) < 1e-5f);
}

TEST_CASE("training learns, and evaluate, predict and fit agree on how much") {
  const Blobs training(600), test(151, 8);
  for (const int ranks : {1, 3})
    transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
      ThreadTrainer<Plain> trainer{config<Plain>(12), endpoint};
      const auto before = trainer.evaluate(test);
      const auto report = trainer.fit(training, {.epochs = 8, .validate = &test, .log = nullptr});
      const auto& after = report.epochs.back().test;
      CHECK(before.accuracy < 0.5);
      CHECK(after.accuracy > 0.9);
      CHECK(after.rows == 151);
      CHECK(after.loss < before.loss);
      const auto prediction = trainer.predict(test);
      REQUIRE(prediction.values.size() == 151 * classes);
      int correct = 0;
      for (std::size_t i = 0; i < 151; ++i) {
        const float* row = prediction.values.data() + i * classes;
        correct += std::max_element(row, row + classes) - row == static_cast<int>(i % classes);
      }
      CHECK(correct == doctest::Approx(after.accuracy.value() * 151));
      CHECK(report.samples == 8 * 600);
    });
}

TEST_CASE("taps that never meet the input decay as in PyTorch, and do not change otherwise") {
  const Blobs blobs(60);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    auto settings = config<Dead>(10);
    ThreadTrainer<Dead> trainer{settings, endpoint};
    const int conv = 0;
    REQUIRE(trainer.plan.parameter_list[conv].name.view() == "conv.weight");
    std::vector<float> before(27), after(27);
    trainer.exec().read_parameter(conv, before);
    trainer.fit(blobs, {.steps = 3, .log = nullptr});
    trainer.exec().read_parameter(conv, after);
    for (std::size_t i = 0; i < 27; ++i) {
      double p = before[i], v = 0;
      for (int step = 0; step < 3; ++step) {
        v = 0.9 * v + 1e-3 * p;
        p -= 0.05 * v;
      }
      if (i % 9 == 4)
        CHECK(std::abs(after[i] - p) > 1e-5);
      else
        CHECK(after[i] == doctest::Approx(p).epsilon(1e-5));
    }
  });
  // Without weight decay, dead taps do not change and have no state.
  ThreadTrainer<Dead> trainer{{.batch = 10, .optimizer = {.lr = 0.05f}}};
  CHECK(trainer.optimizer_state_bytes() == static_cast<std::size_t>(trainer.plan.sizes.exchanged) * 4);
}

TEST_CASE("callbacks, early stop and a number of steps end a fit on all ranks together") {
  const Blobs training(200), test(50, 8);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    ThreadTrainer<Plain> trainer{config<Plain>(10), endpoint};
    CHECK(trainer.fit(training, {.epochs = 9, .steps = 13, .log = nullptr}).steps == 13);

    // Only rank 1 asks for the end; both ranks end after the next step.
    const auto called = trainer.fit(training, {.epochs = 9,
                                               .on_step =
                                                   [&](const train::StepReport& report) {
                                                     return trainer.rank() == 1 && report.step == 4
                                                                ? train::Control::stop
                                                                : train::Control::go_on;
                                                   },
                                               .log = nullptr});
    CHECK(called.stopped == train::StopReason::callback);
    CHECK(called.steps == 6);

    const auto by_epoch = trainer.fit(training, {.epochs = 9,
                                                 .on_epoch =
                                                     [&](const train::EpochReport& report) {
                                                       return trainer.rank() == 0 && report.epoch == 1
                                                                  ? train::Control::stop
                                                                  : train::Control::go_on;
                                                     },
                                                 .log = nullptr});
    CHECK(by_epoch.epochs.size() == 2);

    const auto early = trainer.fit(
        training, {.epochs = 30, .validate = &test, .early_stop = {.target_accuracy = 0.5}, .log = nullptr});
    CHECK(early.stopped == train::StopReason::early_stop);
    CHECK(early.epochs.back().test.accuracy >= 0.5);
  });
  // With a learning rate of zero, no epoch improves the model.
  ThreadTrainer<Plain> still{{.batch = 10, .optimizer = {.lr = 0}}};
  const auto waited =
      still.fit(training, {.epochs = 30, .validate = &test, .early_stop = {.patience = 3}, .log = nullptr});
  CHECK(waited.epochs.size() == 4);
}

TEST_CASE("a loss that is lower by more than min_delta is better, and patience counts the epochs since") {
  const train::Patience patience({.patience = 2, .min_delta = 0.5});
  train::FitPosition at;
  const auto ends = [&](double loss) {
    train::Evaluation test;
    test.loss = loss;
    return patience.exhausted(test, at);
  };
  CHECK_FALSE(ends(4));
  CHECK_FALSE(ends(3.75));
  CHECK(at.best == 4);
  CHECK(at.waited == 1);
  CHECK_FALSE(ends(3.25));
  CHECK(at.best == 3.25);
  CHECK(at.waited == 0);
  CHECK_FALSE(ends(3));
  CHECK(ends(2.875));
  CHECK(at.best == 3.25);
}

TEST_CASE("the throughput of a long fit leaves out the warm-up, and its times are medians") {
  const auto summary = [](int steps) {
    train::FitReport fit;
    train::StepTimes times;
    for (int s = 0; s < steps; ++s) {
      train::StepReport step{.rows = s < 20 ? 1 : 10};
      if (s < 4) step.backward_seconds = 4 - s;
      if (s < 3) step.exposed_comm_seconds = s;
      times.take(step);
      fit.step_seconds.push_back(s < 20 ? 9 : 0.5);
    }
    train::summarize(fit, times);
    return fit;
  };
  const train::FitReport brief = summary(40), longer = summary(41);
  CHECK_FALSE(brief.warm_up_left_out);
  CHECK(brief.samples_per_sec == doctest::Approx(220.0 / 190));
  CHECK(longer.warm_up_left_out);
  CHECK(longer.samples_per_sec == doctest::Approx(20));
  CHECK(longer.backward_ms == 3000);  // the upper one of the two in the middle
  CHECK(longer.exposed_comm_ms == 1000);
  const train::FitReport none = summary(0);
  CHECK(none.samples_per_sec == 0);
  CHECK(!none.backward_ms);
  CHECK(!none.exposed_comm_ms);
}

TEST_CASE("the report of a step has its place in the fit and in its epoch, and the rate so far") {
  const Blobs training(50);
  ThreadTrainer<Plain> trainer{{.batch = 10, .accumulate = 2}};
  std::vector<train::StepReport> steps;
  const auto fit = trainer.fit(training, {.epochs = 2,
                                          .on_step =
                                              [&](const train::StepReport& step) {
                                                steps.push_back(step);
                                                return train::Control::go_on;
                                              },
                                          .log = nullptr});
  REQUIRE(steps.size() == 6);
  REQUIRE(fit.step_seconds.size() == 6);
  double seconds = 0;
  std::int64_t rows = 0;
  for (int s = 0; s < 6; ++s) {
    const train::StepReport& step = steps[static_cast<std::size_t>(s)];
    CHECK(step.step == s);
    CHECK(step.epoch == s / 3);
    CHECK(step.step_in_epoch == s % 3);
    CHECK(step.steps_per_epoch == 3);
    CHECK(step.rows == (s % 3 < 2 ? 20 : 10));
    CHECK(step.seconds == fit.step_seconds[static_cast<std::size_t>(s)]);
    seconds += step.seconds;
    rows += step.rows;
    CHECK(step.samples_per_sec == doctest::Approx(static_cast<double>(rows) / seconds));
  }
  CHECK(fit.samples == rows);
  CHECK(fit.loss == steps.back().loss);
  CHECK(fit.epochs[1].epoch == 1);
}

TEST_CASE("the loss and the accuracy of an epoch are those of its rows, also if its last step is smaller") {
  const Blobs training(50);
  ThreadTrainer<Plain> trainer{{.batch = 20}};
  double loss = 0, correct = 0;
  const auto fit = trainer.fit(training, {.epochs = 1,
                                          .on_step =
                                              [&](const train::StepReport& step) {
                                                loss += step.loss * static_cast<double>(step.rows);
                                                correct += *step.accuracy * static_cast<double>(step.labels);
                                                return train::Control::go_on;
                                              },
                                          .log = nullptr});
  CHECK(correct > 0);
  CHECK(fit.epochs[0].loss == doctest::Approx(loss / 50));
  CHECK(fit.epochs[0].accuracy.value() == doctest::Approx(correct / 50));
}

TEST_CASE("the log prints lines in the published format") {
  const Blobs training(60), test(20, 8);
  std::ostringstream log;
  ThreadTrainer<Plain> trainer{config<Plain>(10)};
  trainer.fit(training, {.epochs = 1, .validate = &test, .log = &log, .log_every = 4});
  const std::string text = log.str();
  CHECK(text.find("Step4: ") == 0);
  CHECK(text.find(" data/sec, loss:") != std::string::npos);
  CHECK(text.find("\nEpoch 0 in ") != std::string::npos);
  CHECK(text.find(" sec, test time ") != std::string::npos);
  CHECK(text.find(" sec, test accuracy:0.") != std::string::npos);
  CHECK(text.find(", test loss:") != std::string::npos);
}

TEST_CASE("a line of the log has the rate of what rows hold, the loss, the learning rate and the norm") {
  const train::StepReport step{.step = 3, .loss = 0.5, .lr = 0.25f, .samples_per_sec = 10};
  train::StepReport clipped = step;
  clipped.gradient_norm = 0.75;
  std::ostringstream log;
  train::log_step(log, step, 4);
  train::log_step(log, clipped, 4, 64, "tokens");
  train::log_step(log, clipped, 3);
  CHECK(log.str() ==
        "Step4: 10.00 data/sec, loss:0.50000, lr:0.25\n"
        "Step4: 10.00 data/sec, 640.00 tokens/sec, loss:0.50000, lr:0.25, gradient norm:0.75\n");
}

TEST_CASE("measuring the exchange alone does not affect the training") {
  const Blobs training(80);
  const data::DatasetRef set(&training);
  const auto plain =
      train_test::train<ThreadTrainer<Plain>>(2, config<Plain>(10), set, {.epochs = 1, .log = nullptr});
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    ThreadTrainer<Plain> trainer{config<Plain>(10), endpoint};
    const double seconds = trainer.exchange_seconds(3);
    CHECK(seconds > 0);
    const auto report = trainer.fit(training, {.epochs = 1, .log = nullptr});
    CHECK(all_parameters(trainer) == plain);
    CHECK(report.backward_ms > 0);
    Trainer<Plain, optim::Sgd, comm::Any, exec::Reference<f32>> served{config<Plain>(10),
                                                                       comm::make("ps", endpoint)};
    CHECK_THROWS_AS(served.exchange_seconds(), ConfigError);
  });
  CHECK(train::hidden(4, 10, 0) == 1);
  CHECK(train::hidden(4, 10, 1) == 0.75);
  CHECK(train::hidden(10, 4, 6) == 1);
  CHECK(train::hidden(10, 4, 8) == 0.5);
  CHECK(train::hidden(10, 4, 12) == 0);
  CHECK(train::hidden(0, 4, 0) == 0);
}

TEST_CASE("a sharded optimizer holds its share of the state and trains to the unsharded bits") {
  const Blobs blobs(240);
  const data::DatasetRef set(&blobs);
  using Ring = comm::Ring<transport::Threads>;
  const auto trained = [&]<class C>(int ranks) {
    using Sharded = Trainer<Plain, optim::Adam, C, exec::Reference<f32>>;
    std::vector<float> result;
    std::atomic<std::size_t> bytes{0}, most{0};
    transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
      Sharded trainer{{.batch = 24 / ranks, .optimizer = {.lr = 0.01f}}, endpoint};
      trainer.fit(set, {.epochs = 2, .log = nullptr});
      bytes += trainer.optimizer_state_bytes();
      std::size_t seen = most;
      while (seen < trainer.optimizer_state_bytes() &&
             !most.compare_exchange_weak(seen, trainer.optimizer_state_bytes())) {
      }
      if (trainer.rank() == 0) {
        const auto parameters = trainer.exec().parameters();
        result.assign(parameters.begin(), parameters.end());
      }
    });
    return std::tuple(result, bytes.load(), most.load());
  };
  for (const int ranks : {2, 3, 4}) {
    const auto [plain, all_plain, most_plain] = trained.operator()<Ring>(ranks);
    const auto [sharded, all_sharded, most_sharded] = trained.operator()<comm::Sharded<Ring>>(ranks);
    CHECK(plain == sharded);
    CHECK(all_plain == static_cast<std::size_t>(ranks) * most_plain);
    CHECK(all_sharded == most_plain);  // one copy among all ranks
    const double share = static_cast<double>(most_sharded) * ranks / static_cast<double>(most_plain);
    CHECK(share < 1.5);  // blocks are cut at cache lines, and the model is small
    const auto [ordered, all_ordered, most_ordered] = trained.operator()<comm::Reproducible<Ring>>(ranks);
    const auto [both, all_both, most_both] =
        trained.operator()<comm::Sharded<comm::Reproducible<Ring>>>(ranks);
    CHECK(ordered == both);
  }
}
