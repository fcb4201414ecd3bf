// SANITIZE: address thread
// Loaders with several reading threads: the same batches in the same order as with one thread, however long
// each read takes; exceptions in that order too.
#include <chrono>
#include <cmath>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "address_limit.hpp"
#include "data_files.hpp"
#include "sanitized.hpp"
#include <convoy/core/hash.hpp>
#include <convoy/data/data.hpp>

using namespace convoy;
using data::Batch;
using data::Loader;
using data_files::sentence;

namespace {

/// Sample i holds i; reads take random times.
struct Uneven {
  std::size_t count = 120;
  int most_microseconds = 300;
  std::vector<data::Field> described = {{"label", DType::i32, {}}};

  std::size_t size() const { return count; }
  std::span<const data::Field> fields() const { return described; }
  void read(std::size_t index, data::Sample out) const {
    if (most_microseconds > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(hash_of(static_cast<std::uint64_t>(index)) %
                                                            static_cast<std::uint64_t>(most_microseconds)));
    out.as<i32>(0)[0] = static_cast<i32>(index);
  }
};

using Batches = std::vector<std::vector<i32>>;

template <class L>
Batches epoch_of(L& loader, std::int64_t epoch, std::int64_t first = 0) {
  Batches batches;
  loader.start(epoch, first);
  while (const Batch* batch = loader.next()) {
    CHECK(batch->step == first + static_cast<std::int64_t>(batches.size()));
    CHECK(batch->epoch == epoch);
    const auto labels = batch->template as<i32>(0);
    batches.emplace_back(labels.begin(), labels.end());
  }
  return batches;
}

}  // namespace

TEST_CASE("any number of readers delivers the batches of one, in its order") {
  const Uneven set;
  Loader one(set, {.batch = 7, .seed = 3});
  const Batches expected[] = {epoch_of(one, 0), epoch_of(one, 1)};
  for (const int readers : {2, 3, 8})
    for (const int prefetch : {1, 4})
      for (const int held : {1, 3}) {
        Loader loader(set, {.batch = 7, .seed = 3, .prefetch = prefetch, .readers = readers, .held = held});
        for (const int epoch : {0, 1}) CHECK(epoch_of(loader, epoch) == expected[epoch]);
        CHECK(epoch_of(loader, 0, 5) == Batches(expected[0].begin() + 5, expected[0].end()));
      }
  CHECK(sentence<ConfigError>([&] { Loader(set, {.batch = 7, .readers = 0}); }) ==
        "data: a loader needs at least 1 reader thread, not 0");
  for (const double deadline : {-1.0, std::nan("")})
    CHECK(sentence<ConfigError>([&] { Loader(set, {.batch = 7, .deadline = Seconds(deadline)}); }) ==
          concat("data: the deadline is ", deadline, " s; it must be positive"));
}

TEST_CASE("several readers look ahead, and can be abandoned anywhere") {
  const Uneven set{.most_microseconds = 40};
  Loader loader(set, {.batch = 6, .seed = 9, .prefetch = 2, .readers = 4, .ahead = 3});
  const Batches whole = epoch_of(loader, 2);
  for (std::int64_t left = 0; left <= loader.steps_per_epoch(); ++left) {
    loader.start(2);
    for (std::int64_t i = 0; i < left; ++i) {
      const Batch* ahead = loader.peek(2);
      CHECK((ahead == nullptr) == (i + 2 >= loader.steps_per_epoch()));
      REQUIRE(loader.next() != nullptr);
    }
    CHECK(epoch_of(loader, 2, left) == Batches(whole.begin() + left, whole.end()));
    Loader(set, {.batch = 6, .readers = 3}).start(left % 3);  // destroyed at once
  }
  loader.start(2);
  const Batch* first = loader.peek(0);
  CHECK(first == loader.next());
  for (const int out_of_sight : {-1, 3}) CHECK_THROWS_AS(loader.peek(out_of_sight), ConfigError);
}

TEST_CASE("readers read at the same time") {
  /// The first samples of two batches wait for each other.
  struct Meeting : Uneven {
    std::shared_ptr<std::latch> both = std::make_shared<std::latch>(2);
    void read(std::size_t index, data::Sample out) const {
      if (index == 0 || index == 10) both->arrive_and_wait();
      Uneven::read(index, out);
    }
  };
  const Meeting set;
  Loader loader(set, {.batch = 10, .shuffle = false, .readers = 2});
  CHECK(epoch_of(loader, 0).size() == 12);
}

TEST_CASE("an exception comes out behind the batches before it, whichever reader was faster") {
  /// Sample 10 waits until the later sample 20 was found broken.
  struct Broken : Uneven {
    std::shared_ptr<std::latch> seen = std::make_shared<std::latch>(1);
    void read(std::size_t index, data::Sample out) const {
      if (index == 10) seen->wait();
      if (index == 20) {
        seen->count_down();
        fail<data::DataError>("sample 20 is broken");
      }
      Uneven::read(index, out);
    }
  };
  const Broken set;
  Loader loader(set, {.batch = 10, .shuffle = false, .prefetch = 3, .readers = 3});
  loader.start(0);
  for (const i32 first : {0, 10}) {
    const Batch* batch = loader.next();
    REQUIRE(batch != nullptr);
    CHECK(batch->as<i32>(0)[0] == first);
  }
  for (int again = 0; again < 2; ++again)
    CHECK(sentence<data::DataError>([&] { loader.next(); }) == "sample 20 is broken");
  loader.start(0, 3);
  CHECK(loader.next()->as<i32>(0)[0] == 30);
}

TEST_CASE("threads that the system cannot start are an error") {
  if (sanitized) return;  // a sanitizer reserves more address space than can be limited
  const Uneven set;
  const std::string error = sentence<Error>([&] {
    const AddressLimit limit(std::size_t{100} << 20);
    Loader loader(set, {.batch = 1, .readers = 100});
  });
  CHECK(data_files::contains(error, "data: a loader could start only "));
  CHECK(data_files::contains(error, " of 100 reader threads: "));
}
