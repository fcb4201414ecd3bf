// TIMEOUT: 300
// Checkpoints: a killed fit resumes with the same bits, with every exchange.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "remote_exec.hpp"
#include "sanitized.hpp"
#include "temporary_folder.hpp"
#include "train_checkpoints.hpp"
#include <convoy/comm/policy/staged.hpp>
#include <convoy/optim/lamb.hpp>
#include <convoy/train/weights.hpp>

using namespace convoy;
using namespace train_test;

TEST_CASE_TEMPLATE("a killed fit resumes with the same bits", Comm, AllReduce, Sharded, Encoded, Served,
                   Beside, Async) {
  const TemporaryFolder folder;
  Run run = run_of<Comm>();
  run.checkpoints = {.directory = folder.path / "whole", .every = 4};
  const Left whole = fit<Comm>(run);
  const std::int64_t all = whole.steps;
  REQUIRE(all == 15);
  Philox random(11, static_cast<std::uint64_t>(whole.values.size()));
  for (int time = 0; time < (sanitized ? 4 : 12); ++time) {
    const auto killed_after = static_cast<std::int64_t>(random.below(static_cast<std::uint32_t>(all - 1)));
    const auto every = static_cast<std::int64_t>(random.below(5));  // 0: at the ends of epochs
    CAPTURE(killed_after);
    CAPTURE(every);
    const fs::path path = folder.path / concat("killed-", time);
    run.checkpoints = {.directory = path, .every = every, .resume = true};
    run.killed_after = killed_after;
    CHECK_THROWS_AS(fit<Comm>(run), Killed);
    run.killed_after = -1;
    const Left resumed = fit<Comm>(run);
    CHECK(resumed.values == whole.values);
    REQUIRE(!resumed.epochs.empty());
    CHECK(resumed.epochs.back().epoch == 2);
    CHECK(resumed.epochs.back().loss == whole.epochs.back().loss);
    CHECK(resumed.epochs.back().test.loss == whole.epochs.back().test.loss);
    CHECK(resumed.steps <= all);
    if (every > 0 && killed_after >= 2 * every) CHECK(resumed.steps < all);
    fs::remove_all(path);
  }
}

TEST_CASE_TEMPLATE("a fit that ends within an evaluation resumes with it, and reports the same", Comm,
                   AllReduce, Served, Beside) {
  // Ends the fit when it reads the first row for the `ends_at`th time.
  struct Fragile : Blobs {
    using Blobs::Blobs;
    mutable std::atomic<int> ends_at = 0;
    void read(std::size_t index, data::Sample out) const {
      if (index == 0 && --ends_at == 0) throw Killed();
      Blobs::read(index, out);
    }
  };
  const TemporaryFolder folder;
  const auto run = [&](const char* name, std::int64_t every, std::int64_t steps, int ends_at) {
    const Fragile fragile(20, 8);
    fragile.ends_at = ends_at;
    Left left;
    Threads::World(run_of<Comm>().ranks).run([&](Threads endpoint) {
      Made<Comm> trainer(config_of<Comm>({}), endpoint, comm::Options{.deadline = Seconds(20)});
      train::Checkpoints checkpoints(trainer,
                                     {.directory = folder.path / name, .every = every, .resume = true});
      const auto report = trainer.fit(
          training,
          {.epochs = 3, .steps = steps, .validate = &fragile, .log = nullptr, .keeper = &checkpoints});
      const auto parameters = all_parameters(trainer);
      if (trainer.rank() == 0) left = {parameters, report.epochs, report.steps};
    });
    return left;
  };
  for (const std::int64_t every : {0, 100})
    for (const std::int64_t steps : {0, 8, 10}) {
      CAPTURE(every);
      CAPTURE(steps);
      fs::remove_all(folder.path);
      const Left whole = run("whole", every, steps, 0);
      const int epochs = static_cast<int>(whole.epochs.size());
      CHECK_THROWS_AS(run("ended", every, steps, epochs), Killed);
      const Left rest = run("ended", every, steps, 0);
      CHECK(rest.steps == 0);
      CHECK(rest.values == whole.values);
      REQUIRE(rest.epochs.size() == 1);
      CHECK(rest.epochs[0].epoch == epochs - 1);
      CHECK(rest.epochs[0].loss == whole.epochs.back().loss);
      CHECK(rest.epochs[0].accuracy == whole.epochs.back().accuracy);
      CHECK(rest.epochs[0].test.loss == whole.epochs.back().test.loss);
    }
}

TEST_CASE("a fit that keeps checkpoints trains as one that keeps none") {
  const TemporaryFolder folder;
  const Left kept = fit<AllReduce>({.checkpoints = {.directory = folder.path, .every = 1}});
  std::vector<float> without;
  Threads::World(2).run([&](Threads endpoint) {
    Made<AllReduce> trainer(config_of<AllReduce>({}), endpoint);
    trainer.fit(training, {.epochs = 3, .validate = &testing, .log = nullptr});
    if (trainer.rank() == 0) without = all_parameters(trainer);
    if (trainer.rank() == 0)
      without.insert(without.end(), trainer.exec().statistics().begin(), trainer.exec().statistics().end());
  });
  CHECK(kept.values == without);
}

TEST_CASE("the newest checkpoints stay, each complete, and a fit resumes where the last one ended") {
  const TemporaryFolder folder;
  train::CheckpointOptions options{.directory = folder.path, .every = 2, .keep = 3};
  const Left first = fit<AllReduce>({.checkpoints = options, .epochs = 2});
  CHECK(names_in(folder.path) == std::vector<std::string>{"step-10", "step-6", "step-8"});
  CHECK(names_in(folder.path / "step-10") ==
        std::vector<std::string>{"model.safetensors", "rank-0.safetensors", "rank-1.safetensors",
                                 "training.safetensors"});
  CHECK_THROWS_WITH_AS(fit<AllReduce>({.checkpoints = options}),
                       concat("checkpoint: ", (folder.path / "step-10").string(),
                              " already exists: resume from it, or choose another folder")
                           .c_str(),
                       ConfigError);
  // The folder of an interrupted writer is no checkpoint. Who only reads must not remove it: its writer may
  // be at work.
  fs::create_directories(folder.path / "step-99.partial");
  fs::create_directories(folder.path / "film.partial");
  CHECK_THROWS_AS(fit<AllReduce>({.checkpoints = options}), ConfigError);
  options.resume = true;
  Threads::World(2).run([&](Threads endpoint) {
    Made<AllReduce> trainer(config_of<AllReduce>({}), endpoint);
    train::Checkpoints checkpoints(trainer, options);
    const auto position = checkpoints.restore();
    CHECK((position && position->steps == 10 && trainer.steps_done() == 10));
  });
  CHECK(fs::exists(folder.path / "step-99.partial"));
  const Left again = fit<AllReduce>({.checkpoints = options, .epochs = 2});
  CHECK(again.steps == 0);
  CHECK(again.values == first.values);
  CHECK(!fs::exists(folder.path / "step-99.partial"));
  CHECK(fs::exists(folder.path / "film.partial"));
  const Left further = fit<AllReduce>({.checkpoints = options, .epochs = 3});
  CHECK(further.steps == 5);
  const Left whole = fit<AllReduce>({.checkpoints = {.directory = folder.path / "whole"}});
  CHECK(further.values == whole.values);
}

TEST_CASE("a fit that stops within an epoch resumes from there") {
  const TemporaryFolder folder;
  std::vector<float> halves, whole;
  for (const bool interrupted : {true, false})
    Threads::World(2).run([&](Threads endpoint) {
      const train::CheckpointOptions options{
          .directory = folder.path / (interrupted ? "halves" : "whole"), .every = 100, .resume = true};
      for (const std::int64_t steps : {std::int64_t{7}, std::int64_t{0}}) {
        if (!interrupted && steps > 0) continue;
        Made<AllReduce> trainer({.batch = 6, .seed = 5}, endpoint);
        train::Checkpoints checkpoints(trainer, options);
        const auto report = trainer.fit(
            training,
            {.epochs = 3, .steps = steps, .validate = &testing, .log = nullptr, .keeper = &checkpoints});
        CHECK(report.steps == (interrupted ? (steps > 0 ? 7 : 8) : 15));
        if (trainer.rank() == 0) (interrupted ? halves : whole) = all_parameters(trainer);
      }
    });
  CHECK(halves == whole);
}

TEST_CASE("a fit of fewer epochs than the checkpoint has begun trains no more") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path, .resume = true};
  std::vector<float> kept;
  for (const int epochs : {3, 1}) {
    Made<AllReduce> trainer({.batch = 6, .seed = 5});
    train::Checkpoints checkpoints(trainer, options);
    const auto report = trainer.fit(
        training, {.epochs = epochs, .steps = epochs == 3 ? 12 : 0, .log = nullptr, .keeper = &checkpoints});
    CHECK(report.steps == (epochs == 3 ? 12 : 0));
    if (epochs == 3) kept = all_parameters(trainer);
    CHECK(all_parameters(trainer) == kept);
  }
}

TEST_CASE("a fit that an exception ended resumes from the checkpoint that was still being written") {
  const TemporaryFolder folder;
  Threads::World(2).run([&](Threads endpoint) {
    Made<AllReduce> trainer(config_of<AllReduce>({}), endpoint);
    train::Checkpoints checkpoints(trainer, {.directory = folder.path, .every = 3, .resume = true});
    bool kill = true;
    const auto fit = [&] {
      return trainer.fit(training, {.epochs = 2,
                                    .on_step =
                                        [&](const train::StepReport& step) {
                                          if (step.step == 3 && std::exchange(kill, false)) throw Killed();
                                          return train::Control::go_on;
                                        },
                                    .log = nullptr,
                                    .keeper = &checkpoints});
    };
    CHECK_THROWS_AS(fit(), Killed);
    CHECK(fit().steps == 7);
  });
}

TEST_CASE(
    "a fit that ran out of patience makes no more steps when it is resumed, except with more patience") {
  // The last checkpoint is from before the last evaluation, or from behind it.
  for (const std::int64_t every : {0, 100}) {
    CAPTURE(every);
    const TemporaryFolder folder;
    const auto epochs = [&](int patience) {
      Trainer<Normed, optim::Adam, comm::None, Reference<float>> trainer(
          {.batch = 10, .optimizer = {.lr = 0}});
      train::Checkpoints checkpoints(trainer, {.directory = folder.path, .every = every, .resume = true});
      const auto report = trainer.fit(training, {.epochs = 30,
                                                 .validate = &testing,
                                                 .early_stop = {.patience = patience, .min_delta = 1},
                                                 .log = nullptr,
                                                 .keeper = &checkpoints});
      CHECK(report.stopped == train::StopReason::early_stop);
      return report.steps / 5;
    };
    CHECK(epochs(3) == 4);
    CHECK(epochs(3) == 0);
    CHECK(epochs(5) == 2);
  }
}

TEST_CASE("a fit that reached its accuracy makes no more steps when it is resumed, except to a higher one") {
  const TemporaryFolder folder;
  const auto epochs = [&](double accuracy) {
    Trainer<Normed, optim::Adam, comm::None, Reference<float>> trainer({.batch = 10, .optimizer = {.lr = 0}});
    train::Checkpoints checkpoints(trainer, {.directory = folder.path, .resume = true});
    const auto report = trainer.fit(training, {.epochs = 4,
                                               .validate = &testing,
                                               .early_stop = {.target_accuracy = accuracy},
                                               .log = nullptr,
                                               .keeper = &checkpoints});
    return report.steps / 5;
  };
  CHECK(epochs(0) == 1);
  CHECK(epochs(0) == 0);
  CHECK(epochs(1) == 3);
}

TEST_CASE_TEMPLATE("dead taps, which only decay, resume with their momentum", Rule, optim::Sgd, optim::Adam,
                   optim::Lamb) {
  const TemporaryFolder folder;
  const auto trained = [&](int ranks, std::int64_t steps, const char* name) {
    std::vector<float> values;
    Threads::World(ranks).run([&](Threads endpoint) {
      Trainer<Dead, Rule, Sharded, Reference<float>> trainer(
          {.batch = 12 / ranks, .optimizer = {.lr = 0.05f, .weight_decay = 0.1f}}, endpoint);
      train::Checkpoints checkpoints(trainer,
                                     {.directory = folder.path / name, .every = 100, .resume = true});
      trainer.fit(training, {.epochs = 3, .steps = steps, .log = nullptr, .keeper = &checkpoints});
      if (trainer.rank() == 0) values = trainer.parameters()["conv.weight"].values();
    });
    return values;
  };
  const auto whole = trained(2, 0, "whole");
  trained(2, 5, "halves");
  CHECK(trained(2, 0, "halves") == whole);
  // Dead taps are not sharded: each rank has all of them.
  trained(1, 5, "elsewhere");
  CHECK(largest_difference(trained(3, 0, "elsewhere"), whole) < 1e-5f);
}

TEST_CASE("a fit whose results are late keeps what they report, and resumes with the same bits") {
  using Staged = comm::Staged<comm::Ring<Threads>, remote_test::Remote>;
  using Late = Trainer<Normed, optim::Adam, Staged, remote_test::RemoteExec>;
  const TemporaryFolder folder;
  Left whole, resumed;
  for (const std::int64_t killed_after : {-1, 8, -2}) try {
      Threads::World(2).run([&](Threads endpoint) {
        Late trainer({.batch = 6, .optimizer = {.lr = 0.02f}}, endpoint);
        train::Checkpoints checkpoints(trainer,
                                       {.directory = folder.path / (killed_after == -1 ? "whole" : "killed"),
                                        .every = 3,
                                        .resume = true});
        std::int64_t steps = 0;
        const auto report = trainer.fit(training, {.epochs = 3,
                                                   .validate = &testing,
                                                   .on_step =
                                                       [&](const train::StepReport&) {
                                                         if (steps++ == killed_after) throw Killed();
                                                         return train::Control::go_on;
                                                       },
                                                   .log = nullptr,
                                                   .keeper = &checkpoints});
        const auto parameters = all_parameters(trainer);
        if (trainer.rank() == 0)
          (killed_after == -1 ? whole : resumed) = {parameters, report.epochs, report.steps};
      });
      CHECK(killed_after < 0);
    } catch (const Killed&) {
      CHECK(killed_after == 8);
    }
  CHECK(whole.steps == 15);
  CHECK(resumed.steps < 15);
  CHECK(resumed.values == whole.values);
  CHECK(resumed.epochs.back().loss == whole.epochs.back().loss);
}

TEST_CASE("the weights of the newest checkpoint are loaded by a trainer with another optimizer") {
  const TemporaryFolder folder;
  const Left left = fit<AllReduce>({.ranks = 1, .checkpoints = {.directory = folder.path}, .epochs = 1});
  Trainer<Normed, optim::Sgd, comm::None, Reference<float>> other({.batch = 10});
  CHECK(train::Checkpoints(other, {.directory = folder.path / "none"}).newest() == fs::path());
  train::Checkpoints checkpoints(other, {.directory = folder.path});
  CHECK(checkpoints.newest() == folder.path / "step-9");
  train::load_weights(other, checkpoints.newest() / "model.safetensors");
  std::vector<float> values = all_parameters(other);
  values.insert(values.end(), other.exec().statistics().begin(), other.exec().statistics().end());
  CHECK(values == left.values);
}

TEST_CASE("a loop that only restores, and keeps checkpoints later, makes the folder its own when it keeps") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path, .resume = true};
  using Alone = Trainer<Normed, optim::Adam, comm::None, Reference<float>>;
  {
    Alone trainer({.batch = 10});
    train::Checkpoints checkpoints(trainer, options);
    trainer.fit(training, {.epochs = 1, .log = nullptr, .keeper = &checkpoints});
  }
  Alone trainer({.batch = 10});
  train::Checkpoints checkpoints(trainer, options);
  const auto at = checkpoints.restore();
  REQUIRE(at);
  CHECK(at->next_row == 50);
  CHECK(trainer.steps_done() == 5);
  checkpoints.keep({.epoch = 1});  // has been kept
  trainer.fit(training, {.epochs = 1, .log = nullptr});
  checkpoints.keep({.epoch = 2});
  CHECK_THROWS_AS(train::Checkpoints(trainer, options).resume(), CheckpointError);  // locked
  checkpoints.finish();
  CHECK(checkpoints.newest() == folder.path / "step-10");
  Alone last({.batch = 10});
  CHECK(train::Checkpoints(last, options).resume().epoch == 2);
  CHECK(all_parameters(last) == all_parameters(trainer));
}

TEST_CASE(
    "a fit resumes where a loop of the user's own has stopped, within an epoch or behind its last row") {
  using Alone = Trainer<Plain, optim::Adam, comm::None, Reference<float>>;
  const auto loop = [](Alone& trainer, int steps) {
    const train::Binding binding{trainer.plan, training.fields()};
    data::Loader loader{training, {.batch = 10}};
    std::int64_t row = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      row = 0;
      loader.start(epoch);
      while (const data::Batch* rows = loader.next()) {
        trainer.step(binding.view(*rows), rows->global_rows);
        row += rows->global_rows;
        if (--steps == 0) return row;
      }
    }
    return row;
  };
  Alone whole({.batch = 10});
  loop(whole, 10);
  for (const int steps : {7, 10}) {
    CAPTURE(steps);
    const TemporaryFolder folder;
    Alone stopped({.batch = 10}), resumed({.batch = 10});
    train::Checkpoints kept(stopped, {.directory = folder.path});
    kept.keep({.epoch = 1, .next_row = loop(stopped, steps)});
    kept.finish();
    train::Checkpoints checkpoints(resumed, {.directory = folder.path, .resume = true});
    const auto fit = resumed.fit(training, {.epochs = 2, .log = nullptr, .keeper = &checkpoints});
    CHECK(resumed.steps_done() == 10);
    CHECK(all_parameters(resumed) == all_parameters(whole));
    REQUIRE(fit.epochs.size() == 1);
    CHECK(std::isnan(fit.epochs[0].loss) == (steps == 10));  // known for the steps of the fit alone
  }
}

TEST_CASE("asking for the newest checkpoint while one is being written does not disturb the fit") {
  const TemporaryFolder folder;
  Trainer<Normed, optim::Adam, comm::None, Reference<float>> trainer({.batch = 10});
  train::Checkpoints checkpoints(trainer, {.directory = folder.path});
  trainer.fit(training, {.epochs = 4,
                         .on_epoch =
                             [&](const train::EpochReport& epoch) {
                               const fs::path newest = checkpoints.newest();
                               CHECK((newest.empty() || newest.filename().string().starts_with("step-")));
                               return epoch.epoch == 2 ? train::Control::stop : train::Control::go_on;
                             },
                         .log = nullptr,
                         .keeper = &checkpoints});
  CHECK(checkpoints.newest() == folder.path / "step-15");
}
