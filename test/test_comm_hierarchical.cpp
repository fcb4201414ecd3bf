// SANITIZE: address thread
// ALONE
// Hierarchical over two transports, run by threads: nodes of any size, with ranks in any order.
#include <atomic>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include <convoy/comm/policy/hierarchical.hpp>
#include <convoy/comm/transport/group.hpp>

using namespace convoy;
using transport::Threads;
using Local = transport::Group<Threads>;

template <>
struct comm::NodeOf<Local, Threads> {
  static Local local(const Threads& world, const Nodes& nodes) {
    return Local(world, nodes.members(nodes.node_of(world.rank())));
  }
};

namespace {

template <template <class> class Inter, template <class> class Intra = comm::Direct>
using Levels = comm::Hierarchical<Intra<Local>, Inter<Threads>>;
using TreeInside = Levels<comm::Ring, comm::Tree>;
using Trees = Levels<comm::Tree, comm::Tree>;
using RingInside = Levels<comm::Tree, comm::Ring>;
using HalvingInside = Levels<comm::Ring, comm::HalvingDoubling>;

const comm::Options small{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};
const std::vector<std::vector<int>> worlds{
    {0},          {0, 0, 0},       {0, 1, 2},          {0, 0, 1, 1},
    {5, 7, 5, 7}, {0, 0, 0, 1, 1}, {3, 1, 1, 1, 2, 2}, {0, 1, 1, 1, 1, 1, 1}};

// Inputs with exact sums, so the order of summation does not matter.
template <class T>
std::vector<T> whole(int rank, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(
        static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 31) % 61) - 30));
  return values;
}

/// Both levels as one schedule; `Half` are the two halves inside nodes.
template <class Intra, class Inter, class Half>
struct Whole {
  static constexpr std::string_view name = "two levels";
  static constexpr schedule::Goal goal = schedule::Goal::all_reduce;
  comm::Nodes nodes;
  int segments = 1;
  friend bool operator==(const Whole& a, const Whole& b) {
    return a.segments == b.segments && a.nodes.count() == b.nodes.count();
  }

  auto across() const {
    comm::detail::Across<Intra, Inter> middle(nodes);
    middle.segments = segments;
    return middle;
  }
  int blocks(int size) const { return across().blocks(size); }
  int owner(int block, int size) const { return across().owner(block, size); }
  template <class Emit>
  void steps(int rank, int size, Emit&& emit) const {
    inside<typename Half::ReduceScatter>(rank, size, emit);
    across().steps(rank, size, emit);
    inside<typename Half::AllGather>(rank, size, emit);
  }

 private:
  template <class H, class Emit>
  void inside(int rank, int size, Emit& emit) const {
    const std::vector<int>& members = nodes.members(nodes.node_of(rank));
    const int shards = across().shards, parts = blocks(size) / shards;
    int me = 0;
    while (members[static_cast<std::size_t>(me)] != rank) ++me;
    const schedule::InParts<H> half{shards, segments};
    half.steps(me, static_cast<int>(members.size()), [&](const schedule::Step& step) {
      emit(schedule::Step{step.action, step.completes && nodes.count() == 1,
                          members[static_cast<std::size_t>(step.peer)], step.chunk * parts,
                          step.count * parts});
    });
  }
};

}  // namespace

TEST_CASE_TEMPLATE("two levels over two transports are proved as one schedule", W,
                   Whole<schedule::Direct, schedule::Ring, schedule::Ring>,
                   Whole<schedule::Direct, schedule::Tree, schedule::Ring>,
                   Whole<schedule::Direct, schedule::HalvingDoubling, schedule::Ring>,
                   Whole<schedule::Ring, schedule::Tree, schedule::Ring>,
                   Whole<schedule::Tree, schedule::Ring, schedule::Tree>,
                   Whole<schedule::HalvingDoubling, schedule::HalvingDoubling, schedule::HalvingDoubling>) {
  for (const auto& node_of : worlds)
    for (const int segments : {1, 3}) {
      const W whole{comm::Nodes(node_of), segments};
      const auto verdict = schedule::verify(whole, static_cast<int>(node_of.size()), 64);
      CAPTURE(node_of.size());
      CAPTURE(segments);
      CHECK_MESSAGE(verdict, schedule::explain(verdict));
    }
}

TEST_CASE("inside nodes Direct leaves each part where a ring in parts does, so that one proof is for both") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int parts = ranks; parts <= 12; ++parts)
      for (int part = 0; part < parts; ++part)
        CHECK(schedule::DirectReduceScatter{parts}.owner(part, ranks) ==
              schedule::InParts<schedule::RingReduceScatter>{parts}.owner(part, ranks));
}

TEST_CASE_TEMPLATE("two levels give the sum, mean and extremes of all ranks", A, Levels<comm::Ring>,
                   Levels<comm::HalvingDoubling>, Levels<comm::Tree>, TreeInside, Trees, RingInside,
                   HalvingInside) {
  for (const auto& node_of : worlds)
    for (std::int64_t count : {0, 1, 100, 7'001}) {
      const int ranks = static_cast<int>(node_of.size());
      std::atomic<int> right{0};
      std::atomic<std::int64_t> bytes{0};
      Threads::World(ranks).run([&](Threads endpoint) {
        A exchange(endpoint, comm::Nodes(node_of), small);
        std::vector<float> sum(static_cast<std::size_t>(count)), least = whole<float>(0, count);
        for (int r = 0; r < ranks; ++r) {
          const auto values = whole<float>(r, count);
          for (std::size_t i = 0; i < sum.size(); ++i) {
            sum[i] += values[i];
            least[i] = std::min(least[i], values[i]);
          }
        }
        auto values = whole<float>(exchange.rank(), count);
        exchange.all_reduce(std::span<float>(values), comm::sum);
        bytes += exchange.traffic().bytes;
        right += oracle::same_bits(values, sum);
        values = whole<float>(exchange.rank(), count);
        exchange.all_reduce(std::span<float>(values), comm::min);
        right += oracle::same_bits(values, least);
        values = whole<float>(exchange.rank(), count);
        exchange.all_reduce(std::span<float>(values), comm::mean);
        for (float& s : sum) s *= 1.0f / static_cast<float>(ranks);
        right += oracle::same_bits(values, sum);
        auto wide = whole<bf16>(exchange.rank(), count);
        exchange.all_reduce(std::span<bf16>(wide), comm::max);
        right += exchange.size() == ranks && wide.size() == sum.size();
      });
      CAPTURE(ranks);
      CAPTURE(count);
      CHECK(right == 4 * ranks);
      // Each element leaves a node as often as a ring or a tree of nodes sends it, whichever rank of the node
      // holds it.
      if (!std::is_same_v<A, Levels<comm::HalvingDoubling>>)
        CHECK(bytes == 2 * (comm::Nodes(node_of).count() - 1) * count * 4);
    }
}

TEST_CASE_TEMPLATE("two levels train with several buckets in flight, all ranks to the same bits", A,
                   Levels<comm::Ring>, TreeInside, RingInside) {
  for (const auto& node_of : worlds) {
    const int ranks = static_cast<int>(node_of.size());
    const auto expected = oracle::trained(ranks, 5'000, 4);
    std::vector<std::vector<float>> results(node_of.size());
    Threads::World(ranks).run([&](Threads endpoint) {
      A exchange(endpoint, comm::Nodes(node_of), small);
      results[static_cast<std::size_t>(exchange.rank())] = oracle::train(exchange, 5'000, 4);
    });
    for (const auto& result : results) {
      CHECK(oracle::same_bits(result, results[0]));
      double worst = 0;
      for (std::size_t i = 0; i < result.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(result[i]) - static_cast<double>(expected[i])));
      CHECK(worst < 1e-4);
    }
  }
}

TEST_CASE("an observer sees each bucket of a step once over two levels") {
  for (const auto& node_of : worlds) {
    std::atomic<int> right{0};
    Threads::World(static_cast<int>(node_of.size())).run([&](const Threads& endpoint) {
      Levels<comm::Ring> exchange(endpoint, comm::Nodes(node_of), small);
      right += oracle::seen_once_a_step(exchange, 2'000);
    });
    CHECK(right == static_cast<int>(node_of.size()));
  }
}

TEST_CASE_TEMPLATE(
    "ranks of all nodes learn of the culprit by its number in the world, whatever level they wait at", A,
    Levels<comm::Ring>, TreeInside) {
  // Trees leave the last rank of three without a shard: it waits inside its node only.
  const std::vector<int> node_of =
      std::is_same_v<A, TreeInside> ? std::vector<int>{0, 0, 0, 1, 1, 1} : std::vector<int>{0, 0, 1, 1, 2, 2};
  for (const bool fails : {true, false}) {
    std::vector<std::string> said(6);
    std::vector<int> culprits(6, -1);
    std::atomic<int> reported{0};
    try {
      Threads::World(6).run([&](Threads endpoint) {
        const int rank = endpoint.rank();
        A exchange(endpoint, comm::Nodes(node_of),
                   {.deadline = Seconds(fails ? 20 : 2), .segment_bytes = 256, .window = 2});
        oracle::train(exchange, 5'000, 1);
        if (rank == 3) {
          if (fails) fail("the disk is full");
          const Deadline enough(Seconds(30));
          while (reported < 5 && !enough.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        try {
          oracle::train(exchange, 5'000, 1);
        } catch (const CommError& error) {
          said[static_cast<std::size_t>(rank)] = error.what();
          culprits[static_cast<std::size_t>(rank)] = error.culprit;
        }
        ++reported;
      });
    } catch (const Error&) {
    }
    for (int rank = 0; rank < 6; ++rank) {
      if (rank == 3) continue;
      CAPTURE(rank);
      CAPTURE(said[static_cast<std::size_t>(rank)]);
      CHECK(culprits[static_cast<std::size_t>(rank)] == 3);
      CHECK(said[static_cast<std::size_t>(rank)].find("rank 3") != std::string::npos);
    }
  }
}

TEST_CASE("nodes of more or fewer ranks than the world has are refused on every rank") {
  for (const std::vector<int>& node_of : {std::vector{0}, std::vector{0, 0}, std::vector{0, 0, 1, 1}})
    Threads::World(3).run([&](const Threads& endpoint) {
      CHECK_THROWS_WITH_AS(Levels<comm::Ring>(endpoint, comm::Nodes(node_of), small),
                           concat("hierarchical: the nodes list ", node_of.size(),
                                  " ranks in a world of 3; list the node of each rank")
                               .c_str(),
                           ConfigError);
    });
}

TEST_CASE("an arena may be released while it is exchanged between nodes") {
  // Rank 1 has sent its part to rank 3, which takes it only after the arena is gone.
  std::atomic<bool> released{false}, heard{false};
  std::string said;
  const auto all = [&](Threads endpoint) {
    Levels<comm::Ring> exchange(endpoint, comm::Nodes({0, 0, 1, 1}), {.deadline = Seconds(20)});
    constexpr std::int64_t count = 1'000'000;
    const Range buckets[] = {{0, count}};
    Buffer<float> gradients(count, exchange.memory()), parameters(count, exchange.memory());
    exchange.open({}, {gradients, parameters, buckets});
    const Deadline deadline(Seconds(20));
    if (endpoint.rank() == 1) {
      const auto before = exchange.traffic().messages;
      exchange.begin(0);
      while (exchange.traffic().messages == before && !deadline.expired()) exchange.poll();
      gradients = {};
      released = true;
      while (!heard && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      fail("this rank gives up");
    }
    if (endpoint.rank() == 3)
      while (!released && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    try {
      exchange.finish([](Range, float) {});
    } catch (const CommError& error) {
      if (endpoint.rank() == 3) said = error.what();
    }
    if (endpoint.rank() == 3) heard = true;
  };
  CHECK_THROWS_WITH_AS(Threads::World(4).run(all), "this rank gives up", Error);
  CHECK(said.find("it was ended with buckets in flight") != std::string::npos);
}
