// SANITIZE: address thread
// Groups of ranks next to the world: split by color, by list and by name.
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "comm_said.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/comm/tensors/groups.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>

using namespace convoy;
using comm::Handle;
using comm_said::Said;
using transport::Threads;

namespace {

const comm::Options options{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

}  // namespace

TEST_CASE("rows and columns of ranks sum beside the world") {
  std::atomic<int> right{0};
  Threads::World(6).run([&](const Threads& world) {
    using Part = transport::Group<Threads>;
    const int rank = world.rank(), row = rank / 3, column = rank % 3;
    const Part row_group = comm::split(world, row, 0, options),
               column_group = comm::split(world, column, -rank, options);
    comm::Nonblocking<comm::Ring<Threads>> all(world, options);
    comm::Nonblocking<comm::Ring<Part>> across(row_group, options);
    comm::Nonblocking<comm::Direct<Part>> down(column_group, options);
    bool good = across.rank() == column && across.size() == 3 && down.rank() == 1 - row && down.size() == 2;
    for (int round = 0; round < 20; ++round) {
      std::vector<float> a(500, static_cast<float>(rank)), b = a, c = a;
      // The order differs between ranks, which is allowed: these are three exchanges.
      Handle one, two, three;
      const auto begin_down = [&] { two = down.all_reduce_async(std::span<float>(b), comm::sum); };
      if (rank % 2 == 0) begin_down();
      one = across.all_reduce_async(std::span<float>(a), comm::sum);
      three = all.all_reduce_async(std::span<float>(c), comm::sum);
      if (rank % 2 == 1) begin_down();
      one.wait();
      two.wait();
      three.wait();
      good = good && a[499] == static_cast<float>(9 * row + 3) &&
             b[499] == static_cast<float>(2 * column + 3) && c[499] == 15;
    }
    std::vector<float> gradient(100, static_cast<float>(rank));
    comm::GradientBuckets buckets(across, {{"weight", gradient}});
    buckets.ready(0);
    buckets.wait();
    good = good && gradient[0] == static_cast<float>(3 * row + 1);
    right += good;
  });
  CHECK(right == 6);
}

TEST_CASE("exchanges are made by name over groups, one of which may be a single rank") {
  std::atomic<int> right{0};
  Threads::World(3).run([&](const Threads& world) {
    const auto part = comm::split(world, world.rank() == 0 ? 0 : 1, 0, options);
    comm::Any exchange = comm::make("ring", part, options);
    std::vector<float> a(10, 1.0f);
    exchange.all_reduce(a, comm::sum);
    comm::Ring<Threads> all(world, options);
    all.all_reduce(std::span<float>(a), comm::sum);
    right += a[9] == 5;
  });
  CHECK(right == 3);
}

TEST_CASE("a policy that a group does not have is refused over a group, not over its world's transport") {
  Threads::World(1).run([&](const Threads& world) {
    CHECK_THROWS_WITH_AS(
        static_cast<void>(comm::make("native", comm::split(world, 0))),
        "there is no comm \"native\" over a group of ranks; choose none, ring, halving-doubling, tree, "
        "direct, "
        "auto, sharded, reproducible, ps, ps-async and ps-stale (hierarchical and native are for mpi)",
        ConfigError);
  });
}

TEST_CASE("a group by list has the list's order") {
  std::atomic<int> right{0};
  Threads::World(4).run([&](const Threads& world) {
    const bool inside = world.rank() != 1;
    const auto part = comm::group(world, inside ? std::vector<int>{3, 0, 2} : std::vector<int>{1}, options);
    comm::Nonblocking<comm::Ring<transport::Group<Threads>>> exchange(part, options);
    const std::vector<int> ranks = comm::all_gather(exchange, world.rank());
    right += ranks == (inside ? std::vector<int>{3, 0, 2} : std::vector<int>{1});
  });
  CHECK(right == 4);
}

TEST_CASE("lists that make no groups are refused, by all ranks in the same words") {
  struct Case {
    std::vector<std::vector<int>> lists;
    std::string sentence;
  };
  const Case cases[] = {
      {{{0, 1}, {0, 1}, {0, 1}}, "rank 2 is not in the group that it lists: 0 1"},
      {{{0, 1, 2}, {0, 1}, {0, 1, 2}}, "rank 1 lists the group 0 1 where rank 0 lists 0 1 2"},
      {{{0, 1}, {1, 0}, {2}}, "rank 1 lists the group 1 0 where rank 0 lists 0 1"},
      {{{0}, {1, 2}, {2, 3}}, "rank 2 lists rank 3 in its group, in a world of 3"},
      {{{0, 0}, {1}, {2}}, "rank 0 lists rank 0 twice in its group"},
      {{{0}, {}, {2}}, "rank 1 is not in the group that it lists: no rank"},
      {{{0}, {1, 1, 1, 1, 1}, {2}}, "rank 1 lists 5 ranks as its group in a world of 3"},
  };
  for (const Case& one : cases) {
    Said said(3);
    Threads::World(3).run([&](const Threads& world) {
      said.listen(world.rank(),
                  [&] { comm::group(world, one.lists[static_cast<std::size_t>(world.rank())], options); });
    });
    for (const std::string& s : said.what) CHECK(s == one.sentence);
  }
}

TEST_CASE("a rank that dies in a group is named by its number there, and the other group goes on") {
  Said said(4);
  std::atomic<int> right{0};
  std::string cause;
  try {
    Threads::World(4).run([&](const Threads& world) {
      const auto part = comm::split(world, world.rank() % 2, 0, options);
      comm::Nonblocking<comm::Ring<transport::Group<Threads>>> exchange(part, options);
      std::vector<float> a(1000, 1.0f);
      exchange.all_reduce_async(std::span<float>(a), comm::sum).wait();
      if (world.rank() == 3) fail("rank 3 has had enough");
      said.listen(world.rank(), [&] {
        for (int k = 0; k < 20; ++k) exchange.all_reduce_async(std::span<float>(a), comm::mean).wait();
        right += a[999] == 2;
      });
    });
  } catch (const Error& e) {
    cause = e.what();
  }
  CHECK(cause == "rank 3 has had enough");
  CHECK(said.culprit[1] == 1);
  CHECK(right == 2);
}
