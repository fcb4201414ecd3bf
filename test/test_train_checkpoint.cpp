// TIMEOUT: 300
// Checkpoints: a killed fit resumes with the same bits, with every exchange; damaged or foreign files are
// refused.
#include <atomic>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "remote_exec.hpp"
#include "sanitized.hpp"
#include "train_exchanges.hpp"
#include "train_support.hpp"
#include <convoy/comm/policy/staged.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/optim/lamb.hpp>
#include <convoy/train/checkpoint.hpp>
#include <convoy/train/weights.hpp>

using namespace convoy;
using namespace train_test;
using exec::Reference;
namespace fs = std::filesystem;

namespace {

using Beside = comm::ParameterServer<Threads, comm::Sync, 2, comm::Placement::beside>;
using Async = comm::ParameterServer<Threads, comm::Async, 1, comm::Placement::beside>;
using Stale = comm::ParameterServer<Threads, comm::Stale<1>, 2, comm::Placement::beside>;

template <class Comm>
using Made = Trainer<Normed, optim::Adam, Comm, Reference<float>>;

/// A folder for one test, removed at its end.
struct Folder {
  fs::path path = fs::temp_directory_path() / concat("convoy-checkpoint-", static_cast<int>(getpid()));
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
};

struct Killed {};

struct Run {
  int ranks = 2;
  std::int64_t killed_after = -1;  ///< steps; -1: never
  train::CheckpointOptions checkpoints = {};
  int batch = 6;
  int epochs = 3;
  float clip = 0.5f;  ///< if the exchange can decide
};

/// Two workers, or one if the order in which gradients arrive would change the bits.
template <class Comm>
Run run_of() {
  if constexpr (std::is_same_v<Comm, Beside>) return {.ranks = 4};
  if constexpr (std::is_same_v<Comm, Async>) return {.ranks = 2, .batch = 12};
  return {};
}

/// The results of a fit: all parameters, then rank 0's statistics, and the reports of its epochs.
struct Left {
  std::vector<float> values;
  std::vector<train::EpochReport> epochs;
  std::int64_t steps = 0;
};

const Blobs training(50), testing(20, 8);

template <class Comm>
typename Made<Comm>::Config config_of(const Run& run) {
  return {.batch = run.batch,
          .optimizer = {.lr = 0.02f},
          .schedule = {.warmup = 9},
          .guard = {.max_norm = Comm::decides() ? run.clip : 0},
          .seed = 5};
}

template <class Comm>
Left fit(const Run& run) {
  Left left;
  Threads::World(run.ranks).run([&](Threads endpoint) {
    Made<Comm> trainer(config_of<Comm>(run), endpoint, comm::Options{.deadline = Seconds(20)});
    train::Checkpoints checkpoints(trainer, run.checkpoints);
    std::int64_t steps = 0;
    const auto report = trainer.fit(training, {.epochs = run.epochs,
                                               .validate = &testing,
                                               .on_step =
                                                   [&](const train::StepReport&) {
                                                     if (steps++ == run.killed_after) throw Killed();
                                                     return train::Control::go_on;
                                                   },
                                               .log = nullptr,
                                               .keeper = &checkpoints});
    const auto parameters = all_parameters(trainer);
    const std::vector<float> statistics(trainer.exec().statistics().begin(),
                                        trainer.exec().statistics().end());
    if (trainer.rank() != 0) return;
    left = {parameters, report.epochs, report.steps};
    left.values.insert(left.values.end(), statistics.begin(), statistics.end());
  });
  return left;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != ".lock") names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Writes a file of tensors anew, without its metadata; the last tensor by name is called `last`, unless that
/// is empty.
void rewrite(const fs::path& path, const std::string& last = {}) {
  io::SafetensorsWriter anew;
  {
    const io::Safetensors file(path);
    for (const auto& [name, tensor] : file.tensors()) {
      const std::string to = last.empty() || name != file.tensors().rbegin()->first ? name : last;
      if (tensor.dtype == "I64") {
        anew.add_number(to, file.read_number(name));
        continue;
      }
      Shape shape;
      for (const std::int64_t extent : tensor.shape) shape.extent[shape.rank++] = static_cast<int>(extent);
      std::vector<float> values(static_cast<std::size_t>(tensor.elements));
      file.read(name, shape, values);
      anew.add(to, shape, values);
    }
  }
  anew.write(path);
}

/// What a rank has of the state of a training.
class Seen {
 public:
  void tensor(std::string_view, const Shape&, std::span<float> values) {
    numbers.insert(numbers.end(), values.begin(), values.end());
  }
  void counter(std::string_view, std::int64_t& number) { numbers.push_back(static_cast<double>(number)); }
  std::vector<double> numbers;
};

}  // namespace

TEST_CASE_TEMPLATE("a killed fit resumes with the same bits", Comm, AllReduce, Sharded, Encoded, Served,
                   Beside, Async) {
  const Folder folder;
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
  const Folder folder;
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
  const Folder folder;
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
  const Folder folder;
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
  const Folder folder;
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
  const Folder folder;
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
  const Folder folder;
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
  const Folder folder;
  const auto epochs = [&](int patience) {
    Trainer<Normed, optim::Adam, comm::None, Reference<float>> trainer({.batch = 10, .optimizer = {.lr = 0}});
    train::Checkpoints checkpoints(trainer, {.directory = folder.path, .resume = true});
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

TEST_CASE("a fit that reached its accuracy makes no more steps when it is resumed, except to a higher one") {
  const Folder folder;
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
  const Folder folder;
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

TEST_CASE("a world of another size resumes at the next row, unless its exchange carries state") {
  const Folder folder;
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
              .find("was written by 2 ranks, of which 2 are workers; the state of a rank's exchange (") !=
          std::string::npos);
  }
}

TEST_CASE("the state of servers resumes on any number of servers, among the workers or beside them") {
  const Folder folder;
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

TEST_CASE("workers that are not in step meet for a checkpoint, which holds the steps of all of them") {
  const Folder folder;
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

TEST_CASE("neither servers beside workers nor workers wait for a rank that refuses a checkpoint") {
  const Folder folder;
  const train::CheckpointOptions options{.directory = folder.path, .every = 4, .resume = true};
  CHECK_THROWS_AS(fit<Beside>({.ranks = 4, .killed_after = 7, .checkpoints = options}), Killed);
  for (const int rank : {1, 3}) {
    const fs::path file = folder.path / "step-4" / concat("rank-", rank, ".safetensors");
    const std::uintmax_t size = fs::file_size(file);
    fs::resize_file(file, size - 1);
    const Stopwatch watch;
    try {
      fit<Beside>({.ranks = 4, .checkpoints = options});
      FAIL("a damaged file was read");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find(file.string()) != std::string::npos);
    }
    CHECK(watch.seconds() < 10);
    fs::resize_file(file, size);
  }
  const auto refusal = [&](bool server_keeps, auto&& on_epoch) {
    try {
      Threads::World(4).run([&](Threads endpoint) {
        Made<Beside> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
        train::Checkpoints checkpoints(trainer, {.directory = folder.path / "other"});
        const bool keeps = trainer.rank() < 2 || server_keeps;
        trainer.fit(training, {.on_epoch =
                                   [&](const train::EpochReport&) {
                                     on_epoch(trainer);
                                     return train::Control::go_on;
                                   },
                               .log = nullptr,
                               .keeper = keeps ? &checkpoints : nullptr});
      });
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal(false, [](auto&) {}) == "rank 2 differs from rank 0 in fit.keeper: none instead of given");
  CHECK(refusal(true,
                [](auto& trainer) {
                  train::Snapshot snapshot;
                  trainer.visit_state(snapshot, train::Visit::read);
                }) ==
        "comm \"ps\": its server ranks take part in no other exchange until they are dismissed, as at a "
        "checkpoint and at the end of a fit");
  // The workers alone can save weights meanwhile.
  fs::remove_all(folder.path / "other");
  CHECK(refusal(true, [&](auto& trainer) { train::save_weights(trainer, folder.path / "weights"); }) == "");
  CHECK(fs::exists(folder.path / "weights"));
}

TEST_CASE("ranks whose checkpoints would differ say so on all ranks, and in what") {
  std::string said[2];
  Threads::World(2).run([&](Threads endpoint) {
    Made<AllReduce> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
    const bool second = endpoint.rank() == 1;
    const auto refusal = [&](const train::CheckpointOptions& options) {
      try {
        train::Checkpoints checkpoints(trainer, options);
      } catch (const ConfigError& error) {
        return concat(error.what(), "\n");
      }
      return std::string();
    };
    said[endpoint.rank()] = refusal({.directory = "nowhere", .every = second ? 5 : 4}) +
                            refusal({.directory = "nowhere", .resume = second});
  });
  for (const std::string& sentences : said)
    CHECK(sentences ==
          "rank 1 differs from rank 0 in checkpoint.every: 5 instead of 4\n"
          "rank 1 differs from rank 0 in checkpoint.resume: true instead of false\n");
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
  };
  Threads::World(4).run([](Threads endpoint) {
    Made<Beside> trainer({.batch = 6, .guard = {.skip_not_finite = true}}, endpoint);
    trainer.visit_state(Skips{endpoint.rank() < 2 ? 0 : 3}, train::Visit::write);
    Skips seen{0};
    trainer.visit_state(seen, train::Visit::read);
    CHECK(seen.number == 3);
  });
}

TEST_CASE("checkpoints that do not fit or are damaged are refused in one sentence") {
  const Folder folder;
  const train::CheckpointOptions options{.directory = folder.path, .resume = true};
  fit<AllReduce>({.ranks = 1, .checkpoints = options, .epochs = 1});
  const fs::path step = folder.path / "step-9";
  REQUIRE(fs::exists(step));
  const auto refusal = [&] {
    try {
      fit<AllReduce>({.ranks = 1, .checkpoints = options});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Trainer<Normed, optim::Sgd, comm::None, Reference<float>> other({.optimizer = {.momentum = 0.9f}});
  train::Checkpoints foreign(other, options);
  CHECK_THROWS_WITH_AS(
      other.fit(training, {.log = nullptr, .keeper = &foreign}),
      concat(step.string(), " was written with the optimizer adam, but this trainer has sgd").c_str(),
      CheckpointError);
  CHECK_THROWS_WITH_AS(
      fit<Served>({.ranks = 1, .checkpoints = options}),
      concat((step / "training.safetensors").string(),
             " has no exchange.updates, which this trainer's exchange needs; resume with the "
             "exchange that the checkpoint was written with")
          .c_str(),
      CheckpointError);
  fs::resize_file(step / "model.safetensors", fs::file_size(step / "model.safetensors") - 1);
  CHECK(refusal().find("model.safetensors: the tensor '") != std::string::npos);
  fs::remove(step / "model.safetensors");
  CHECK(refusal() == (step / "model.safetensors").string() + " cannot be read: No such file or directory");
  CHECK_THROWS_AS(train::Checkpoints(other, {.directory = ""}), ConfigError);
  CHECK_THROWS_AS(train::Checkpoints(other, {.directory = "x", .keep = 0}), ConfigError);
}

TEST_CASE("ranks whose checkpoint is damaged on one of them change nothing, and all say which file it is") {
  const Folder folder;
  const train::CheckpointOptions options{.directory = folder.path, .resume = true};
  fit<AllReduce>({.checkpoints = options, .epochs = 1});
  for (const char* const name : {"rank-1.safetensors", "training.safetensors"}) {
    const fs::path file = folder.path / "step-5" / name;
    fs::copy_file(file, folder.path / "sound");
    rewrite(file, "lost");
    Threads::World(2).run([&](Threads endpoint) {
      Made<AllReduce> trainer(config_of<AllReduce>({}), endpoint, comm::Options{.deadline = Seconds(20)});
      train::Checkpoints checkpoints(trainer, options);
      Seen before, after;
      trainer.visit_state(before, train::Visit::read);
      std::string said;
      try {
        checkpoints.restore();
      } catch (const Error& error) {
        said = error.what();
      }
      CHECK(said.find(file.string()) != std::string::npos);
      trainer.visit_state(after, train::Visit::read);
      CHECK(after.numbers == before.numbers);
    });
    fs::rename(folder.path / "sound", file);
  }
  CHECK(fit<AllReduce>({.checkpoints = options, .epochs = 2}).steps == 5);
}

TEST_CASE("a resumed fit lists the options that have changed, and refuses another order of an epoch's rows") {
  using Alone = Trainer<Normed, optim::Adam, comm::None, Reference<float>>;
  const Folder folder;
  const train::CheckpointOptions options{.directory = folder.path, .resume = true};
  const Alone::Config config{.batch = 10, .optimizer = {.lr = 0.02f}, .seed = 5};
  const auto resume = [&](const Alone::Config& its, const Blobs& set = training) {
    Alone trainer(its);
    train::Checkpoints checkpoints(trainer, options);
    trainer.fit(set, {.epochs = 2, .steps = 3, .log = nullptr, .keeper = &checkpoints});
    return checkpoints.changed();
  };
  CHECK(resume(config).empty());
  CHECK(resume(config).empty());
  Alone::Config changed = config;
  changed.batch = 5;
  changed.optimizer.lr = 0.03f;
  changed.schedule.milestones = {4, 7};
  std::string texts;
  for (const auto& [name, was, is] : resume(changed)) texts += concat(name, ": ", was, " -> ", is, "; ");
  CHECK(texts == "optimizer.lr: 0.02 -> 0.03; batch: 10 -> 5; schedule.milestones: [] -> [4, 7]; ");

  const std::string step = (folder.path / "step-3").string();
  Alone::Config seeded = config, whole = config;
  seeded.seed = 6;
  whole.unsharded = true;
  CHECK_THROWS_WITH_AS(resume(seeded),
                       concat(step,
                              " was written with seed 5, but this trainer has 6, by which the rows of an "
                              "epoch come in another order; resume with seed 5")
                           .c_str(),
                       CheckpointError);
  CHECK_THROWS_WITH_AS(resume(whole),
                       concat(step,
                              " was written with unsharded false, but this trainer has true, by which the "
                              "rows of an epoch come in another order; resume with unsharded false")
                           .c_str(),
                       CheckpointError);
  CHECK_THROWS_WITH_AS(
      resume(config, Blobs(51)),
      "fit: the fit to resume had a training set of 50 samples and this one has 51, whose order "
      "is another; resume with the same set, or begin a new fit",
      ConfigError);
}

TEST_CASE("the weights of the newest checkpoint are loaded by a trainer with another optimizer") {
  const Folder folder;
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

TEST_CASE("checkpoints that do not name their optimizer are read") {
  const Folder folder;
  const train::CheckpointOptions options{.directory = folder.path, .resume = true};
  fit<AllReduce>({.ranks = 1, .checkpoints = options, .epochs = 1});
  const fs::path file = folder.path / "step-9" / "training.safetensors";
  rewrite(file);
  REQUIRE(io::Safetensors(file).metadata().empty());
  Trainer<Normed, optim::Sgd, comm::None, Reference<float>> other({.batch = 10});
  train::Checkpoints foreign(other, options);
  CHECK_THROWS_WITH_AS(
      other.fit(training, {.log = nullptr, .keeper = &foreign}),
      concat(file.string(), " has no tensor 'optimizer.momentum_buffer.linear.0.weight'").c_str(),
      CheckpointError);
  const Left rest = fit<AllReduce>({.ranks = 1, .checkpoints = options});
  CHECK(rest.values ==
        fit<AllReduce>({.ranks = 1, .checkpoints = {.directory = folder.path / "whole"}}).values);
}

TEST_CASE("a folder that cannot be made or written ends the fit with the reason, before the first step") {
  Trainer<Normed, optim::Adam, comm::None, Reference<float>> trainer({.batch = 10});
  const auto refused = [&](const char* folder, const std::string& reason) {
    train::Checkpoints checkpoints(trainer, {.directory = folder, .every = 1});
    try {
      trainer.fit(training, {.log = nullptr, .keeper = &checkpoints});
      FAIL("nothing was written and nothing was said");
    } catch (const CheckpointError& error) {
      CHECK(std::string(error.what()).starts_with(reason));
    }
    CHECK(trainer.steps_done() == 0);
  };
  refused("/proc/none", "/proc/none cannot be made: ");
  const Folder links;
  fs::create_directories(links.path);
  const std::string circle = links.path / "circle";
  fs::create_symlink(circle, circle);  // could hold checkpoints, but cannot be read, not even by root
  refused(circle.c_str(), circle + " cannot be read: ");
  // The folder exists, and not even root can write there.
  refused("/proc/self", "/proc/self/rank-0.safetensors cannot be written: ");
}

TEST_CASE("a folder that one rank cannot use ends the fit of all ranks with that rank's reason") {
  const Folder folder;
  fs::create_directories(folder.path);
  const std::string circle = folder.path / "circle", beside = folder.path / "beside";
  fs::create_symlink(circle, circle);  // cannot be read, and rank 0 alone looks for the newest checkpoint
  const auto refused = [&](int culprit, const std::string& unusable, const std::string& reason) {
    Threads::World(3).run([&](Threads endpoint) {
      Made<AllReduce> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
      const bool mine = trainer.rank() == culprit;
      train::Checkpoints checkpoints(trainer, {.directory = mine ? unusable : beside});
      std::string told;
      try {
        trainer.fit(training, {.log = nullptr, .keeper = &checkpoints});
      } catch (const CheckpointError& error) {
        told = mine ? error.what() : "";
      } catch (const ConfigError& error) {
        told = mine ? "" : error.what();
      }
      CHECK(
          told.starts_with(mine ? reason : concat("checkpoint is refused by rank ", culprit, ": ", reason)));
      CHECK(trainer.steps_done() == 0);
      CHECK(trainer.evaluate(testing).rows == 20);
    });
    if (fs::exists(beside)) CHECK(names_in(beside).empty());
  };
  for (const int culprit : {0, 1}) refused(culprit, "/proc/none", "/proc/none cannot be made: ");
  refused(0, circle, circle + " cannot be read: ");
}

TEST_CASE("a folder to which another fit writes is refused, until that fit has ended") {
  const Folder folder;
  const auto train_on = [&](Threads endpoint, const std::function<void()>& within) {
    Made<AllReduce> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
    train::Checkpoints checkpoints(trainer, {.directory = folder.path, .resume = true});
    trainer.fit(training, {.on_epoch =
                               [&](const train::EpochReport&) {
                                 within();
                                 return train::Control::stop;
                               },
                           .log = nullptr,
                           .keeper = &checkpoints});
    within();
    return trainer.steps_done();
  };
  const std::string reason = "checkpoint: another run, which has locked " + (folder.path / ".lock").string() +
                             ", writes to this folder; end that run, or choose another folder";
  bool refused = false;
  Threads::World(2).run([&](Threads endpoint) {
    train_on(endpoint, [&, rank = endpoint.rank(), calls = 0]() mutable {
      if (rank != 0) return;
      std::vector<std::string> told(2);
      Threads::World(2).run([&](Threads other) {
        try {
          train_on(other, [] {});
        } catch (const Error& error) {
          told[static_cast<std::size_t>(other.rank())] = error.what();
        }
      });
      refused = calls++ == 0;
      CHECK(told[0] == (refused ? reason : ""));
      CHECK(told[1] == (refused ? "checkpoint is refused by rank 0: " + reason : ""));
    });
  });
  CHECK(!refused);  // after the fit
}

TEST_CASE_TEMPLATE("a rank that cannot write its files of a checkpoint is not waited for until the deadline",
                   Comm, AllReduce, Sharded) {
  const Folder folder;
  const fs::path partial = folder.path / "step-2.partial";
  const std::string file =
      partial / (std::is_same_v<Comm, Sharded> ? "rank-1.shard.safetensors" : "rank-1.safetensors");
  std::vector<std::string> told(2);
  Threads::World(2).run([&](Threads endpoint) {
    Made<Comm> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
    train::Checkpoints checkpoints(trainer, {.directory = folder.path, .every = 2, .deadline = Seconds(60)});
    const auto on_step = [&](const train::StepReport& step) {
      if (step.step == 0) fs::create_directories(file + ".part");  // where it is written
      return train::Control::go_on;
    };
    try {
      trainer.fit(training, {.epochs = 2, .on_step = on_step, .log = nullptr, .keeper = &checkpoints});
    } catch (const CheckpointError& error) {
      told[static_cast<std::size_t>(trainer.rank())] = error.what();
    }
  });
  CHECK(told[0] == "checkpoint: rank 1 could not write " + file);
  CHECK(told[1] == file + " cannot be written: Is a directory");
  CHECK(names_in(folder.path) == std::vector<std::string>{"step-2.partial"});
}

TEST_CASE("a folder with the name of a negative step is no checkpoint") {
  const Folder folder;
  fs::create_directories(folder.path / "step--5");
  fs::create_directories(folder.path / "step--6.partial");
  const train::CheckpointFolder checkpoints({.directory = folder.path}, 0, 1);
  CHECK(checkpoints.newest() == -1);
  fit<AllReduce>({.ranks = 1, .checkpoints = {.directory = folder.path, .keep = 1}, .epochs = 2});
  CHECK(fs::exists(folder.path / "step--5"));
  CHECK(fs::exists(folder.path / "step--6.partial"));
}

TEST_CASE("ranks that do not see one folder end before the first step, and leave no mark") {
  const Folder folder;
  Threads::World(3).run([&](Threads endpoint) {
    Made<AllReduce> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
    const fs::path own = folder.path / (trainer.rank() == 1 ? "one" : "other");
    train::Checkpoints checkpoints(trainer, {.directory = own, .deadline = Seconds(0.2)});
    CHECK_THROWS_WITH_AS(trainer.fit(training, {.log = nullptr, .keeper = &checkpoints}),
                         concat("checkpoint: rank 1 does not see the folder ", own.string(),
                                " of rank 0; the folder must be one that all ranks see")
                             .c_str(),
                         CheckpointError);
    CHECK(trainer.steps_done() == 0);
  });
  for (const char* own : {"one", "other"}) CHECK(names_in(folder.path / own).empty());
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
  const Folder folder;
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
  const Folder folder;
  for (const auto& [from, to] : {std::pair(4, 1), std::pair(1, 4)}) {
    const fs::path path = folder.path / concat(from);
    CHECK(steps(path, from, 3) == 3);
    CHECK(steps(path, to, 0) == 7);
  }
}

TEST_CASE("a fit whose results are late keeps what they report, and resumes with the same bits") {
  using Staged = comm::Staged<comm::Ring<Threads>, remote_test::Remote>;
  using Late = Trainer<Normed, optim::Adam, Staged, remote_test::RemoteExec>;
  const Folder folder;
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
