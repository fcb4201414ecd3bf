// SANITIZE: address
// The team of threads: each index once; one thread as a plain call; several threads of a program use teams at
// once.
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/parallel/team.hpp>

using namespace convoy;

TEST_CASE("every thread of a team runs the body once") {
  for (int threads : {1, 2, 4}) {
    std::mutex mutex;
    std::multiset<int> seen;
    int sizes_wrong = 0;
    parallel(threads, [&](int thread, int team) {
      const std::lock_guard lock(mutex);
      seen.insert(thread);
      sizes_wrong += team != threads;
    });
    CHECK(sizes_wrong == 0);
    REQUIRE(seen.size() == static_cast<std::size_t>(threads));
    for (int t = 0; t < threads; ++t) CHECK(seen.count(t) == 1);
  }
}

TEST_CASE("a team of one is a call on the same thread") {
  const auto caller = std::this_thread::get_id();
  auto inside = std::thread::id{};
  parallel(1, [&](int, int) { inside = std::this_thread::get_id(); });
  CHECK(inside == caller);
  CHECK_THROWS_AS(parallel(1, [](int, int) { throw 1; }), int);
}

TEST_CASE("shares of a team add up to the loop") {
  std::vector<int> hits(10'007);
  for (int round = 0; round < 20; ++round)
    parallel(3, [&](int thread, int threads) {
      const Range mine = share(static_cast<std::int64_t>(hits.size()), thread, threads, 16);
      for (auto i = mine.begin; i < mine.end; ++i) ++hits[static_cast<std::size_t>(i)];
    });
  CHECK(std::all_of(hits.begin(), hits.end(), [](int h) { return h == 20; }));
}

TEST_CASE("ranks that are threads have teams of their own") {
  std::atomic<int> runs = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&] {
      for (int round = 0; round < 10; ++round) parallel(2, [&](int, int) { ++runs; });
    });
  for (auto& rank : ranks) rank.join();
  CHECK(runs == 60);
}
