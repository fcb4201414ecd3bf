// Folders of checkpoints: whole or not there, also while they are removed; what cannot be written is refused.
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "address_limit.hpp"
#include "sanitized.hpp"
#include "temporary_folder.hpp"
#include <convoy/core/clock.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/checkpoint_folder.hpp>

using namespace convoy;
namespace fs = std::filesystem;

TEST_CASE("a checkpoint that is removed is whole or not there") {
  const TemporaryFolder folder;
  train::CheckpointFolder checkpoints({.directory = folder.path, .keep = 1}, 0, 1);
  checkpoints.make();
  std::atomic<int> newest = 0;
  std::atomic<bool> ended = false, whole = true;
  std::thread watcher([&] {
    while (!ended)
      for (const int step : {newest - 1, newest.load()}) {
        const fs::path path = folder.path / concat("step-", step);
        if (fs::exists(path) && !fs::exists(path / "model.safetensors") && fs::exists(path)) whole = false;
      }
  });
  for (; newest < 200; ++newest) {
    checkpoints.snapshot(newest);
    checkpoints.write();
    checkpoints.wait();
  }
  ended = true;
  watcher.join();
  CHECK(whole);
}

TEST_CASE("a rank can tell whether a checkpoint is written without waiting for it") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path, .deadline = Seconds(60)};
  train::CheckpointFolder first(options, 0, 2), other(options, 1, 2);
  CHECK(first.ends_within(Seconds(0)));
  first.snapshot(1);
  first.write();
  CHECK(!first.ends_within(Seconds(0.01)));  // the other rank's file is not there
  other.snapshot(1);
  other.write();
  CHECK(first.ends_within(Seconds(60)));
  CHECK(first.newest() == 1);
  first.wait();
  other.wait();
}

TEST_CASE("while an exception unwinds, rank 0 waits less long for files of ranks that may be dead") {
  const TemporaryFolder folder;
  std::optional<train::CheckpointFolder> first;
  first.emplace(train::CheckpointOptions{.directory = folder.path, .deadline = Seconds(20)}, 0, 2);
  train::CheckpointFolder late({.directory = folder.path}, 1, 2);
  struct Unwinding {
    ~Unwinding() { folder.reset(); }
    std::optional<train::CheckpointFolder>& folder;
  };
  std::atomic<bool> left = false;
  // A file that comes after the shorter wait and within the deadline.
  std::thread other([&] {
    const Deadline deadline(Seconds(12));
    while (!left && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    late.snapshot(1);
    late.write();
    late.wait();
  });
  first->snapshot(1);
  first->write();
  try {
    const Unwinding unwinding{first};
    throw 1;
  } catch (int) {
    left = true;
  }
  other.join();
  CHECK(late.newest() == -1);
}

TEST_CASE("what other ranks hold of the optimizer's state is found by slot and element") {
  const TemporaryFolder folder;
  io::SafetensorsWriter first, second, other;
  first.add(train::Shards::name_of("exp.avg", {10, 13}), {3}, std::vector<float>{1, 2, 3});
  first.add(train::Shards::name_of("square", {10, 12}), {2}, std::vector<float>{7, 7});
  second.add(train::Shards::name_of("exp.avg", {13, 15}), {2}, std::vector<float>{4, 5});
  first.write(folder.path / "first");
  second.write(folder.path / "second");
  train::Shards shards;
  shards.add(folder.path / "first");
  shards.add(folder.path / "second");
  std::vector<float> values(8, -1);
  shards.read("exp.avg", {9, 17}, values);
  CHECK(values == std::vector<float>{-1, 1, 2, 3, 4, 5, -1, -1});
  std::vector<float> inner(2);
  shards.read("exp.avg", {12, 14}, inner);
  CHECK(inner == std::vector<float>{3, 4});
#if defined(__linux__)
  // Rank 0 may have more ranks than files that it may open.
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_files();
  for (int i = 0; i < 20; ++i) shards.add(folder.path / (i % 2 == 0 ? "first" : "second"));
  shards.read("exp.avg", {9, 17}, values);
  CHECK(open_files() == before);
#endif
  for (const std::string name : {"exp_avg", "exp_avg.", "exp_avg.x", "exp_avg.1x", "exp_avg.-1"}) {
    other.clear();
    other.add(name, {1}, std::vector<float>{1});
    other.write(folder.path / "other");
    CHECK_THROWS_WITH_AS(shards.add(folder.path / "other"),
                         concat((folder.path / "other").string(), ": the tensor '", name,
                                "' is not named by a slot and an element")
                             .c_str(),
                         CheckpointError);
  }
}

TEST_CASE("a checkpoint for which the system cannot start a thread is an error that names it") {
  if (sanitized) return;  // a sanitizer reserves more address space than can be limited
  const TemporaryFolder folder;
  std::string said;
  {
    const AddressLimit limit(std::size_t{100} << 20);
    std::deque<train::CheckpointFolder> writers;  // whose threads wait for rank 1's files
    for (int i = 0; i < 100 && said.empty(); ++i) try {
        auto& writer = writers.emplace_back(
            train::CheckpointOptions{.directory = folder.path / concat(i), .deadline = Seconds(2)}, 0, 2);
        writer.snapshot(7);
        writer.write();
      } catch (const CheckpointError& error) {
        said = error.what();
      }
  }
  CHECK(said.starts_with(folder.path.string()));
  CHECK(said.find("step-7 cannot be written: the system cannot start a thread: ") != said.npos);
}

TEST_CASE("options with which no checkpoint can be kept, or a rank would wait for ever, are refused") {
  const auto refused = [](const train::CheckpointOptions& options, const std::string& reason) {
    CHECK_THROWS_WITH_AS(train::CheckpointFolder(options, 0, 1), reason.c_str(), ConfigError);
  };
  refused({}, "checkpoint: no directory is given");
  refused({.directory = "x", .every = -1},
          "checkpoint: every (steps between checkpoints) must be at least 0, not -1");
  refused({.directory = "x", .keep = 0}, "checkpoint: keep must be at least 1, not 0");
  for (const double deadline : {0.0, std::nan("")})
    refused({.directory = "x", .deadline = Seconds(deadline)},
            concat("checkpoint: the deadline is ", deadline, " s; it must be positive"));
}
