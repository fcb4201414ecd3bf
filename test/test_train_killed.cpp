// SANITIZE: none
// TIMEOUT: 300
// A process that is killed while it trains, at any moment and in the middle of a checkpoint too, leaves a
// folder from which another one resumes to the same bits.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "temporary_folder.hpp"
#include "train_exchanges.hpp"
#include "train_support.hpp"
#include <convoy/train/checkpoint.hpp>

using namespace convoy;
using namespace train_test;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t seed = 31;
constexpr int last_step = 12;  // a checkpoint every 2 of them

/// Trains with an evaluation after each epoch in a process of its own, which has both ranks as threads; ends
/// with 0, or with 1 after a sentence.
template <class Comm>
pid_t start(const fs::path& folder) {
  const pid_t process = fork();
  if (process != 0) return process;
  try {
    const Blobs training(36), testing(20, 8);
    Threads::World(2).run([&](Threads endpoint) {
      Trainer<Normed, optim::Adam, Comm, exec::Reference<float>> trainer(
          {.batch = 6, .optimizer = {.lr = 0.02f}, .schedule = {.warmup = 9}, .seed = 5}, endpoint,
          comm::Options{.deadline = Seconds(20)});
      train::Checkpoints checkpoints(trainer, {.directory = folder, .every = 2, .resume = true});
      trainer.fit(training,
                  {.epochs = last_step / 3, .validate = &testing, .log = nullptr, .keeper = &checkpoints});
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

/// Whether the process was killed; otherwise it has trained to the end.
bool was_killed(pid_t process) {
  int status = 0;
  REQUIRE(waitpid(process, &status, 0) == process);
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL;
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  return false;
}

bool is_writing(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".partial") return true;
  return false;
}

/// The contents of the files of a folder's last checkpoint.
std::map<std::string, std::string> last_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder / concat("step-", last_step))) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()].assign(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

}  // namespace

TEST_CASE_TEMPLATE("a process that is killed at any moment resumes with the same bits", Comm, AllReduce,
                   Sharded, Encoded, Served) {
  // A killed process loses nothing that it has written, and a file system in memory syncs at once.
  const fs::path memory = "/dev/shm";
  const TemporaryFolder temporary(fs::is_directory(memory) ? memory : fs::temp_directory_path());
  const fs::path& root = temporary.path;
  const auto began = Clock::now();
  REQUIRE(!was_killed(start<Comm>(root / "whole")));
  const auto whole_run = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began);
  const auto whole = last_files(root / "whole");
  REQUIRE(whole.size() == 4);

  int killed = 0, in_a_write = 0;
  for (std::uint64_t time = 0; killed < 20; ++time) {
    INFO("seed ", seed, ", time ", time);
    REQUIRE(time < 200);
    Philox random(seed, time);
    const fs::path folder = root / concat("killed-", static_cast<int>(time));
    const pid_t process = start<Comm>(folder);
    // Every other time, the process is killed soon after the random moment in a checkpoint that it writes.
    const std::chrono::microseconds moment(random.below(static_cast<std::uint32_t>(whole_run.count())));
    std::this_thread::sleep_for(moment);
    if (time % 2 == 1) {
      for (const auto until = Clock::now() + whole_run; !is_writing(folder) && Clock::now() < until;)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(1000)));
    }
    kill(process, SIGKILL);
    if (was_killed(process)) {
      ++killed;
      in_a_write += is_writing(folder);
      REQUIRE(!was_killed(start<Comm>(folder)));
    }
    CHECK(last_files(folder) == whole);
    CHECK(!is_writing(folder));
    fs::remove_all(folder);
  }
  CHECK(in_a_write > 0);
}
