// RANKS: 2 3 5
// The algorithms over MPI, which copies what it receives: the bits, messages and bytes of each schedule, and
// training with several buckets in flight.
#include <algorithm>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "../comm_schedule_oracle.hpp"
#include "../comm_step.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/transport/mpi.hpp>

using namespace convoy;
using transport::Mpi;

namespace {

using Levels = schedule::Hierarchical<schedule::HalvingDoubling, schedule::Tree, schedule::Every<2>>;
using Trees = schedule::Hierarchical<schedule::Tree, schedule::Tree, schedule::Sizes<3, 1>>;

const comm::Options small{.deadline = Seconds(30), .segment_bytes = 256, .window = 2};

}  // namespace

TEST_CASE_TEMPLATE("an algorithm over mpi gives the bits, messages and bytes of its schedule", S,
                   schedule::HalvingDoubling, schedule::Tree, Levels, Trees) {
  comm::AllReduce<comm::Algorithm<S, Mpi>> exchange(Mpi{}, small);
  const int ranks = exchange.size(), rank = exchange.rank();
  for (std::int64_t count : {0, 1, 17, 100, 4099, 20'000}) {
    CAPTURE(count);
    const int segments = comm::segments_for(count, 4, S{}.blocks(ranks), small);
    const S schedule = schedule::segmented(S{}, segments, small.window);
    const auto expected = oracle::executed<f32>(schedule, ranks, count, 5, comm::Op::mean);
    auto values = oracle::input<f32>(rank, count, 5);
    const auto before = exchange.traffic();
    exchange.all_reduce(std::span<f32>(values), comm::mean);
    const auto after = exchange.traffic();
    CHECK(oracle::same_bits(values, expected[static_cast<std::size_t>(rank)]));
    std::vector<double> sent{static_cast<double>(after.messages - before.messages),
                             static_cast<double>(after.bytes - before.bytes)};
    exchange.all_reduce(std::span<double>(sent), comm::sum);
    const auto price = schedule::price(schedule, ranks, count, 4);
    CHECK(sent[0] == static_cast<double>(price.messages));
    CHECK(sent[1] == static_cast<double>(price.bytes));
  }
}

TEST_CASE("training over mpi ends with the same bits on every rank, whatever the algorithm") {
  for (const char* policy : {"halving-doubling", "tree", "auto"}) {
    CAPTURE(policy);
    comm::Any exchange = comm::make(policy, Mpi{}, small);
    const auto mine = oracle::train(exchange, 5003, 4, 3);
    auto first = mine;
    exchange.broadcast(std::span<float>(first), 0);
    CHECK(oracle::same_bits(mine, first));
    const auto ring = oracle::trained(exchange.size(), 5003, 4);
    double worst = 0;
    for (std::size_t i = 0; i < ring.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(mine[i]) - static_cast<double>(ring[i])));
    CHECK(worst < 1e-3);
  }
}
