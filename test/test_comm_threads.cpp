// SANITIZE: address thread
// ALONE
// The ring over threads: results bit for bit in the ring's order, several buckets in flight, traffic as
// priced, and no allocation in a step.
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "comm_oracle.hpp"
#include "comm_step.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/comm/schedule/price.hpp>

using namespace convoy;
using transport::Threads;

namespace {

// doctest's assertions are thread-safe, but one per element would be slow: each rank reports one bool.
template <class T, class O>
void check_all_reduce(int ranks, std::int64_t count, O op, const comm::Options& options) {
  const auto expected =
      ranks == 1 ? oracle::input<T>(0, count, 5) : oracle::ring<T>(ranks, count, 5, O::value);
  std::atomic<int> right{0};
  Threads::World(ranks).run([&](Threads endpoint) {
    comm::Ring<Threads> ring(endpoint, options);
    auto values = oracle::input<T>(ring.rank(), count, 5);
    ring.all_reduce(std::span<T>(values), op);
    right += oracle::same_bits(values, expected);
  });
  CAPTURE(ranks);
  CAPTURE(count);
  CHECK(right == ranks);
}

const comm::Options small{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

// Message spaces of the endpoint's world, in use or to be used again.
int spaces(const Threads& endpoint) {
  struct Opened : Threads {
    static int count(const Threads& endpoint) { return (endpoint.*(&Opened::world_))->spaces(); }
  };
  return Opened::count(endpoint);
}

}  // namespace

TEST_CASE_TEMPLATE("all-reduce gives the bits of the ring's order", T, f32, f64, bf16, f16, i32) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (std::int64_t count : {0, 1, 2, 15, 16, 17, 100, 1000, 4099}) {
      check_all_reduce<T>(ranks, count, comm::sum, small);
      if (count % 2 == 1) {
        check_all_reduce<T>(ranks, count, comm::min, small);
        check_all_reduce<T>(ranks, count, comm::max, small);
        if constexpr (!std::is_same_v<T, i32>) check_all_reduce<T>(ranks, count, comm::mean, small);
      }
    }
}

TEST_CASE("segments and windows do not change a bit") {
  for (std::size_t segment : {std::size_t{64}, std::size_t{1000}, std::size_t{1} << 18})
    for (int window : {1, 4, 8})
      check_all_reduce<f32>(3, 50'001, comm::sum,
                            {.deadline = Seconds(20), .segment_bytes = segment, .window = window});
}

TEST_CASE("training steps with several buckets in flight give the ring's bits on every rank") {
  for (int ranks : {1, 2, 3, 5})
    for (int polls : {0, 3}) {
      const auto expected = oracle::trained(ranks, 5003, 4);
      std::atomic<int> right{0};
      Threads::World(ranks).run([&](Threads endpoint) {
        comm::Ring<Threads> ring(endpoint, small);
        right += oracle::same_bits(oracle::train(ring, 5003, 4, polls), expected);
      });
      CAPTURE(ranks);
      CHECK(right == ranks);
    }
}

TEST_CASE("operations of one's own may come between buckets in flight") {
  std::atomic<int> right{0};
  Threads::World(3).run([&](Threads endpoint) {
    comm::Ring<Threads> ring(endpoint, small);
    std::vector<float> gradients(3000, static_cast<float>(ring.rank())), parameters(3000);
    const std::vector<Range> cuts{{0, 1000}, {1000, 3000}};
    ring.open({}, {gradients, parameters, cuts});
    ring.begin(0);
    std::vector<double> norm{1.0 + ring.rank()};
    ring.all_reduce(std::span<double>(norm), comm::max);
    ring.begin(1);
    ring.barrier();
    int updates = 0;
    ring.finish([&](Range, float) { ++updates; });
    right += norm[0] == 3.0 && updates == 2 && gradients[0] == 3.0f && gradients[2999] == 3.0f;
  });
  CHECK(right == 3);
}

TEST_CASE("broadcast from every root, of any size") {
  for (int ranks : {1, 2, 3, 6})
    for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{777}}) {
      std::atomic<int> right{0};
      Threads::World(ranks).run([&](Threads endpoint) {
        comm::Ring<Threads> ring(endpoint, small);
        bool good = true;
        for (int root = 0; root < ranks; ++root) {
          std::vector<int> values(count, ring.rank());
          ring.broadcast(std::span<int>(values), root);
          good = good && values == std::vector<int>(count, root);
        }
        right += good;
      });
      CHECK(right == ranks);
    }
}

TEST_CASE("a world holds any number of exchanges, and the first still works after the last") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](Threads endpoint) {
    comm::Ring<Threads> first(endpoint, small);
    std::vector<Threads> more;
    for (int i = 0; i < 2'000; ++i) more.push_back(endpoint.isolated());
    comm::Ring<Threads> last(endpoint, small);
    for (comm::Ring<Threads>* ring : {&first, &last}) {
      i32 sum[] = {1};
      ring->all_reduce(std::span<i32>(sum), comm::sum);
      right += sum[0] == 2;
    }
  });
  CHECK(right == 4);
}

TEST_CASE("exchanges made one after another use the same message space, and none of its old messages") {
  for (int ranks : {1, 2, 3}) {
    std::atomic<int> right{0}, most{0};
    Threads::World(ranks).run([&](Threads endpoint) {
      bool good = true;
      for (int round = 0; round < 50; ++round) {
        Threads unheard = endpoint.isolated();
        Threads::Request request;
        for (int message = 0; message < 3; ++message)
          good = unheard.post(request, (endpoint.rank() + 1) % ranks, &round, sizeof round) && good;
        if (round % 2 == 0) unheard = endpoint.isolated();
        comm::Ring<Threads> ring(unheard, small);
        std::vector<i32> values(1000, round);
        ring.all_reduce(std::span<i32>(values), comm::sum);
        good = good && values == std::vector<i32>(1000, round * ranks);
        ring.barrier();
      }
      right += good;
      most = spaces(endpoint);
    });
    CAPTURE(ranks);
    CHECK(right == ranks);
    // The own one of `endpoint`, three of the last round that a rank still has, and three of the next round.
    CHECK(most.load() <= 7);
  }
}

TEST_CASE("a message space is not reused while a rank still has it") {
  std::atomic<int> right{0};
  Threads::World(3).run([&](Threads endpoint) {
    constexpr int sent = 17;
    std::optional<Threads> mine = endpoint.isolated();
    Threads::Request request;
    if (endpoint.rank() == 0) right += mine->post(request, 2, &sent, sizeof sent);
    if (endpoint.rank() != 2) mine.reset();
    comm::Ring<Threads> ring(endpoint, small);
    i32 value[] = {1};
    ring.all_reduce(std::span<i32>(value), comm::sum);
    if (endpoint.rank() != 2) return;
    mine->receive(request, 0, 0, nullptr, 0);
    const transport::Arrival arrival = mine->arrived(request);
    right += arrival.data != nullptr && *static_cast<const int*>(arrival.data) == sent;
    mine->release(request);
  });
  CHECK(right == 2);
}

TEST_CASE("a rank may withdraw while the others reuse message spaces that it has closed") {
  std::atomic<int> filled{0}, reused{0};
  Threads::World(3).run([&](Threads endpoint) {
    const auto wait_for = [](const std::atomic<int>& count, int wanted) {
      while (count < wanted) std::this_thread::yield();
    };
    Threads::Request request;
    {
      std::vector<Threads> open;
      for (int i = 0; i < 20; ++i) {
        open.push_back(endpoint.isolated());
        for (int peer = 0; peer < 3; ++peer) open.back().post(request, peer, &i, sizeof i);
      }
    }
    ++filled;
    wait_for(filled, 3);
    if (endpoint.rank() == 2)
      while (reused < 2) endpoint.withdraw("this is a test");
    else {
      for (int i = 0; i < 20; ++i) endpoint.isolated().post(request, 1 - endpoint.rank(), &i, sizeof i);
      ++reused;
    }
  });
  CHECK(reused == 2);
}

TEST_CASE("messages and bytes are those of the price") {
  for (int ranks : {2, 3, 4})
    for (std::int64_t count : {1, 100, 10'000}) {
      const int segments = comm::segments_for(count, 4, ranks, small);
      const auto price = schedule::price(schedule::Ring{segments, small.window}, ranks, count, 4);
      std::atomic<std::int64_t> messages{0}, bytes{0};
      Threads::World(ranks).run([&](Threads endpoint) {
        comm::Ring<Threads> ring(endpoint, small);
        std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
        ring.all_reduce(std::span<float>(values), comm::sum);
        messages += ring.traffic().messages;
        bytes += ring.traffic().bytes;
      });
      CHECK(messages == price.messages);
      CHECK(bytes == price.bytes);
    }
}

TEST_CASE("a step allocates nothing") {
  std::atomic<long> counted{-1};
  Threads::World(2).run([&](Threads endpoint) {
    comm::Any any = comm::make("ring", endpoint, small);
    std::vector<float> gradients(20'000, 1.0f), parameters(20'000);
    const std::vector<Range> cuts{{0, 1000}, {1000, 9000}, {9000, 20'000}};
    any.open({}, {gradients, parameters, cuts});
    const auto step = [&] {
      for (int b = 0; b < 3; ++b) {
        any.begin(b);
        any.poll();
      }
      any.finish(
          [&](Range range, float scale) { parameters[static_cast<std::size_t>(range.begin)] -= scale; });
      double loss = 1;
      any.all_reduce(std::span<double>(&loss, 1), comm::sum);
    };
    step();
    any.barrier();
    const long before = allocations;
    any.barrier();
    for (int i = 0; i < 5; ++i) step();
    any.barrier();
    const long after = allocations;
    any.barrier();
    if (any.rank() == 0) counted = after - before;
  });
  CHECK(counted == 0);
}

TEST_CASE("an observer sees each bucket of a step once, however many transfers exchange it") {
  struct Row {
    const char* name;
    comm::Choice choice = {};
  };
  const Row rows[] = {{"ring"},
                      {"sharded"},
                      {"reproducible"},
                      {"ring", {.codec = "bf16"}},
                      {"ring", {.codec = "int8"}},
                      {"ring", {.codec = "topk"}},
                      {"ring", {.codec = "powersgd"}},
                      {"sharded", {.background = true}}};
  for (const Row& row : rows) {
    std::atomic<int> right{0};
    Threads::World(2).run([&](const Threads& endpoint) {
      comm::Any exchange = comm::make(row.name, endpoint, small, row.choice);
      right += oracle::seen_once_a_step(exchange, 2000);
    });
    CAPTURE(row.name);
    CAPTURE(row.choice.codec);
    CHECK(right == 2);
  }
}

TEST_CASE("a comm is chosen by name") {
  comm::Any none;
  CHECK(none.policy() == "none");
  CHECK(comm::make("ring", Threads{}).policy() == "ring");
  CHECK_THROWS_WITH_AS(
      comm::make("rinf", Threads{}),
      "there is no comm \"rinf\" over threads; choose none, ring, halving-doubling, tree, "
      "direct, auto, sharded, reproducible, ps, ps-async and ps-stale (hierarchical and native "
      "are for mpi)",
      ConfigError);
  CHECK_THROWS_WITH_AS(comm::make("rinf", Threads{}, {}, {.codec = "int8", .servers = 2}),
                       doctest::Contains("there is no comm \"rinf\""), ConfigError);
  Threads::World(2).run([](Threads endpoint) { CHECK_THROWS_AS(comm::make("none", endpoint), ConfigError); });
  CHECK_THROWS_AS((comm::Ring<Threads>{Threads{}, {.window = 100}}), ConfigError);
  CHECK_THROWS_AS((comm::Ring<Threads>{Threads{}, {.segment_bytes = 1}}), ConfigError);
}
