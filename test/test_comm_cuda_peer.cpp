// EMULATES
// TIMEOUT: 300
// ALONE
// CudaPeer and Sharded<CudaPeer> as a Comm, with kernels run on the CPU: updates, decisions, host numbers,
// captured steps, and ranks that differ, never come or leave.
#include <atomic>
#include <utility>

#include "emulation/emulation.hpp"
#include <convoy/memory/device.cuh>

namespace device_test {

// The ranks use the existing GPUs in turn.
struct ChoosesGpu {
  ChoosesGpu() {
    static std::atomic<int> next = 0;
    convoy::device::use(next++ % emulation::settings.devices);
  }
};
struct TestSpace : ChoosesGpu, convoy::memory::Device {};
// Closing memory to the host takes most of the time of these tests; only one of them does so.
[[maybe_unused]] const bool open_to_host = (emulation::settings.closed_to_host = false, true);

}  // namespace device_test

#include "comm_device.hpp"
#include "comm_device_contract.hpp"
#include "comm_other_gpus.hpp"
#include "sanitized.hpp"
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/halves.hpp>

namespace {

using namespace device_test;
using AllReduced = comm::CudaPeer<TestSpace>;
using Halved = comm::Sharded<AllReduced>;
static_assert(comm::Comm<AllReduced> && comm::Comm<Halved>);
static_assert(comm::works_in<AllReduced, TestSpace> && !comm::works_in<AllReduced, memory::Host>);

// The tests' buckets are small; with these options both kinds of reduction occur.
constexpr comm::PeerOptions few{.at_once = 1024, .blocks = 2};

template <class C>
struct Told : C {
  using C::C;
  using C::step;
};

struct SkipsFirst : Rule {
  using Rule::Rule;
  bool first = true;
  Decision decide() {
    const Decision decided = Rule::decide();
    if (decided == Decision::again) return decided;
    return std::exchange(first, false) ? Decision::skip : decided;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("every rank ends with the updates of the sums", C, AllReduced, Halved) {
  for (const int ranks : {1, 2, 3, 4})
    for (const std::int64_t count : {40, 1000, 20011}) {
      if (sanitized && ranks != 3 && count > 1000) continue;
      CAPTURE(ranks);
      CAPTURE(count);
      const std::vector<float> expected = sums(ranks, count, 3);
      std::atomic<int> right = 0;
      all_well(run<C>(
          ranks,
          [&](C& comm, TestSpace& space) { right += train(comm, space, count, 3) == expected ? 1 : 0; },
          few));
      CHECK(right == ranks);
    }
}

TEST_CASE_TEMPLATE("streams that fall behind keep their order", C, AllReduced, Halved) {
  // Freeing memory waits for all work of a GPU, so each rank has its own GPU.
  const emulation::With late({.late = true, .devices = 3, .closed_to_host = false});
  const std::vector<float> expected = sums(3, 1000, 3);
  std::atomic<int> right = 0;
  all_well(run<C>(
      3,
      [&](C& comm, TestSpace& space) {
        Arenas arenas(space, 1000);
        const comm::Closing closing(comm);
        right += train(comm, arenas, 3) == expected ? 1 : 0;
        comm.barrier();
      },
      few));
  CHECK(right == 3);
}

TEST_CASE_TEMPLATE("buckets that were not begun are begun at the end", C, AllReduced, Halved) {
  check_unbegun_buckets<C>(few);
}

TEST_CASE_TEMPLATE("a rule decides over the whole gradient, and a step is skipped", C, AllReduced, Halved) {
  check_rule<C>(few);
}

TEST_CASE_TEMPLATE("an exchange learns that a rule has skipped a step on the host", C, AllReduced, Halved) {
  std::atomic<int> right = 0;
  all_well(run<Told<C>>(
      2,
      [&](Told<C>& comm, TestSpace& space) {
        Arenas arenas(space, 3000);
        const comm::Closing closing(comm);
        comm.open(comm::Fingerprint(), arenas.layout());
        SkipsFirst rule(arenas, -1);
        for (const bool applied : {false, true}) right += comm.step(rule) == applied ? 1 : 0;
      },
      few));
  CHECK(right == 2 * 2);
}

TEST_CASE("each rank updates its own part, in whole cache lines, and all parts are updated") {
  check_parts<Halved>();
}

TEST_CASE_TEMPLATE("a step is captured once and replayed", C, AllReduced, Halved) {
  constexpr std::int64_t count = 2000;
  std::atomic<int> right = 0;
  all_well(run<C>(
      2,
      [&](C& comm, TestSpace& space) {
        Arenas arenas(space, count);
        const comm::Closing closing(comm);
        comm.open(comm::Fingerprint(), arenas.layout());
        const device::GraphExec graph = graph_of_step(comm, arenas, [&](Range range, float scale) {
          later(space, [p = arenas.parameters.data(), g = arenas.gradients.data(), range, scale] {
            for (auto i = range.begin; i < range.end; ++i) p[i] -= scale * g[i];
          });
        });
        for (int replay = 0; replay < 4; ++replay)
          device::check(cudaGraphLaunch(graph.get(), space.stream()), "launch a graph");
        space.synchronize();
        comm.poll();
        std::vector<float> expected(count);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const auto at = static_cast<std::int64_t>(i);
          expected[i] =
              static_cast<float>(i % 100) - 4 * (decide::gradient(0, at, 0) + decide::gradient(1, at, 0));
        }
        right += arenas.result() == expected ? 1 : 0;
        comm.barrier();
      },
      few));
  CHECK(right == 2);
}

TEST_CASE("numbers of the host are combined, and broadcast") {
  check_numbers_of_the_host<AllReduced>(700'001);
}

TEST_CASE_TEMPLATE("threads may use an exchange whatever GPU they have chosen", C, AllReduced, Halved) {
  check_use_from_other_gpus<C>(few);
}

TEST_CASE("ranks that mean different things are told in what") { check_differing_arenas<AllReduced>(); }

TEST_CASE("what is to stay whole is one rank's to update") { check_what_stays_whole<Halved>(few); }

TEST_CASE("what is to stay whole begins where other ranks can read vectors") {
  const auto sentences = run<Halved>(
      2,
      [](Halved& comm, TestSpace& space) {
        Arenas arenas(space, 2048, {{0, 2048}}, {{1000, 2000}});
        const comm::Closing closing(comm);
        comm.open(comm::Fingerprint(), arenas.layout());
      },
      few);
  for (const std::string& sentence : sentences)
    CHECK(sentence ==
          "elements 1000 to 2000 must stay whole, but begin at element 1000 of their bucket, which is not a "
          "multiple of 16");
}

TEST_CASE("what cannot be opened or begun is refused") { check_refusals<Halved>(); }

TEST_CASE_TEMPLATE("a rank that does not come is noticed by the others", C, AllReduced, Halved) {
  std::atomic<int> over = 0;
  const auto sentences = run<C>(3, [&](C& comm, TestSpace& space) { go_without_rank_1(comm, space, over); },
                                {.deadline = Seconds(0.3), .at_once = 1024});
  CHECK(sentences[1] == "left");
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CAPTURE(sentences[r]);
    CHECK(contains(sentences[r], concat("rank ", r, ": cuda-peer ")));
    CHECK(contains(sentences[r], "of bucket 0: rank 1 did not come within 0.3 s (peer rank 1, "));
  }
}

TEST_CASE("an observer hears of every bucket of a step") { check_observer<AllReduced>(); }

TEST_CASE("traffic is that of a ring") { check_traffic<AllReduced>(); }

TEST_CASE("nothing is left behind") { CHECK(emulation::bytes_in_use() == 0); }
