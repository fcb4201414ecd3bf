// SANITIZE: address thread
// ALONE
// Loader: every sample once; the same batches with and without a thread, at any world size and after any
// restart; `next` throws the reader's exceptions; an epoch allocates nothing.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <limits>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allocations.hpp"
#include "data_files.hpp"
#include "skip.hpp"
#include <convoy/core/stuck.hpp>
#include <convoy/data/data.hpp>

using namespace convoy;
using data::Batch;
using data::Loader;
using data_files::contains;
using data_files::sentence;

namespace {

/// Sample i holds {i, 2i} and i. Can fail, or wait, at one index.
struct Counting {
  std::size_t count = 100;
  std::size_t fail_at = ~std::size_t{0};
  std::size_t wait_at = ~std::size_t{0};
  std::shared_future<void> gate = {};
  std::vector<data::Field> described = {{"x", DType::f32, {2}}, {"label", DType::i32, {}}};

  std::size_t size() const { return count; }
  std::span<const data::Field> fields() const { return described; }
  void read(std::size_t index, data::Sample out) const {
    if (index == fail_at) fail<data::DataError>("sample ", index, " is broken");
    if (index == wait_at) gate.wait();
    out.as<f32>(0)[0] = static_cast<float>(index);
    out.as<f32>(0)[1] = 2 * static_cast<float>(index);
    out.as<i32>(1)[0] = static_cast<i32>(index);
  }
};
static_assert(data::Dataset<Counting>);

/// Fills rows; each holds its sample, its position, the epoch and the seed.
struct Drawing {
  std::size_t count = 150;
  std::vector<data::Field> described = {{"drawn", DType::i32, {4}}};

  std::size_t size() const { return count; }
  std::span<const data::Field> fields() const { return described; }
  void fill(const data::Rows& rows) const {
    const auto drawn = rows.column<i32>(0);
    REQUIRE(drawn.size() == 4 * rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      drawn[4 * i] = static_cast<i32>(rows.index(i));
      drawn[4 * i + 1] = static_cast<i32>(rows.position(i));
      rows[i].as<i32>(0)[2] = static_cast<i32>(rows.epoch());
      rows[i].as<i32>(0)[3] = static_cast<i32>(rows.seed());
    }
  }
};
static_assert(data::Dataset<Drawing>);

/// The samples of a batch; checks that its fields agree.
std::vector<int> samples_of(const Batch& batch) {
  const auto labels = batch.as<i32>(1);
  REQUIRE(labels.size() == static_cast<std::size_t>(batch.rows));
  const auto x = batch.as<f32>(0);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    REQUIRE(x[2 * i] == static_cast<float>(labels[i]));
    REQUIRE(x[2 * i + 1] == 2 * static_cast<float>(labels[i]));
  }
  return {labels.begin(), labels.end()};
}

template <class L>
std::vector<std::vector<int>> epoch_of(L& loader, std::int64_t epoch, std::int64_t first = 0) {
  std::vector<std::vector<int>> batches;
  loader.start(epoch, first);
  while (const Batch* batch = loader.next()) {
    CHECK(batch->epoch == epoch);
    CHECK(batch->step == first + static_cast<std::int64_t>(batches.size()));
    batches.push_back(samples_of(*batch));
    CHECK(std::equal(batch->indices.begin(), batch->indices.end(), batches.back().begin(),
                     batches.back().end(), [](std::uint64_t a, int b) { return a == std::uint64_t(b); }));
  }
  CHECK(loader.next() == nullptr);
  return batches;
}

template <class D>
void check_allocations(const D& set) {
  for (int prefetch : {0, 2}) {
    Loader loader(set, {.batch = 10, .prefetch = prefetch, .readers = 2});
    loader.start(0);
    while (loader.next() != nullptr) {
    }
    const long start = allocations;
    CHECK(start > 0);  // the loader's own memory was counted
    std::int64_t rows = 0;
    for (int epoch = 1; epoch < 4; ++epoch) {
      loader.start(epoch);
      while (const Batch* batch = loader.next()) rows += batch->rows;
    }
    CHECK(allocations == start);
    CHECK(rows == 3000);
  }
}

}  // namespace

TEST_CASE("loader: every sample once, in another order each epoch, whatever is read ahead") {
  const Counting set{.count = 103};
  std::vector<std::vector<int>> reference;
  for (int prefetch : {0, 1, 2, 7}) {
    CAPTURE(prefetch);
    Loader loader(set, {.batch = 10, .seed = 4, .prefetch = prefetch});
    CHECK(loader.steps_per_epoch() == 11);
    CHECK_THROWS_WITH_AS(loader.next(), "data: a loader needs start(epoch) before its first batch",
                         ConfigError);
    const auto first = epoch_of(loader, 0), second = epoch_of(loader, 1);
    CHECK(first.size() == 11);
    CHECK(first != second);
    CHECK(epoch_of(loader, 0) == first);
    std::vector<int> seen(103);
    for (const auto& batch : first)
      for (int sample : batch) ++seen[static_cast<std::size_t>(sample)];
    for (int times : seen) CHECK(times == 1);
    if (prefetch == 0) reference = first;
    CHECK(first == reference);
  }
}

TEST_CASE("loader: without a shuffle, the order of the set") {
  const Counting set{.count = 20};
  Loader loader(set, {.batch = 7, .shuffle = false});
  const auto batches = epoch_of(loader, 5);
  int next = 0;
  for (const auto& batch : batches)
    for (int sample : batch) CHECK(sample == next++);
  CHECK(next == 20);
}

TEST_CASE("loader: world 2 with batch B sees in each step what world 1 with batch 2B sees") {
  const Counting set{.count = 101};
  Loader one(set, {.batch = 12, .seed = 9});
  for (int world : {2, 3, 4}) {
    std::vector<std::vector<std::vector<int>>> ranks;
    for (int rank = 0; rank < world; ++rank) {
      Loader loader(set, {.batch = 12 / world, .shard = {rank, world}, .seed = 9});
      CHECK(loader.steps_per_epoch() == one.steps_per_epoch());
      ranks.push_back(epoch_of(loader, 2));
    }
    one.start(2);
    while (const Batch* batch = one.next()) {
      CHECK(batch->global_rows == batch->rows);
      std::vector<int> together;
      for (const auto& rank : ranks) {
        const auto& part = rank[static_cast<std::size_t>(batch->step)];
        together.insert(together.end(), part.begin(), part.end());
      }
      CHECK(together == samples_of(*batch));
    }
  }
}

TEST_CASE("loader: `global_rows` is the sum of the ranks' rows, known to each") {
  const Counting set{.count = 3 * 16 + 3};
  for (int rank = 0; rank < 4; ++rank) {
    Loader loader(set, {.batch = 4, .shard = {rank, 4}});
    loader.start(0);
    std::int64_t sum = 0;
    while (const Batch* batch = loader.next()) {
      CHECK(batch->rows >= 1);
      CHECK(batch->global_rows == loader.plan().global(batch->step).size());
      sum += batch->global_rows;
    }
    CHECK(sum == 51);
  }
}

TEST_CASE("loader: goes on exactly where it was left, and can be abandoned anywhere") {
  const Counting set{.count = 200};
  Loader loader(set, {.batch = 8, .seed = 1, .prefetch = 3});
  const auto whole = epoch_of(loader, 3);
  for (std::int64_t left = 0; left <= loader.steps_per_epoch(); ++left) {
    loader.start(3);
    for (std::int64_t i = 0; i < left; ++i) REQUIRE(loader.next() != nullptr);
    const auto rest = epoch_of(loader, 3, left);
    CHECK(rest == std::vector(whole.begin() + left, whole.end()));
    Loader{set, {.batch = 8}}.start(left);  // destroyed at once
  }
  CHECK_THROWS_AS(loader.start(0, 26), ConfigError);
  CHECK_THROWS_AS(loader.start(-1), ConfigError);
}

TEST_CASE("loader: an exception of `read` comes out of `next`, after the batches before it") {
  const Counting set{.count = 40, .fail_at = 25};
  for (int prefetch : {0, 1, 5}) {
    CAPTURE(prefetch);
    Loader loader(set, {.batch = 10, .shuffle = false, .prefetch = prefetch});
    for (int epoch = 0; epoch < 3; ++epoch) {
      loader.start(epoch);
      REQUIRE(loader.next() != nullptr);
      REQUIRE(loader.next() != nullptr);
      for (int again = 0; again < 2; ++again)
        CHECK(sentence<data::DataError>([&] { loader.next(); }) == "sample 25 is broken");
      loader.start(epoch, 3);  // after the broken epoch
      const Batch* batch = loader.next();
      REQUIRE(batch != nullptr);
      CHECK(samples_of(*batch).front() == 30);
    }
  }
}

TEST_CASE("loader: a data set that does not deliver is named at the deadline") {
  std::promise<void> gate;
  const Counting set{.count = 40, .wait_at = 20, .gate = gate.get_future().share()};
  Loader loader(set, {.batch = 10, .shuffle = false, .prefetch = 4, .deadline = Seconds(0.05)});
  struct Open {  // releases the reading thread whatever fails below
    std::promise<void>& gate;
    bool open = false;
    void operator()() {
      if (!open) gate.set_value();
      open = true;
    }
    ~Open() { (*this)(); }
  } open_gate{gate};

  const auto patient = [&]() -> const Batch* {  // a slow machine may exceed the 0.05 seconds
    for (int attempt = 0; attempt < 1000; ++attempt) {
      try {
        return loader.next();
      } catch (const data::DataError&) {
      }
    }
    return nullptr;
  };
  loader.start(0);
  for (int start : {0, 10}) {
    const Batch* batch = patient();
    REQUIRE(batch != nullptr);
    CHECK(samples_of(*batch).front() == start);
  }
  CHECK(contains(sentence<data::DataError>([&] { loader.next(); }),
                 "has not delivered step 2 of epoch 0 within 0.05"));
  open_gate();
  const Batch* third = patient();
  REQUIRE(third != nullptr);
  CHECK(samples_of(*third).front() == 20);
}

TEST_CASE("loader: a data set that never delivers ends the process, since its reader cannot be abandoned") {
  FILE* const said = std::tmpfile();
  REQUIRE(said != nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(fileno(said), STDERR_FILENO);
    std::promise<void> gate;
    const Counting set{.count = 40, .wait_at = 10, .gate = gate.get_future().share()};
    try {
      Loader loader(set, {.batch = 10, .shuffle = false, .deadline = Seconds(0.5)});
      loader.start(0);
      while (loader.next() != nullptr) continue;
    } catch (const data::DataError&) {
      std::_Exit(1);
    }
    std::_Exit(2);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == stuck_exit_code);
  char line[200] = {};
  std::rewind(said);
  CHECK(std::fgets(line, sizeof line, said) != nullptr);
  std::fclose(said);
  CHECK(contains(
      line, "data: the data set is still being read 0.5 s after its loader was to end; the process ends"));
}

TEST_CASE("loader: ranks that are threads share one data set") {
  const auto set = data::digits({.train = 300, .test = 0, .threads = 1}).train;
  std::atomic<int> label_sum{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      Loader loader(set, {.batch = 16, .shard = {rank, 3}, .seed = 2});
      for (int epoch = 0; epoch < 2; ++epoch) {
        loader.start(epoch);
        while (const Batch* batch = loader.next())
          for (i32 label : batch->as<i32>(1)) label_sum += label;
      }
    });
  for (auto& rank : ranks) rank.join();
  CHECK(label_sum == 2 * 30 * 45);
}

TEST_CASE("loader: a set that fills whole rows sees seed, epoch and position, the same at any world size") {
  const Drawing set;
  for (const bool shuffle : {true, false}) {
    std::vector<std::vector<int>> reference;
    for (int world : {1, 2, 3, 6}) {
      CAPTURE(world);
      std::vector<std::vector<int>> steps(4);
      for (int rank = 0; rank < world; ++rank) {
        Loader loader(set, {.batch = 48 / world, .shard = {rank, world}, .seed = 21, .shuffle = shuffle});
        loader.start(4, 1);
        while (const Batch* batch = loader.next()) {
          std::int64_t position = loader.plan().rows(batch->step).begin;
          const auto drawn = batch->as<i32>(0);
          for (std::size_t i = 0; i < drawn.size(); i += 4) {
            if (!shuffle) CHECK(drawn[i] == position);
            CHECK(drawn[i + 1] == position++);
            CHECK(drawn[i + 2] == 4);
            CHECK(drawn[i + 3] == 21);
            steps[static_cast<std::size_t>(batch->step)].push_back(drawn[i]);
          }
        }
      }
      CHECK(steps[0].empty());
      for (auto& step : steps) std::sort(step.begin(), step.end());  // ranks came one after the other
      if (world == 1) reference = steps;
      CHECK(steps == reference);
    }
  }
}

TEST_CASE("loader: ranks that read all of the data, each in its own order") {
  for (const std::size_t count : {100u, 101u, 107u, 111u}) {
    const Drawing set{.count = count};
    std::vector<std::vector<int>> orders;
    std::vector<int> positions;
    for (int rank = 0; rank < 3; ++rank) {
      Loader loader(set, {.batch = 10, .shard = {.rank = rank, .world = 3, .unsharded = true}, .seed = 21});
      CHECK(loader.steps_per_epoch() == static_cast<std::int64_t>(count + 9) / 10);
      std::vector<int> order;
      loader.start(4);
      while (const Batch* batch = loader.next()) {
        CHECK(batch->global_rows == 3 * batch->rows);
        const auto drawn = batch->as<i32>(0);
        for (std::size_t i = 0; i < drawn.size(); i += 4) {
          order.push_back(drawn[i]);
          positions.push_back(drawn[i + 1]);
        }
      }
      orders.push_back(order);
    }
    CHECK(orders[0] != orders[1]);
    CHECK(orders[1] != orders[2]);
    for (auto& order : orders) {
      std::sort(order.begin(), order.end());
      for (std::size_t i = 0; i < count; ++i) CHECK(order[i] == static_cast<int>(i));
      CHECK(order.size() == count);
    }
    std::sort(positions.begin(), positions.end());
    for (std::size_t i = 0; i < positions.size(); ++i) CHECK(positions[i] == static_cast<int>(i));
  }
  const Drawing drawing;
  const double shares[] = {0.5, 0.5};
  CHECK(contains(sentence<ConfigError>([&] {
                   Loader(drawing, {.batch = 1, .shard = {0, 2, shares, true}});
                 }),
                 "cannot have unequal shares"));
}

TEST_CASE("loader: a set larger than 2^32 is shuffled, and entered anywhere, without memory for its order") {
  const Drawing set{.count = (std::size_t{1} << 40) + 3};
  Loader loader(set, {.batch = 100, .seed = 21});
  loader.start(4, loader.steps_per_epoch() - 2);
  std::int64_t rows = 0;
  while (const Batch* batch = loader.next()) rows += batch->rows;
  const auto& plan = loader.plan();
  CHECK(rows == plan.samples() - plan.global(plan.steps() - 2).begin);
}

TEST_CASE("loader: nothing is allocated in an epoch") {
  check_allocations(Counting{.count = 1000});
  check_allocations(Drawing{.count = 1000});
}
TEST_CASE("loader: a set smaller than the batch is refused, except for evaluation") {
  const Counting set{.count = 30};
  CHECK(contains(sentence<ConfigError>([&] { Loader(set, {.batch = 31}); }), "batch of 31 samples"));
  CHECK_THROWS_AS(Loader(set, {.batch = 0}), ConfigError);
  CHECK_THROWS_AS(Loader(set, {.batch = 1, .prefetch = -1}), ConfigError);
  constexpr int huge = std::numeric_limits<int>::max();
  for (const data::LoaderOptions& options :
       {data::LoaderOptions{.batch = 1, .prefetch = huge}, data::LoaderOptions{.batch = 1, .readers = huge},
        data::LoaderOptions{.batch = 1, .ahead = huge},
        data::LoaderOptions{.batch = 1, .prefetch = 0, .held = huge}})
    CHECK(contains(sentence<ConfigError>([&] { Loader(set, options); }),
                   "keeps at most 65536 batches, read ahead and held, not 21474836"));
  Loader loader(set, {.batch = 31, .shuffle = false, .allow_short = true});
  const auto batches = epoch_of(loader, 0);
  REQUIRE(batches.size() == 1);
  CHECK(batches[0].size() == 30);
}
