// TIMEOUT: 300
// Checkpoints and folders that are refused: damaged, foreign, or not the same on all ranks.
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "sanitized.hpp"
#include "temporary_folder.hpp"
#include "train_checkpoints.hpp"
#include <convoy/core/file.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/weights.hpp>

using namespace convoy;
using namespace train_test;

namespace {

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
  void real(std::string_view, double& number) { numbers.push_back(number); }
  std::vector<double> numbers;
};

}  // namespace

TEST_CASE("neither servers beside workers nor workers wait for a rank that refuses a checkpoint") {
  const TemporaryFolder folder;
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
        "checkpoint and at the end of a fit that no exception ends");
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

TEST_CASE("checkpoints that do not fit or are damaged are refused in one sentence") {
  const TemporaryFolder folder;
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

TEST_CASE("numbers that no training has are refused by name before anything is restored") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path, .resume = true};
  fit<AllReduce>({.ranks = 1, .checkpoints = options, .epochs = 1});
  const fs::path file = folder.path / "step-9" / "training.safetensors";
  fs::copy_file(file, folder.path / "sound");
  Trainer<Normed, optim::Adam, comm::None, Reference<float>> trainer({.batch = 6, .seed = 5});
  train::Checkpoints checkpoints(trainer, options);
  const auto expect_refusal = [&](const std::string& name, std::int64_t number, const std::string& reason) {
    CAPTURE(name);
    const io::Safetensors sound(folder.path / "sound");
    const auto tensor = sound.tensors().find(name);
    REQUIRE(tensor != sound.tensors().end());
    std::string bytes = read_file(folder.path / "sound");
    std::uint64_t header = 0;  // its length, which the file begins with
    std::memcpy(&header, bytes.data(), sizeof header);
    std::memcpy(bytes.data() + sizeof header + header + tensor->second.begin, &number, sizeof number);
    write_file(file, bytes);
    CHECK_THROWS_WITH_AS(checkpoints.restore(), (file.string() + ": " + name + reason).c_str(),
                         CheckpointError);
    CHECK(trainer.steps_done() == 0);
  };
  for (const char* const name : {"steps", "epochs_begun", "skipped", "fit.epoch", "fit.next_row", "fit.steps",
                                 "fit.rows", "fit.samples", "fit.correct", "fit.labels", "fit.waited"}) {
    expect_refusal(name, -1, " is -1, expected 0 to 281474976710656");
    expect_refusal(name, std::numeric_limits<std::int64_t>::max(),
                   " is 9223372036854775807, expected 0 to 281474976710656");
  }
  expect_refusal("schedule_lead", std::numeric_limits<std::int64_t>::min(),
                 " is -9223372036854775808, expected -281474976710656 to 281474976710656");
  const auto nan = std::bit_cast<std::int64_t>(std::numeric_limits<double>::quiet_NaN());
  for (const char* const name : {"fit.loss", "fit.best", "fit.accuracy", "lr_factor"})
    expect_refusal(name, nan, " is not a number");
  fs::rename(folder.path / "sound", file);
  checkpoints.restore();
  CHECK(trainer.steps_done() == 9);
}

TEST_CASE(
    "which numbers of a checkpoint are possible follows from how they are visited, not from their names") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path};
  fit<AllReduce>({.ranks = 1, .checkpoints = options, .epochs = 1});
  train::Restore restore(train::CheckpointFolder(options, 0, 1), 9, 1);
  double real = 0;
  restore.real("fit.best", real);
  CHECK(real == std::numeric_limits<double>::infinity());  // nothing was tested
  restore.real("steps", real);
  CHECK(real == std::bit_cast<double>(std::int64_t{9}));
  std::int64_t number = 0;
  CHECK_THROWS_WITH_AS(restore.counter("fit.best", number),
                       concat((folder.path / "step-9" / "training.safetensors").string(),
                              ": fit.best is 9218868437227405312, expected 0 to 281474976710656")
                           .c_str(),
                       CheckpointError);
  CHECK(number == 0);
}

TEST_CASE("ranks whose checkpoint is damaged on one of them change nothing, and all say which file it is") {
  const TemporaryFolder folder;
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
  const TemporaryFolder folder;
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
  // The refused fit has changed nothing, and leaves the folder to others.
  Alone trainer(config), untouched(config);
  train::Checkpoints refused(trainer, options);
  CHECK_THROWS_AS(trainer.fit(Blobs(51), {.log = nullptr, .keeper = &refused}), ConfigError);
  CHECK(trainer.steps_done() == 0);
  CHECK(all_parameters(trainer) == all_parameters(untouched));
  CHECK(resume(config).empty());
}

TEST_CASE("checkpoints that do not name their optimizer are read") {
  const TemporaryFolder folder;
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
  const TemporaryFolder links;
  fs::create_directories(links.path);
  const std::string circle = links.path / "circle";
  fs::create_symlink(circle, circle);  // could hold checkpoints, but cannot be read, not even by root
  refused(circle.c_str(), circle + " cannot be read: ");
  // The folder exists, and not even root can write there.
  refused("/proc/self", "/proc/self/rank-0.safetensors cannot be written: ");
}

TEST_CASE("a folder that one rank cannot use ends the fit of all ranks with that rank's reason") {
  const TemporaryFolder folder;
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
  const TemporaryFolder folder;
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
  const std::string reason = "checkpoint: another run, or another Checkpoints of this one, has locked " +
                             (folder.path / ".lock").string() +
                             " and writes to this folder; end it, or choose another folder";
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
  const TemporaryFolder folder;
  const fs::path partial = folder.path / "step-2.partial";
  const std::string file =
      partial / (std::is_same_v<Comm, Sharded> ? "rank-1.shard.safetensors" : "rank-1.safetensors");
  std::vector<std::string> told(3);
  Threads::World(3).run([&](Threads endpoint) {
    Made<Comm> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
    train::Checkpoints checkpoints(trainer, {.directory = folder.path, .every = 2, .deadline = Seconds(60)});
    const auto on_step = [&](const train::StepReport& step) {
      if (step.step == 0) fs::create_directories(file + ".part");  // where it is written
      return train::Control::go_on;
    };
    try {
      trainer.fit(training, {.epochs = 2, .on_step = on_step, .log = nullptr, .keeper = &checkpoints});
    } catch (const Error& error) {
      told[static_cast<std::size_t>(trainer.rank())] = error.what();
    }
  });
  CHECK(told[0] == "checkpoint: rank 1 could not write " + file);
  CHECK(told[1] == file + " cannot be written: Is a directory");
  CHECK(told[2] == "checkpoint is refused by rank 0: checkpoint: rank 1 could not write " + file);
  CHECK(names_in(folder.path).empty());
}

TEST_CASE("a checkpoint that could not be written is kept when a loop asks for it again") {
  const TemporaryFolder folder;
  const fs::path partial = folder.path / "step-0.partial";
  Threads::World(2).run([&](Threads endpoint) {
    Made<AllReduce> trainer({.batch = 6}, endpoint);
    train::Checkpoints checkpoints(trainer, {.directory = folder.path});
    checkpoints.resume();
    if (trainer.rank() == 0) fs::create_directories(partial / "rank-1.safetensors.part");  // is in the way
    trainer.comm().barrier();
    checkpoints.keep({});
    CHECK_THROWS_AS(checkpoints.finish(), Error);
    CHECK(checkpoints.newest().empty());
    checkpoints.keep({});
    checkpoints.finish();
    CHECK(checkpoints.newest() == folder.path / "step-0");
  });
  CHECK(names_in(folder.path) == std::vector<std::string>{"step-0"});
}

TEST_CASE(
    "a loop keeps again after it has finished, and not beside checkpoints that it did not resume from") {
  const TemporaryFolder folder;
  using Alone = Trainer<Normed, optim::Adam, comm::None, Reference<float>>;
  for (const bool resume : {false, true}) {
    CAPTURE(resume);
    const train::CheckpointOptions options{.directory = folder.path / (resume ? "b" : "a"), .resume = resume};
    Alone trainer({.batch = 10}), other({.batch = 10});
    train::Checkpoints checkpoints(trainer, options), foreign(other, options);
    for (int epoch = 1; epoch < 3; ++epoch) {
      trainer.fit(training, {.log = nullptr});
      checkpoints.keep({.epoch = epoch});
      checkpoints.finish();
    }
    CHECK(checkpoints.newest() == options.directory / "step-10");
    other.fit(training, {.log = nullptr});
    const std::string refusal =
        concat("checkpoint: ", (options.directory / "step-10").string(),
               " already exists: ", resume ? "call resume before the first step" : "resume from it",
               ", or choose another folder");
    CHECK_THROWS_WITH_AS(foreign.keep({.epoch = 1}), refusal.c_str(), ConfigError);
    CHECK(names_in(options.directory) == std::vector<std::string>{"step-10", "step-5"});
    if (!resume) continue;
    CHECK(foreign.resume().epoch == 2);
    other.fit(training, {.log = nullptr});
    foreign.keep({.epoch = 3});
    foreign.finish();
    CHECK(foreign.newest() == options.directory / "step-15");
  }
}

TEST_CASE("a folder with the name of a negative step is no checkpoint") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path / "step--5");
  fs::create_directories(folder.path / "step--6.partial");
  const train::CheckpointFolder checkpoints({.directory = folder.path}, 0, 1);
  CHECK(checkpoints.newest() == -1);
  fit<AllReduce>({.ranks = 1, .checkpoints = {.directory = folder.path, .keep = 1}, .epochs = 2});
  CHECK(fs::exists(folder.path / "step--5"));
  CHECK(fs::exists(folder.path / "step--6.partial"));
}

TEST_CASE("ranks that do not see one folder end before the first step, and leave neither mark nor lock") {
  const TemporaryFolder folder;
  Threads::World(3).run([&](Threads endpoint) {
    Made<AllReduce> trainer({.batch = 6}, endpoint, comm::Options{.deadline = Seconds(20)});
    const fs::path own = folder.path / (trainer.rank() == 1 ? "one" : "other");
    const std::string refusal = concat("checkpoint: rank 1 does not see the folder ", own.string(),
                                       " of rank 0; the folder must be one that all ranks see");
    train::Checkpoints checkpoints(trainer, {.directory = own, .deadline = Seconds(0.2)});
    CHECK_THROWS_WITH_AS(trainer.fit(training, {.log = nullptr, .keeper = &checkpoints}), refusal.c_str(),
                         CheckpointError);
    CHECK(trainer.steps_done() == 0);
    CHECK_THROWS_WITH_AS(checkpoints.keep({}), refusal.c_str(), CheckpointError);
    if (trainer.rank() == 0) CHECK_NOTHROW(train::CheckpointFolder({.directory = own}, 0, 1).lock());
  });
  for (const char* own : {"one", "other"}) CHECK(names_in(folder.path / own).empty());
}
