// ALONE
// RANKS: 2 3 4
// The exchange over MPI: the same bits as over threads, traffic as priced, no allocation in a step, one
// sentence for ranks that differ.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../allocations.hpp"
#include "../comm_oracle.hpp"
#include "../comm_step.hpp"
#include <convoy/comm/policy/native.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/transport/mpi.hpp>

using namespace convoy;
using transport::Mpi;

namespace {
const comm::Options small{.deadline = Seconds(30), .segment_bytes = 256, .window = 2};
}

TEST_CASE_TEMPLATE("all-reduce over mpi gives the bits of the ring's order", T, f32, f64, bf16, f16, i32) {
  comm::Ring<Mpi> ring(Mpi{}, small);
  for (std::int64_t count : {0, 1, 2, 15, 16, 17, 100, 1000, 4099}) {
    CAPTURE(count);
    auto values = oracle::input<T>(ring.rank(), count, 5);
    ring.all_reduce(std::span<T>(values), comm::sum);
    CHECK(oracle::same_bits(values, oracle::ring<T>(ring.size(), count, 5, comm::Op::sum)));
    values = oracle::input<T>(ring.rank(), count, 6);
    ring.all_reduce(std::span<T>(values), comm::max);
    CHECK(oracle::same_bits(values, oracle::ring<T>(ring.size(), count, 6, comm::Op::max)));
    if constexpr (!std::is_same_v<T, i32>) {
      values = oracle::input<T>(ring.rank(), count, 7);
      ring.all_reduce(std::span<T>(values), comm::mean);
      CHECK(oracle::same_bits(values, oracle::ring<T>(ring.size(), count, 7, comm::Op::mean)));
    }
  }
}

TEST_CASE("messages of a megabyte and of the default length") {
  comm::Ring<Mpi> ring;
  for (std::size_t segment : {std::size_t{1} << 16, std::size_t{1} << 20}) {
    comm::Ring<Mpi> other(Mpi{}, {.segment_bytes = segment});
    for (std::int64_t count : {300'000, 1'000'003}) {
      const auto expected = oracle::ring<float>(ring.size(), count, 1, comm::Op::sum);
      auto values = oracle::input<float>(ring.rank(), count, 1), again = values;
      ring.all_reduce(std::span<float>(values), comm::sum);
      other.all_reduce(std::span<float>(again), comm::sum);
      CHECK(oracle::same_bits(values, expected));
      CHECK(oracle::same_bits(again, expected));
    }
  }
}

TEST_CASE("training steps over mpi and over threads give the same bits") {
  comm::Ring<Mpi> ring(Mpi{}, small);
  const int ranks = ring.size();
  std::vector<float> threads;
  transport::Threads::World(ranks).run([&](transport::Threads endpoint) {
    comm::Ring<transport::Threads> local(endpoint, small);
    auto parameters = oracle::train(local, 5003, 4);
    if (local.rank() == 0) threads = parameters;
  });
  for (int polls : {0, 50}) {
    const auto parameters = oracle::train(ring, 5003, 4, polls);
    CHECK(oracle::same_bits(parameters, threads));
    CHECK(oracle::same_bits(parameters, oracle::trained(ranks, 5003, 4)));
  }
}

TEST_CASE("native agrees with the ring to rounding, and trains") {
  comm::Native native;
  const auto expected = oracle::ring<float>(native.size(), 4099, 5, comm::Op::mean);
  auto values = oracle::input<float>(native.rank(), 4099, 5);
  native.all_reduce(std::span<float>(values), comm::mean);
  float worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - expected[i]));
  CHECK(worst < 1e-6f);
  auto integers = oracle::input<i32>(native.rank(), 100, 5);
  native.all_reduce(std::span<i32>(integers), comm::min);
  CHECK(integers == oracle::ring<i32>(native.size(), 100, 5, comm::Op::min));

  const auto parameters = oracle::train(native, 5003, 3);
  const auto ring = oracle::trained(native.size(), 5003, 3);
  worst = 0;
  for (std::size_t i = 0; i < ring.size(); ++i) worst = std::max(worst, std::abs(parameters[i] - ring[i]));
  CHECK(worst < 1e-5f);
  std::vector<bf16> half(10);
  CHECK_THROWS_WITH_AS(native.all_reduce(half.data(), 10, comm::reduction<bf16>(comm::sum)),
                       "native has no sum of bf16; use ring over mpi, or f32 or f64", ConfigError);
}

TEST_CASE("native gives a NaN of any rank to all, as min and max do everywhere") {
  comm::Native native;
  for (int where = 0; where < native.size(); ++where) {
    const double mine = native.rank() == where ? std::nan("") : native.rank();
    double least[] = {mine}, most[] = {mine};
    float narrow[] = {static_cast<float>(mine)};
    native.all_reduce(std::span<double>(least), comm::min);
    native.all_reduce(std::span<double>(most), comm::max);
    native.all_reduce(std::span<float>(narrow), comm::max);
    CAPTURE(where);
    CHECK(std::isnan(least[0]));
    CHECK(std::isnan(most[0]));
    CHECK(std::isnan(narrow[0]));
  }
}

TEST_CASE("native reports when the exchange of a bucket began that only finish begins") {
  comm::Native native;
  std::vector<float> arena(10);
  const std::vector<Range> cuts{{0, 5}, {5, 10}};
  native.open({}, {arena, arena, cuts});
  struct Seen {
    Clock::time_point since;
    int right = 0;
  } seen;
  native.observe({[](void* context, const comm::ExchangeEvent& event) {
                    auto& s = *static_cast<Seen*>(context);
                    s.right += s.since <= event.begin && event.begin <= event.end;
                  },
                  &seen});
  for (int step = 0; step < 2; ++step) {
    seen.since = Clock::now();
    native.begin(step);
    native.finish([](Range, float) {});
  }
  CHECK(seen.right == 4);
}

TEST_CASE("native refuses buckets that do not exist or were begun in this step") {
  comm::Native native;
  std::vector<float> arena(10);
  const std::vector<Range> cuts{{0, 5}, {5, 10}};
  native.open({}, {arena, arena, cuts});
  for (int step = 0; step < 2; ++step) {
    CHECK_THROWS_WITH(native.begin(2), "there is no bucket 2; 2 were opened");
    native.begin(1);
    CHECK_THROWS_WITH(native.begin(1), "bucket 1 was begun twice in one step");
    native.finish([](Range, float) {});
  }
}

TEST_CASE("messages and bytes are those of the price") {
  comm::Ring<Mpi> ring(Mpi{}, small);
  for (std::int64_t count : {1, 100, 10'000}) {
    const auto before = ring.traffic();
    std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
    ring.all_reduce(std::span<float>(values), comm::sum);
    const auto after = ring.traffic();
    std::vector<double> sent{static_cast<double>(after.messages - before.messages),
                             static_cast<double>(after.bytes - before.bytes)};
    ring.all_reduce(std::span<double>(sent), comm::sum);
    const int segments = comm::segments_for(count, 4, ring.size(), small);
    const auto price = schedule::price(schedule::Ring{segments, small.window}, ring.size(), count, 4);
    CHECK(static_cast<std::int64_t>(sent[0]) == price.messages);
    CHECK(static_cast<std::int64_t>(sent[1]) == price.bytes);
  }
}

TEST_CASE("a step allocates nothing") {
  for (const char* policy : {"ring", "native"}) {
    comm::Any any = comm::make(policy, Mpi{}, small);
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
    for (int i = 0; i < 3; ++i) step();
    any.barrier();
    const long before = allocations;
    for (int i = 0; i < 5; ++i) step();
    CHECK(allocations - before == 0);
    any.barrier();
  }
}

TEST_CASE("ranks that differ get an error with the rank and the field that differs") {
  comm::Any any = comm::make("ring", Mpi{}, small);
  std::vector<float> arena(10);
  const std::vector<Range> cuts{{0, 10}};
  const bool odd = any.rank() == any.size() - 1;
  CHECK_THROWS_WITH_AS(
      any.open(comm::Fingerprint().add("model", "resnet18").add("batch", odd ? 64 : 128),
               {arena, arena, cuts}),
      concat("rank ", any.size() - 1, " differs from rank 0 in batch: 64 instead of 128").c_str(),
      ConfigError);
  any.open(comm::Fingerprint().add("model", "resnet18"),
           {arena, arena, cuts});  // the exchange can still be opened
}

TEST_CASE("a different policy is found, too") {
  const Mpi here;
  for (const std::string_view other : {"native", "hierarchical", "ps", "auto"})
    CHECK_THROWS_WITH_AS(comm::make(here.rank() == 1 ? other : "ring", here, small),
                         concat("rank 1 differs from rank 0 in comm: ", other, " instead of ring").c_str(),
                         ConfigError);
}

TEST_CASE("a message that is longer than expected does not touch memory, and its size is reported") {
  constexpr int lane = 1;
  constexpr std::size_t expected = 2000;
  Mpi endpoint = Mpi().isolated();
  endpoint.expect_sizes();
  for (const std::size_t sent : {std::size_t{1000}, std::size_t{3000}, std::size_t{1} << 20}) {
    CAPTURE(sent);
    std::vector<unsigned char> bytes(std::size_t{1} << 20, static_cast<unsigned char>(endpoint.rank()));
    Mpi::Request request;
    if (endpoint.rank() == 1) {
      endpoint.send(request, 0, lane, bytes.data(), sent);
      while (!endpoint.sent(request)) transport::nap(0);
    } else if (endpoint.rank() == 0) {
      endpoint.receive(request, 1, lane, bytes.data(), expected);
      transport::Arrival arrival;
      while (arrival.data == nullptr) arrival = endpoint.arrived(request);
      CHECK(arrival.bytes == sent);
      CHECK(bytes == std::vector<unsigned char>(bytes.size(), 0));
      // Receives the message, so that MPI can end; an exchange would have failed here.
      MPI_Recv(bytes.data(), static_cast<int>(sent), MPI_BYTE, 1, MPI_ANY_TAG, endpoint.comm(),
               MPI_STATUS_IGNORE);
    }
  }
}

TEST_CASE("a message that comes after its receive was canceled does not touch memory") {
  constexpr int lane = 1;
  Mpi endpoint = Mpi().isolated();
  std::vector<unsigned char> bytes(std::size_t{1} << 20, static_cast<unsigned char>(endpoint.rank()));
  Mpi::Request request;
  if (endpoint.rank() == 0) {
    endpoint.receive(request, 1, lane, bytes.data(), bytes.size());
    endpoint.cancel(request);
  }
  MPI_Barrier(endpoint.comm());
  if (endpoint.rank() == 1) {
    endpoint.send(request, 0, lane, bytes.data(), bytes.size());
    while (!endpoint.sent(request)) transport::nap(0);
  } else if (endpoint.rank() == 0) {
    std::vector<unsigned char> taken(bytes.size());
    MPI_Recv(taken.data(), static_cast<int>(taken.size()), MPI_BYTE, 1, MPI_ANY_TAG, endpoint.comm(),
             MPI_STATUS_IGNORE);
    CHECK(taken == std::vector<unsigned char>(taken.size(), 1));
    CHECK(bytes == std::vector<unsigned char>(bytes.size(), 0));
  }
}
