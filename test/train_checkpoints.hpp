// What tests of checkpoints share: fits that keep checkpoints and may be killed, and what the fits leave.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "train_exchanges.hpp"
#include "train_support.hpp"
#include <convoy/exec/reference/reference.hpp>
#include <convoy/train/checkpoint.hpp>

namespace train_test {

using exec::Reference;
namespace fs = std::filesystem;

using Beside = comm::ParameterServer<Threads, comm::Sync, 2, comm::Placement::beside>;
using Async = comm::ParameterServer<Threads, comm::Async, 1, comm::Placement::beside>;

template <class Comm>
using Made = Trainer<Normed, optim::Adam, Comm, Reference<float>>;

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

inline const Blobs training(50), testing(20, 8);

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

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != ".lock") names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace train_test
