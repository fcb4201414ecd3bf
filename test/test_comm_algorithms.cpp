// SANITIZE: address thread
// Every all-reduce algorithm over threads: the same bits as its schedule executed by one thread, messages and
// bytes as priced, training with several buckets in flight, and selection by name.
#include <atomic>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "comm_schedule_oracle.hpp"
#include "comm_step.hpp"
#include "sanitized.hpp"
#include <convoy/comm/engine/link.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/schedule/broadcast.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/transport/checked.hpp>

using namespace convoy;
using transport::Threads;

namespace {

using Pairs = schedule::Hierarchical<schedule::Ring, schedule::Tree, schedule::Every<2>>;
using Uneven = schedule::Hierarchical<schedule::HalvingDoubling, schedule::Ring, schedule::Sizes<3, 1, 2>>;
using Nested = schedule::Hierarchical<
    schedule::Ring, schedule::Hierarchical<schedule::Ring, schedule::HalvingDoubling, schedule::Every<2>>,
    schedule::Every<2>>;
using Forest = schedule::Hierarchical<schedule::Tree, schedule::Tree, schedule::Sizes<3, 1, 2>>;
using Deep =
    schedule::Hierarchical<schedule::Hierarchical<schedule::Tree, schedule::Ring, schedule::Sizes<2, 1>>,
                           schedule::Tree, schedule::Every<4>>;

static_assert(std::is_same_v<comm::Hierarchical<comm::Ring<Threads>, comm::Tree<Threads>, schedule::Every<2>>,
                             comm::AllReduce<comm::Algorithm<Pairs, Threads>>>);

using Choice = comm::AutoSchedule;
using Chosen = comm::AllReduce<comm::Algorithm<Choice, Threads>>;
static_assert(std::is_same_v<comm::Auto<Threads>, comm::Direct<Threads>>);
static_assert(std::is_same_v<comm::Auto<transport::Checked<Threads>>,
                             comm::AllReduce<comm::Algorithm<Choice, transport::Checked<Threads>>>>);

const comm::Options small{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

template <class S>
S made(std::int64_t count, std::size_t element, int ranks, const comm::Options& options) {
  const int segments = comm::segments_for(count, element, S{}.blocks(ranks), options);
  return schedule::segmented(S{}, segments, options.window);
}

// Checks the bits, and the traffic against the price.
template <class S, class T, class O>
void check(int ranks, std::int64_t count, O op, const comm::Options& options) {
  const S schedule = made<S>(count, sizeof(T), ranks, options);
  const auto expected = oracle::executed<T>(schedule, ranks, count, 5, O::value);
  const auto whole = oracle::executed<T>(S{}, ranks, count, 5, O::value);
  const auto price = schedule::price(schedule, ranks, count, static_cast<std::int64_t>(sizeof(T)));
  std::atomic<int> right{0};
  std::atomic<std::int64_t> messages{0}, bytes{0};
  Threads::World(ranks).run([&](Threads endpoint) {
    comm::AllReduce<comm::Algorithm<S, Threads>> exchange(endpoint, options);
    auto values = oracle::input<T>(exchange.rank(), count, 5);
    exchange.all_reduce(std::span<T>(values), op);
    right += oracle::same_bits(values, expected[static_cast<std::size_t>(exchange.rank())]) &&
             oracle::same_bits(values, expected[0]) && oracle::same_bits(values, whole[0]);
    messages += exchange.traffic().messages;
    bytes += exchange.traffic().bytes;
  });
  CAPTURE(S::name);
  CAPTURE(ranks);
  CAPTURE(count);
  CHECK(right == ranks);
  CHECK(messages == price.messages);
  CHECK(bytes == price.bytes);
}

struct Namesake : schedule::Ring {
  static constexpr std::string_view name = schedule::Broadcast::name;
};

// Correct for several ranks only.
struct ForSeveral : schedule::Ring {
  static constexpr std::string_view name = "for several";
  static constexpr bool proved = false;
  constexpr int blocks(int size) const { return size > 1 ? size : 0; }
};

}  // namespace

TEST_CASE_TEMPLATE("an algorithm gives the bits, messages and bytes of its schedule", S,
                   schedule::HalvingDoubling, schedule::Tree, Pairs, Uneven, Nested, Forest, Deep) {
  for (int ranks = 1; ranks <= (sanitized ? 5 : 9); ++ranks)
    for (std::int64_t count : {0, 1, 17, 100, 4099, 20'000}) {
      if (sanitized && count > 4099) continue;
      check<S, f32>(ranks, count, comm::sum, small);
      if (count == 4099) {
        check<S, f32>(ranks, count, comm::mean, small);
        check<S, f64>(ranks, count, comm::mean, small);
        check<S, bf16>(ranks, count, comm::mean, small);
        check<S, i32>(ranks, count, comm::max, small);
      }
    }
  for (int window : {1, 4, 8})
    check<S, f32>(5, 50'001, comm::sum, {.deadline = Seconds(20), .segment_bytes = 1000, .window = window});
}

TEST_CASE_TEMPLATE("training with several buckets in flight ends with the same bits on every rank", S,
                   schedule::HalvingDoubling, schedule::Tree, Pairs, Uneven, Nested, Forest, Deep) {
  for (int ranks : {2, 3, 4, 7}) {
    if (sanitized && ranks % 2 == 0) continue;
    std::vector<std::vector<float>> parameters(static_cast<std::size_t>(ranks));
    Threads::World(ranks).run([&](Threads endpoint) {
      comm::AllReduce<comm::Algorithm<S, Threads>> exchange(endpoint, small);
      parameters[static_cast<std::size_t>(exchange.rank())] = oracle::train(exchange, 5003, 4, 3);
    });
    const auto ring = oracle::trained(ranks, 5003, 4);
    CAPTURE(ranks);
    for (const auto& mine : parameters) {
      CHECK(oracle::same_bits(mine, parameters[0]));
      REQUIRE(mine.size() == ring.size());
      double worst = 0;
      for (std::size_t i = 0; i < ring.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(mine[i]) - static_cast<double>(ring[i])));
      CHECK(worst < 1e-3);
    }
  }
}

TEST_CASE("a schedule may have the name of another") {
  std::atomic<int> right{0};
  Threads::World(3).run([&](Threads endpoint) {
    comm::AllReduce<comm::Algorithm<Namesake, Threads>> exchange(endpoint, small);
    i32 value[] = {exchange.rank() + 1};
    exchange.all_reduce(std::span<i32>(value), comm::sum);
    right += value[0] == 6;
    unsigned char byte[] = {static_cast<unsigned char>(exchange.rank() + 1)};
    exchange.broadcast(std::span<unsigned char>(byte), 0);
    right += byte[0] == 1;
  });
  CHECK(right == 6);
}

TEST_CASE("a schedule that has no blocks for one rank is refused there") {
  for (const int ranks : {1, 2})
    Threads::World(ranks).run([&](Threads endpoint) {
      comm::AllReduce<comm::Algorithm<ForSeveral, Threads>> exchange(endpoint, small);
      std::vector<float> values(100, 1.0f);
      const auto exchanges = [&] { exchange.all_reduce(std::span<float>(values), comm::sum); };
      if (ranks == 2) return exchanges();
      CHECK_THROWS_WITH_AS(exchanges(),
                           "the schedule for several is wrong for 1 rank and 1 segment: it cuts a buffer "
                           "into no blocks, where at least one is needed",
                           ConfigError);
    });
}

TEST_CASE("Auto goes by rank 0's prices, whatever the others were told") {
  constexpr int ranks = 6;
  const schedule::CostModel slow_start{1e-3, 1e-9, 0}, slow_wire{0, 1e-6, 0};
  for (bool latency : {true, false})
    for (std::int64_t count : {1000, 4000}) {
      comm::Options options = small;
      options.cost = latency ? slow_start : slow_wire;
      const auto segments = [&](int blocks) { return comm::segments_for(count, 4, blocks, small); };
      const auto messages_by = [&](const schedule::CostModel& model) {
        Choice best{1, small.window,
                    schedule::cheapest<Choice>(ranks, count, 4, model, small.window, segments)};
        best.segments = segments(best.blocks(ranks));
        return schedule::price(best, ranks, count, 4).messages;
      };
      const std::int64_t expected = messages_by(options.cost);
      REQUIRE(expected != messages_by(latency ? slow_wire : slow_start));
      std::atomic<std::int64_t> messages{0};
      std::atomic<int> right{0};
      Threads::World(ranks).run([&](Threads endpoint) {
        comm::Options mine = options;
        if (endpoint.rank() > 0) mine.cost = latency ? slow_wire : slow_start;
        Chosen exchange(endpoint, mine);
        std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
        exchange.all_reduce(std::span<float>(values), comm::sum);  // chooses the algorithm
        exchange.barrier();
        const auto before = exchange.traffic();
        exchange.all_reduce(std::span<float>(values), comm::sum);
        const auto after = exchange.traffic();
        messages += after.messages - before.messages;
        right += values == std::vector<float>(static_cast<std::size_t>(count), ranks * ranks);
      });
      CAPTURE(latency);
      CAPTURE(count);
      CHECK(right == ranks);
      CHECK(messages == expected);
    }
}

TEST_CASE("costs that are no times are refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const schedule::CostModel& cost :
       {schedule::CostModel{-1e-6, 0, 0}, schedule::CostModel{0, nan, 0}, schedule::CostModel{0, 0, 1e9}})
    CHECK_THROWS_AS(Threads::World(1).run([&](Threads endpoint) { Chosen(endpoint, {.cost = cost}); }),
                    ConfigError);
}

TEST_CASE("Auto measures what it was not told, and trains") {
  for (int ranks : {1, 2, 3}) {
    std::vector<std::vector<float>> parameters(static_cast<std::size_t>(ranks));
    Threads::World(ranks).run([&](Threads endpoint) {
      Chosen exchange(endpoint, small);
      parameters[static_cast<std::size_t>(exchange.rank())] = oracle::train(exchange, 5003, 2, 3);
    });
    for (const auto& mine : parameters) CHECK(oracle::same_bits(mine, parameters[0]));
  }
  std::atomic<int> right{0};
  Threads::World(2).run([&](Threads endpoint) {
    comm::Engine engine(endpoint, small);
    const schedule::CostModel model = comm::measure(engine);
    right += model.alpha > 0 && model.beta > 0 && model.gamma > 0;
  });
  CHECK(right == 2);
}

TEST_CASE("an algorithm is chosen by name") {
  for (const char* policy : {"ring", "halving-doubling", "tree", "auto"}) {
    CAPTURE(policy);
    std::atomic<int> right{0};
    Threads::World(3).run([&](Threads endpoint) {
      comm::Any any = comm::make(policy, endpoint, small);
      std::vector<float> values(1000, 1.0f + static_cast<float>(any.rank()));
      any.all_reduce(std::span<float>(values), comm::sum);
      // Ranks that share memory need not send, so "auto" is "direct".
      right += any.policy() == (std::string_view(policy) == "auto" ? "direct" : policy) &&
               values == std::vector<float>(1000, 6.0f);
    });
    CHECK(right == 3);
  }
}
