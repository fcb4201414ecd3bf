// NEEDS: cuda nccl
// LABELS: cuda gpu
// TIMEOUT: 300
// NCCL itself on one GPU, in a world of one rank: starts, exchanges, splits, registrations and both ends of a
// communicator.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "rank_table.hpp"
#include "skip.hpp"
#include <convoy/comm/codec/int8.cuh>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/nccl.cuh>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/memory/device.cuh>

namespace nccl_alone {

using namespace convoy;
using All = comm::Nccl<memory::Device>;
using Halved = comm::Sharded<All>;
using Int8 = comm::Compressed<All, comm::codec::Int8>;
using Bf16 = comm::Compressed<All, comm::codec::Bf16>;

// Calls `body` as the only rank, and returns its error message; empty if there was none.
template <class F>
std::string run(const F& body) {
  return rank_table::run(1, [&](const rank_table::AtTable& at) { body(at); })[0];
}

constexpr std::int64_t count = 300'000;

// Trains for some steps, whose gradients are their numbers; returns the parameters.
template <class C>
std::vector<float> trained(C& comm) {
  const std::vector<Range> buckets{{0, 1000}, {1000, 200'007}, {200'007, count}};
  memory::Device space(comm.memory());
  const memory::Array<float, memory::Device> gradients(space, count, memory::exchanged),
      parameters(space, count, memory::exchanged);
  std::vector<float> seen(count);
  comm.open(comm::Fingerprint(), {.gradients = {gradients.data(), count},
                                  .parameters = {parameters.data(), count},
                                  .buckets = buckets,
                                  .space = &space});
  const comm::Closing closing(comm);
  for (int step = 0; step < 5; ++step) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      space.fill(gradients.data() + buckets[b].begin, buckets[b].size(), static_cast<float>(step));
      comm.begin(static_cast<int>(b), space.mark());
    }
    comm.finish([&](Range range, float) {
      space.add(parameters.data() + range.begin, gradients.data() + range.begin, range.size());
    });
  }
  space.read(seen.data(), parameters.data(), count * sizeof(float));
  comm.poll();
  return seen;
}

}  // namespace nccl_alone

TEST_CASE_TEMPLATE("NCCL exchanges what one rank has", C, nccl_alone::All, nccl_alone::Halved,
                   nccl_alone::Int8, nccl_alone::Bf16) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace nccl_alone;
  for (const bool registers : {true, false}) {
    CAPTURE(registers);
    CHECK(run([&](const auto& at) {
            C comm(at, {.deadline = Seconds(20), .register_arenas = registers, .connects_alone = true});
            const std::vector<float> parameters = trained(comm);
            // A scale of int8 is rounded, and the error is fed back.
            const float most = std::is_same_v<C, Int8> ? 1e-5f : 0.0f;
            CHECK(std::all_of(parameters.begin(), parameters.end(),
                              [&](float x) { return std::abs(x - (0 + 1 + 2 + 3 + 4)) <= most; }));
          }) == "");
  }
}

TEST_CASE("NCCL combines and broadcasts the numbers of one rank's host, and splits") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace nccl_alone;
  CHECK(run([](const auto& at) {
          All whole(at, {.deadline = Seconds(20), .connects_alone = true});
          All part = whole.split(3);
          for (All* comm : {&whole, &part}) {
            std::vector<float> numbers(3'000'001, 2.5f);
            comm->all_reduce(std::span<float>(numbers), comm::sum);
            comm->broadcast(std::span<float>(numbers), 0);
            comm->barrier();
            CHECK(numbers == std::vector<float>(numbers.size(), 2.5f));
          }
          CHECK(trained(part) == std::vector<float>(count, 0 + 1 + 2 + 3 + 4));
        }) == "");
}

TEST_CASE("NCCL is aborted while an exception leaves a rank, and starts again") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace nccl_alone;
  for (int time = 0; time < 2; ++time)
    CHECK(run([](const auto& at) {
            All comm(at, {.deadline = Seconds(20), .abort_deadline = Seconds(20), .connects_alone = true});
            static_cast<void>(trained(comm));
            throw std::runtime_error("broken");
          }) == "broken");
}
