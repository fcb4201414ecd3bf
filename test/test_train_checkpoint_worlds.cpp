// TIMEOUT: 300
// Checkpoints in other worlds: of another size, with servers, and with workers that are not in step.
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"
#include "train_checkpoints.hpp"

using namespace convoy;
using namespace train_test;

namespace {

using Stale = comm::ParameterServer<Threads, comm::Stale<1>, 2, comm::Placement::beside>;

}  // namespace

TEST_CASE("a world of another size resumes at the next row, unless its exchange carries state") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path, .every = 3, .resume = true};
  CHECK_THROWS_AS(fit<Sharded>({.ranks = 2, .killed_after = 8, .checkpoints = options}), Killed);
  // A global batch of 12 rows, by three ranks and by one.
  const Left three = fit<Sharded>({.ranks = 3, .checkpoints = options, .batch = 4});
  CHECK(three.steps >= 6);
  CHECK(three.steps <= 9);
  const Left one = fit<Sharded>({.ranks = 1, .checkpoints = options, .batch = 12});
  CHECK(one.steps == 0);
  CHECK(one.values.size() == three.values.size());

  const train::CheckpointOptions other{.directory = folder.path / "int8", .every = 3, .resume = true};
  fit<Encoded>({.ranks = 2, .checkpoints = other, .epochs = 1});
  try {
    fit<Encoded>({.ranks = 3, .checkpoints = other, .batch = 4});
    FAIL("error feedback of two ranks was given to three");
  } catch (const CheckpointError& error) {
    CHECK(std::string(error.what())
              .find("was written by 2 ranks with 2 workers; the state of a rank's exchange (") !=
          std::string::npos);
  }
}

TEST_CASE("the state of servers resumes on any number of servers, among the workers or beside them") {
  const TemporaryFolder folder;
  const Left whole = fit<Served>({.checkpoints = {.directory = folder.path / "whole"}, .clip = 0});
  const train::CheckpointOptions options{.directory = folder.path / "killed", .every = 3, .resume = true};
  CHECK_THROWS_AS(fit<Beside>({.ranks = 4, .killed_after = 5, .checkpoints = options, .clip = 0}), Killed);
  CHECK_THROWS_AS(fit<Served>({.killed_after = 5, .checkpoints = options, .clip = 0}), Killed);
  const Left resumed = fit<Beside>({.ranks = 4, .checkpoints = options, .clip = 0});
  CHECK(resumed.steps < 10);
  // In a world of another size, running statistics resume as their mean over all workers.
  const auto parameters = [](const Left& left) {
    return std::vector<float>(left.values.begin(), left.values.end() - Made<Served>::plan.sizes.statistics);
  };
  CHECK(parameters(resumed) == parameters(whole));

  // The same number of ranks, but other workers: they start from the mean too.
  Threads::World(4).run([&](Threads endpoint) {
    Made<AllReduce> trainer(config_of<AllReduce>({.batch = 3, .clip = 0}), endpoint);
    train::Checkpoints checkpoints(trainer, options);
    checkpoints.resume();
    const auto own = trainer.exec().statistics();
    std::vector<float> least(own.begin(), own.end()), most = least;
    trainer.comm().all_reduce(std::span<float>(least), comm::min);
    trainer.comm().all_reduce(std::span<float>(most), comm::max);
    CHECK(least == most);
  });
}

TEST_CASE("a user's own loop keeps what servers beside the workers have, and resumes") {
  const TemporaryFolder folder;
  const auto parameters = [&](const fs::path& path, std::vector<int> epochs_of_runs) {
    std::vector<float> result;
    for (const int epochs : epochs_of_runs)
      Threads::World(4).run([&](Threads endpoint) {
        Made<Beside> trainer(config_of<Beside>({}), endpoint, comm::Options{.deadline = Seconds(20)});
        const train::Binding binding{trainer.plan, training.fields()};
        train::Checkpoints checkpoints(trainer, {.directory = path, .resume = true});
        for (std::int64_t epoch = checkpoints.resume().epoch; epoch < epochs; ++epoch) {
          trainer.with_servers([&] {
            data::Loader loader{training, {.batch = 5, .shard = {trainer.rank(), trainer.workers()}}};
            loader.start(epoch);
            while (const data::Batch* rows = loader.next())
              trainer.step(binding.view(*rows), rows->global_rows);
          });
          checkpoints.keep({.epoch = epoch + 1});
        }
        checkpoints.finish();
        const std::vector<float> values = all_parameters(trainer);
        if (trainer.rank() == 0) result = values;
      });
    return result;
  };
  CHECK(parameters(folder.path / "stopped", {1, 3}) == parameters(folder.path / "whole", {3}));
}

TEST_CASE("workers that are not in step meet for a checkpoint, which holds the steps of all of them") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path, .every = 4, .keep = 9, .resume = true};
  CHECK_THROWS_AS(fit<Stale>({.ranks = 4, .killed_after = 10, .checkpoints = options}), Killed);
  const Left resumed = fit<Stale>({.ranks = 4, .checkpoints = options});
  CHECK(resumed.steps < 12);
  for (const int step : {4, 8, 12, 15}) {
    const io::Safetensors training(folder.path / concat("step-", step) / "training.safetensors");
    CHECK(training.read_number("steps") == step);
    CHECK(training.read_number("exchange.updates") == 2 * step);
    CHECK(training.read_number("fit.epoch") == (step - 1) / 5);
  }
}

TEST_CASE("servers beside workers continue the schedule in a second fit, and report the steps they skipped") {
  const auto trained = [](auto type, int ranks) {
    std::vector<float> values;
    Threads::World(ranks).run([&](Threads endpoint) {
      Made<typename decltype(type)::type> trainer({.batch = 6, .schedule = {.warmup = 9}}, endpoint);
      for (int fit = 0; fit < 2; ++fit) trainer.fit(training, {.log = nullptr});
      if (trainer.rank() == 0) values = all_parameters(trainer);
      CHECK(trainer.steps_done() == 10);
    });
    return values;
  };
  CHECK(trained(std::type_identity<Beside>(), 4) == trained(std::type_identity<Served>(), 2));

  struct Skips {
    std::int64_t number;
    void tensor(std::string_view, const Shape&, std::span<float>) {}
    void counter(std::string_view name, std::int64_t& value) {
      if (name == "skipped") std::swap(value, number);
    }
    void real(std::string_view, double&) {}
  };
  Threads::World(4).run([](Threads endpoint) {
    Made<Beside> trainer({.batch = 6, .guard = {.skip_not_finite = true}}, endpoint);
    trainer.visit_state(Skips{endpoint.rank() < 2 ? 0 : 3}, train::Visit::write);
    Skips seen{0};
    trainer.visit_state(seen, train::Visit::read);
    CHECK(seen.number == 3);
  });
}

TEST_CASE("a schedule follows the epochs, not the number of steps, where a world of another size resumes") {
  // 50 rows: 5 steps an epoch on 2 ranks of 6 rows, 3 on 4 ranks, 9 on 1.
  static constexpr int steps_of[] = {0, 9, 5, 0, 3};
  const auto rates = [](const fs::path& path, int ranks, int epochs) {
    std::vector<float> seen;
    Threads::World(ranks).run([&](Threads endpoint) {
      Made<AllReduce> trainer({.batch = 6,
                               .optimizer = {.lr = 1.0f},
                               .schedule = {.decay = optim::Decay::linear, .total = 4 * steps_of[ranks]}},
                              endpoint);
      train::Checkpoints checkpoints(trainer, {.directory = path, .resume = true});
      trainer.fit(training, {.epochs = epochs,
                             .on_step =
                                 [&](const train::StepReport& step) {
                                   if (trainer.rank() == 0) seen.push_back(step.lr);
                                   return train::Control::go_on;
                                 },
                             .log = nullptr,
                             .keeper = &checkpoints});
    });
    return seen;
  };
  const TemporaryFolder folder;
  for (const int other : {1, 4}) {
    const fs::path path = folder.path / concat(other);
    CHECK(rates(path, 2, 2).front() == 1.0f);
    CHECK(rates(path, other, 3).front() == doctest::Approx(0.5));
    // A checkpoint in steps of two sizes.
    const auto last = rates(path, 2, 4);
    REQUIRE(last.size() == 5);
    CHECK(last.front() == doctest::Approx(0.25));
    CHECK(last.back() == doctest::Approx(0.05));
  }
}

TEST_CASE("ranks that each read the whole set resume at the next row in a world of another size") {
  const auto steps = [](const fs::path& path, int ranks, std::int64_t limit) {
    std::int64_t made = 0;
    Threads::World(ranks).run([&](Threads endpoint) {
      Made<AllReduce> trainer({.batch = 5, .unsharded = true}, endpoint);
      train::Checkpoints checkpoints(trainer, {.directory = path, .every = 100, .resume = true});
      const auto report =
          trainer.fit(training, {.epochs = 1, .steps = limit, .log = nullptr, .keeper = &checkpoints});
      if (trainer.rank() == 0) made = report.steps;
    });
    return made;
  };
  const TemporaryFolder folder;
  for (const auto& [from, to] : {std::pair(4, 1), std::pair(1, 4)}) {
    const fs::path path = folder.path / concat(from);
    CHECK(steps(path, from, 3) == 3);
    CHECK(steps(path, to, 0) == 7);
  }
}
