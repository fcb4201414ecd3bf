// What every exchange over emulated GPUs does: checks that the tests of each policy call. Including sources
// include comm_device.hpp's space before.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "comm_device.hpp"

namespace device_test {

// Checks that ranks end with the updates of all sums, although they have not begun all buckets.
template <class C>
void check_unbegun_buckets(const typename C::Options& options = {}) {
  const std::vector<float> expected = sums(3, 1000, 2);
  std::atomic<int> right = 0;
  all_well(run<C>(
      3, [&](C& comm, TestSpace& space) { right += train(comm, space, 1000, 2, 4) == expected ? 1 : 0; },
      options));
  CHECK(right == 3);
}

// Checks that a rule decides over the gradients of all ranks, and may skip a step.
template <class C>
void check_rule(const typename C::Options& options = {}) {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const std::vector<float> expected = decide::trained(ranks, 3000, {1});
    std::atomic<int> right = 0;
    all_well(run<C>(
        ranks,
        [&](C& comm, TestSpace& space) { right += train_by_rule(comm, space, 3000, 1) == expected ? 1 : 0; },
        options));
    CHECK(right == ranks);
  }
}

// Checks that ranks that shard the updates have parts of whole cache lines, which together are everything.
template <class C>
void check_parts() {
  std::vector<std::vector<Range>> all(3);
  const std::vector<Range> buckets{{0, 1000}, {1000, 1000}, {1008, 1018}, {1024, 1024 + 480}};
  all_well(run<C>(
      3, [&](C& comm, TestSpace&) { all[static_cast<std::size_t>(comm.rank())] = comm.updates(buckets); }));
  CHECK(all[0] == std::vector<Range>{{0, 320}, {1024, 1184}});
  CHECK(all[1] == std::vector<Range>{{320, 640}, {1184, 1344}});
  CHECK(all[2] == std::vector<Range>{{640, 1000}, {1008, 1018}, {1344, 1504}});
}

// Checks that ranks that shard the updates end with the updates of the sums, and that each unsplittable block
// belongs to one rank. One bucket is empty, one is a single block, and one leaves some ranks without a shard.
template <class C>
void check_what_stays_whole(const typename C::Options& options = {}) {
  constexpr std::int64_t count = 2037;
  const std::vector<Range> buckets{{0, 960}, {960, 960}, {960, 1600}, {1600, 1616}, {1616, count}};
  const std::vector<Range> whole{{64, 560}, {560, 640}, {960, 1600}, {1616, 1680}};
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const std::vector<float> expected = sums(ranks, count, 3);
    std::vector<std::vector<Range>> mine(static_cast<std::size_t>(ranks));
    std::atomic<int> right = 0;
    all_well(run<C>(
        ranks,
        [&](C& comm, TestSpace& space) {
          Arenas arenas(space, count, buckets, whole);
          const comm::Closing closing(comm);
          right += train(comm, arenas, 3) == expected ? 1 : 0;
          mine[static_cast<std::size_t>(comm.rank())] = comm.updates(buckets);
        },
        options));
    CHECK(right == ranks);
    std::int64_t updated = 0;
    std::size_t kept = 0;
    for (const auto& ranges : mine)
      for (const Range& r : ranges) {
        updated += r.size();
        kept += static_cast<std::size_t>(std::count_if(whole.begin(), whole.end(), [&](const Range& w) {
          return r.begin <= w.begin && w.end <= r.end;
        }));
      }
    CHECK(updated == count);
    CHECK(kept == whole.size());
  }
}

// Checks that numbers of the host are combined and broadcast. `elements` should be more than fits in one
// piece.
template <class C>
void check_numbers_of_the_host(std::size_t elements) {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    std::atomic<int> right = 0;
    all_well(run<C>(ranks, [&](C& comm, TestSpace&) {
      const double n = ranks, me = comm.rank();
      double d[] = {me, -me, 1};
      comm.all_reduce(std::span<double>(d), comm::sum);
      bool good = d[0] == n * (n - 1) / 2 && d[1] == -d[0] && d[2] == n;
      double most[] = {me, comm.rank() == 0 ? NAN : 1.0};
      comm.all_reduce(std::span<double>(most), comm::max);
      good = good && most[0] == n - 1 && std::isnan(most[1]);
      i32 least[] = {comm.rank() + 3};
      comm.all_reduce(std::span<i32>(least), comm::min);
      good = good && least[0] == 3;
      std::vector<float> many(elements);
      for (std::size_t i = 0; i < many.size(); ++i)
        many[i] = static_cast<float>(i % 1000) * static_cast<float>(me + 1);
      comm.all_reduce(std::span<float>(many), comm::mean);
      const auto scale = static_cast<float>(1.0 / n);
      for (std::size_t i = 0; i < many.size(); ++i)
        good = good && many[i] == static_cast<float>(i % 1000) * static_cast<float>(n * (n + 1) / 2) * scale;
      for (int root = 0; root < ranks; ++root) {
        for (std::size_t i = 0; i < many.size(); ++i)
          many[i] = comm.rank() == root ? static_cast<float>(i % 977) : -1;
        comm.broadcast(std::span<float>(many), root);
        for (std::size_t i = 0; i < many.size(); ++i) good = good && many[i] == static_cast<float>(i % 977);
      }
      comm.barrier();
      right += good ? 1 : 0;
    }));
    CHECK(right == ranks);
  }
}

// Checks that an observer hears of every bucket of a step, in order.
template <class C>
void check_observer() {
  std::vector<comm::ExchangeEvent> events;
  all_well(run<C>(2, [&](C& comm, TestSpace& space) {
    if (comm.rank() == 0) observe(comm, events);
    train(comm, space, 1000, 1);
  }));
  REQUIRE(events.size() == 6);
  for (std::size_t b = 0; b < events.size(); ++b) {
    CHECK(events[b].bucket == static_cast<int>(b));
    CHECK(events[b].end >= events[b].begin);
  }
}

// Checks that a step's messages and bytes are counted as a ring's.
template <class C>
void check_traffic() {
  all_well(run<C>(4, [&](C& comm, TestSpace& space) {
    const auto before = comm.traffic();
    train(comm, space, 1000, 1);
    const auto after = comm.traffic();
    const bool good = after.messages - before.messages == 5 && after.bytes - before.bytes == 2 * 3 * 1000;
    if (!good) throw Error("not the traffic of a ring");
  }));
}

// Checks that ranks whose arenas differ are told in what.
template <class C>
void check_differing_arenas() {
  const auto sentences = run<C>(3, [](C& comm, TestSpace& space) {
    Arenas arenas(space, comm.rank() == 2 ? 128 : 64);
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
  });
  for (const std::string& sentence : sentences)
    CHECK(sentence == "rank 2 differs from rank 0 in gradients: 128 instead of 64");
}

// Checks that memory that is missing, and buckets that do not exist or have begun, are refused.
template <class C>
void check_refusals() {
  all_well(run<C>(1, [](C& comm, TestSpace& space) {
    Arenas arenas(space, 64);
    const comm::Closing closing(comm);
    comm::Layout layout = arenas.layout();
    layout.space = nullptr;
    CHECK_THROWS_AS(comm.open(comm::Fingerprint(), layout), ConfigError);
    layout = arenas.layout();
    layout.parameters = {};
    CHECK_THROWS_AS(comm.open(comm::Fingerprint(), layout), ConfigError);
    comm.open(comm::Fingerprint(), arenas.layout());
    CHECK_THROWS_AS(comm.begin(17), Error);
    comm.begin(1, space.mark());
    CHECK_THROWS_AS(comm.begin(1, space.mark()), Error);
    CHECK_THROWS_AS(comm.broadcast(std::span<float>(), 1), ConfigError);
  }));
}

}  // namespace device_test
