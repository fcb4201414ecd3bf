// TIMEOUT: 300
// SANITIZE: address thread
// Ranks that divide the updates of an optimizer of whole matrices: the bits of ranks that update all, state
// divided among the ranks as evenly as the matrices allow, and checkpoints for any exchange.
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "sanitized.hpp"
#include "temporary_folder.hpp"
#include "train_wide.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/checkpoint.hpp>

using namespace train_test;
using transport::Threads;
namespace fs = std::filesystem;

namespace {

using Ring = comm::Ring<Threads>;
using InOrder = comm::Reproducible<Ring>;
using Direct = comm::Direct<Threads>;
using comm::Sharded;
template <int servers>
using Among = comm::ParameterServer<Threads, comm::Sync, servers>;
template <int servers>
using Beside = comm::ParameterServer<Threads, comm::Sync, servers, comm::Placement::beside>;

// With either number of channels, some matrices are several segments of the exchange long.
template <class Comm>
using Made = Trainer<WideOf<sanitized ? 16 : 32>, optim::Muon, Comm, exec::Reference<f32>>;

constexpr BucketOptions few_buckets{.first = 1 << 20, .others = 1 << 20};

struct Killed {};

struct Run {
  int ranks = 2, workers = ranks;
  std::optional<BucketOptions> buckets = {};
  float clip = 0;
  int epochs = sanitized ? 1 : 2;
  std::int64_t killed_after = -1;  ///< steps; -1: never
  train::CheckpointOptions checkpoints = {};
};

const Blobs training(60);

/// Rank 0's parameters; `bytes` gets each rank's optimizer state.
template <class Comm>
std::vector<float> trained(const Run& run, std::vector<std::size_t>* bytes = nullptr) {
  std::vector<float> result;
  std::vector<std::size_t> states(static_cast<std::size_t>(run.ranks));
  Threads::World(run.ranks).run([&](const Threads& endpoint) {
    Made<Comm> trainer({.batch = 12 / run.workers,
                        .optimizer = muon,
                        .guard = {.max_norm = run.clip},
                        .buckets = run.buckets},
                       endpoint, comm::Options{.deadline = Seconds(20), .segment_bytes = 4096, .window = 2});
    std::optional<train::Checkpoints<Made<Comm>>> checkpoints;
    if (!run.checkpoints.directory.empty()) checkpoints.emplace(trainer, run.checkpoints);
    std::int64_t steps = 0;
    trainer.fit(training, {.epochs = run.epochs,
                           .on_step =
                               [&](const train::StepReport&) {
                                 if (steps++ == run.killed_after) throw Killed();
                                 return train::Control::go_on;
                               },
                           .log = nullptr,
                           .keeper = checkpoints ? &*checkpoints : nullptr});
    states[static_cast<std::size_t>(endpoint.rank())] = trainer.optimizer_state_bytes();
    auto parameters = all_parameters(trainer);
    if (endpoint.rank() == 0) result = std::move(parameters);
  });
  if (bytes != nullptr) *bytes = states;
  return result;
}

/// The size of the longest shard with Muon, relative to the mean.
template <class Model>
double unevenness(int ranks) {
  const Plan& plan = plan_of<Model>;
  memory::Host space;
  const train::TensorGroups all = train::tensor_groups(plan, {}, false);
  const optim::Arena<optim::Muon> arena(space, {}, all.tensors, all.groups);
  const std::vector<Range> matrices = arena.matrices();
  std::vector<double> sizes(static_cast<std::size_t>(ranks));
  schedule::Shards shards(ranks, matrices);
  for (const Range& bucket : plan.buckets) {
    const auto at = shards.cut(bucket);
    for (std::size_t r = 0; r < sizes.size(); ++r) sizes[r] += static_cast<double>(at[r + 1] - at[r]);
  }
  return *std::max_element(sizes.begin(), sizes.end()) * ranks /
         std::accumulate(sizes.begin(), sizes.end(), 0.0);
}

/// A Comm that shards its buckets as if no matrix had to stay whole.
struct Cuts : Sharded<Ring> {
  using Sharded<Ring>::Sharded;
  void open(const comm::Fingerprint& fingerprint, comm::Layout layout) {
    layout.whole = {};
    Sharded<Ring>::open(fingerprint, layout);
  }
};

}  // namespace

TEST_CASE("ranks that divide matrices give the bits of ranks that update all") {
  for (const auto& buckets : {std::optional<BucketOptions>{}, std::optional(few_buckets)}) {
    for (const int ranks : {2, 3, 4, 6}) {
      if (sanitized && ranks != 3) continue;
      CAPTURE(ranks);
      // 1e9 is far above any norm: servers and ranks decide, but scale nothing.
      for (const float clip : {0.0f, 1e9f}) {
        if ((sanitized || ranks != 3) && buckets.has_value() != (clip == 0)) continue;
        const Run run{.ranks = ranks, .buckets = buckets, .clip = clip};
        const auto expected = trained<InOrder>(run);
        CHECK(trained<Sharded<InOrder>>(run) == expected);
        CHECK(trained<Sharded<Direct>>(run) == expected);
        CHECK(trained<Among<1>>(run) == expected);
        CHECK(trained<Among<2>>(run) == expected);
        CHECK(trained<Beside<3>>({.ranks = ranks + 3, .workers = ranks, .buckets = buckets, .clip = clip}) ==
              expected);
      }
    }
    CHECK(trained<Sharded<Ring>>({.buckets = buckets}) == trained<Ring>({.buckets = buckets}));
  }
}

TEST_CASE("clipping uses the norm of the whole gradient") {
  const auto expected = trained<Ring>({.ranks = 3, .clip = 0.5f, .epochs = 2});
  CHECK(largest_difference(expected, trained<Ring>({.ranks = 3, .epochs = 2})) > 1e-3f);
  CHECK(largest_difference(trained<Sharded<Ring>>({.ranks = 3, .clip = 0.5f, .epochs = 2}), expected) <
        2e-4f);
  CHECK(largest_difference(trained<Among<2>>({.ranks = 3, .clip = 0.5f, .epochs = 2}), expected) < 2e-4f);
}

TEST_CASE("workers that do not wait for each other learn, too") {
  // At this rate the loss falls in any order of arrival, from 1.5 to at most 0.14 within 40 steps. Single
  // losses jump afterwards. At 0.03 they jump by more than the first loss.
  optim::Muon::Options slow = muon;
  slow.lr = 0.005f;
  Threads::World(2).run([&](const Threads& endpoint) {
    Made<comm::ParameterServer<Threads, comm::Stale<1>, 2>> trainer({.batch = 6, .optimizer = slow},
                                                                    endpoint);
    double least = 2;
    trainer.fit(training, {.epochs = 9,
                           .on_step =
                               [&](const train::StepReport& report) {
                                 least = std::min(least, static_cast<double>(report.loss));
                                 return train::Control::go_on;
                               },
                           .log = nullptr});
    CHECK(least < 0.3);
  });
}

TEST_CASE("the state of matrices is divided among the ranks") {
  std::vector<std::size_t> alone, bytes;
  trained<Ring>({.ranks = 1, .epochs = 1}, &alone);
  std::size_t everywhere = 0;  // the state of dead taps, which every rank has
  for (const int ranks : {2, 3, 6}) {
    trained<Sharded<Ring>>({.ranks = ranks, .epochs = 1}, &bytes);
    const std::size_t sum = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
    if (ranks == 2) everywhere = sum - alone[0];
    const auto others = static_cast<std::size_t>(ranks - 1);
    CHECK(sum == alone[0] + others * everywhere);
    CHECK(*std::max_element(bytes.begin(), bytes.end()) < alone[0]);
  }
  CHECK(everywhere > 0);
}

TEST_CASE("the shards of models are as even as their longest matrices allow") {
  const auto check = [](const auto& of, const std::array<double, 3>& most) {
    for (std::size_t i = 0; i < most.size(); ++i) {
      const int ranks = 2 << i;
      CAPTURE(ranks);
      CHECK(of(ranks) <= most[i]);
    }
  };
  // At 8 ranks, one convolution of ResNet-18 is as long as 1.61 mean shards.
  check(unevenness<models::ResNet18<Image{3, 224, 224}, 1000>>, {1.002, 1.054, 1.66});
  check(unevenness<models::BertBase<>>, {1.0001, 1.0001, 1.0001});
  check(unevenness<models::Gpt2Small<>>, {1.0001, 1.0001, 1.0001});
}

TEST_CASE_TEMPLATE("a killed fit resumes with the same bits", Comm, Sharded<Ring>, Among<2>) {
  const TemporaryFolder folder;
  for (const float clip : {0.0f, 0.5f}) {
    if (sanitized && clip == 0) continue;
    Run run{.ranks = 3, .clip = clip, .epochs = 3};
    const auto whole = trained<Comm>(run);
    Philox random(11, whole.size());
    for (int time = 0; time < (sanitized ? 1 : 4); ++time) {
      run.checkpoints = {.directory = folder.path / concat("killed-", clip, "-", time),
                         .every = static_cast<std::int64_t>(random.below(5)),
                         .resume = true};
      run.killed_after = random.below(14);
      CAPTURE(run.killed_after);
      CHECK_THROWS_AS(trained<Comm>(run), Killed);
      run.killed_after = -1;
      CHECK(trained<Comm>(run) == whole);
    }
  }
}

TEST_CASE("divided state of matrices resumes with other exchanges, and in worlds of other sizes") {
  const TemporaryFolder folder;
  const train::CheckpointOptions options{.directory = folder.path / "same", .every = 3, .resume = true};
  // With two workers, sums have only one order, so that all these exchanges give the same bits.
  CHECK_THROWS_AS(
      trained<Beside<2>>({.ranks = 4, .workers = 2, .epochs = 3, .killed_after = 5, .checkpoints = options}),
      Killed);
  CHECK_THROWS_AS(trained<Among<1>>({.epochs = 3, .killed_after = 4, .checkpoints = options}), Killed);
  CHECK_THROWS_AS(trained<Sharded<Ring>>({.epochs = 3, .killed_after = 4, .checkpoints = options}), Killed);
  CHECK_THROWS_AS(trained<Ring>({.epochs = 3, .killed_after = 3, .checkpoints = options}), Killed);
  CHECK(trained<Sharded<InOrder>>({.epochs = 3, .checkpoints = options}) == trained<Ring>({.epochs = 3}));

  const train::CheckpointOptions other{.directory = folder.path / "other", .every = 3, .resume = true};
  CHECK_THROWS_AS(trained<Sharded<Ring>>({.ranks = 4, .epochs = 3, .killed_after = 5, .checkpoints = other}),
                  Killed);
  CHECK_THROWS_AS(trained<Sharded<Ring>>({.ranks = 2, .epochs = 3, .killed_after = 4, .checkpoints = other}),
                  Killed);
  CHECK(largest_difference(trained<Sharded<Ring>>({.ranks = 3, .epochs = 3, .checkpoints = other}),
                           trained<Ring>({.ranks = 1, .epochs = 3})) < 2e-4f);
}

TEST_CASE("an exchange that would give a rank a part of a matrix is refused") {
  std::string said;
  try {
    trained<Cuts>({});
  } catch (const ConfigError& error) {
    said = error.what();
  }
  CHECK(said.find("optimizer muon updates whole matrices, but of the matrix of elements ") == 0);
}
