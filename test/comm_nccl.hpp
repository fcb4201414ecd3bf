// Exchanges over NCCL on emulated streams; ranks are threads. Including sources define the space (TestSpace),
// whether its streams run late (works_late), and the NCCL to use.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "as_processes.hpp"
#include "comm_device.hpp"
#include "comm_device_contract.hpp"
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/nccl.cuh>

namespace nccl_test {

using namespace device_test;
using AllReduced = comm::Nccl<TestSpace>;
using Halved = comm::Sharded<AllReduced>;
static_assert(comm::Comm<AllReduced> && comm::Comm<Halved>);
static_assert(comm::works_in<AllReduced, TestSpace> && !comm::works_in<AllReduced, memory::Host>);

inline constexpr std::int64_t counts[] = {40, 1000, 20011};

TEST_CASE_TEMPLATE("every rank ends with the updates of the sums", C, AllReduced, Halved) {
  for (const bool they_are : {false, true}) {
    const AsProcesses processes(they_are);
    for (const int ranks : {1, 2, 3, 4})
      for (const std::int64_t count : counts) {
        CAPTURE(they_are);
        CAPTURE(ranks);
        CAPTURE(count);
        const std::vector<float> expected = sums(ranks, count, 3);
        std::atomic<int> right = 0;
        all_well(run<C>(ranks, [&](C& comm, TestSpace& space) {
          right += train(comm, space, count, 3) == expected ? 1 : 0;
        }));
        CHECK(right == ranks);
      }
  }
  CHECK(emulation::nccl_counts.communicators == 0);
  CHECK(emulation::nccl_counts.registrations == 0);
}

TEST_CASE_TEMPLATE("buckets that were not begun are begun at the end", C, AllReduced, Halved) {
  check_unbegun_buckets<C>();
}

TEST_CASE_TEMPLATE("a rule decides over the whole gradient, and a step is skipped", C, AllReduced, Halved) {
  check_rule<C>();
}

TEST_CASE("each rank updates its own part, in whole cache lines, and all parts are updated") {
  check_parts<Halved>();
}

TEST_CASE("what is to stay whole is one rank's to update") { check_what_stays_whole<Halved>(); }

TEST_CASE("numbers of the host are combined, and broadcast") {
  check_numbers_of_the_host<AllReduced>(3'000'001);
}

TEST_CASE("groups of ranks are worlds of their own") {
  std::atomic<int> right = 0;
  all_well(run<AllReduced>(4, [&](AllReduced& comm, TestSpace& space) {
    AllReduced part = comm.split(comm.rank() % 2);
    bool good = part.size() == 2 && part.rank() == comm.rank() / 2;
    double sum[] = {static_cast<double>(comm.rank())};
    part.all_reduce(std::span<double>(sum), comm::sum);
    good = good && sum[0] == (comm.rank() % 2 == 0 ? 2 : 4);
    // The two groups train independently at the same time.
    std::vector<float> expected(500);
    const auto values = train(part, space, 500, 2);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = static_cast<float>(i % 100);
      for (int step = 0; step < 2; ++step)
        expected[i] -= decide::gradient(0, static_cast<std::int64_t>(i), step) +
                       decide::gradient(1, static_cast<std::int64_t>(i), step);
    }
    right += good && values == expected ? 1 : 0;
  }));
  CHECK(right == 4);
  CHECK(emulation::nccl_counts.communicators == 0);
}

TEST_CASE_TEMPLATE("a group of one rank opens and trains beside larger groups", C, AllReduced, Halved) {
  std::atomic<int> right = 0;
  all_well(run<C>(3,
                  [&](C& comm, TestSpace& space) {
                    C part = comm.split(comm.rank() / 2);
                    if (part.size() != (comm.rank() < 2 ? 2 : 1)) throw Error("not the group's size");
                    right += train(part, space, 500, 2) == sums(part.size(), 500, 2) ? 1 : 0;
                  },
                  {.deadline = Seconds(10)}));
  CHECK(right == 3);
}

TEST_CASE("groups may be formed while buckets are under way") {
  std::atomic<int> right = 0;
  all_well(run<AllReduced>(2, [&](AllReduced& comm, TestSpace& space) {
    Arenas arenas(space, 640);
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
    later(space, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    comm.begin(0, arenas.compute(0, comm.rank(), 0));
    AllReduced part = comm.split(0);
    double sum[] = {1};
    part.all_reduce(std::span<double>(sum), comm::sum);
    right += sum[0] == 2 ? 1 : 0;
    comm.finish([](Range, float) {});
  }));
  CHECK(right == 2);
}

TEST_CASE("ranks that mean different things are told in what") { check_differing_arenas<AllReduced>(); }

TEST_CASE("an exchange may have a least number of blocks, a most, or both") {
  for (const auto& blocks : {std::pair{4, 0}, {40, 0}, {0, 4}, {4, 4}, {2, 8}}) {
    const int least = blocks.first, most = blocks.second;
    CAPTURE(least);
    CAPTURE(most);
    all_well(run<AllReduced>(2,
                             [](AllReduced& comm, TestSpace&) {
                               AllReduced part = comm.split(0);
                               part.barrier();
                             },
                             {.least_blocks = least, .most_blocks = most}));
  }
  const auto sentences =
      run<AllReduced>(2, [](AllReduced&, TestSpace&) {}, {.least_blocks = 8, .most_blocks = 4});
  for (const std::string& sentence : sentences)
    CHECK(
        sentence ==
        "nccl: an exchange has at least least_blocks = 8 thread blocks, which is more than most_blocks = 4");
}

TEST_CASE_TEMPLATE("a world of one rank calls NCCL only if it is to", C, AllReduced, Halved) {
  for (const bool connects : {false, true}) {
    CAPTURE(connects);
    const int before = emulation::nccl_counts.enqueued;
    std::atomic<int> registered = 0;
    all_well(run<C>(1,
                    [&](C& comm, TestSpace& space) {
                      CHECK(comm.exchanges() == connects);
                      Arenas arenas(space, 1000);
                      const comm::Closing closing(comm);
                      CHECK(train(comm, arenas, 3) == sums(1, 1000, 3));
                      registered = emulation::nccl_counts.registrations.load();
                      double d[] = {3};
                      comm.all_reduce(std::span<double>(d), comm::sum);
                      comm.broadcast(std::span<double>(d), 0);
                      comm.barrier();
                      CHECK(d[0] == 3);
                      C part = comm.split(0);
                      part.barrier();
                    },
                    {.connects_alone = connects}));
    CHECK((emulation::nccl_counts.enqueued > before) == connects);
    CHECK((registered > 0) == connects);
  }
  CHECK(emulation::nccl_counts.communicators == 0);
}

TEST_CASE("memory is registered on all ranks or on none") {
  std::atomic<int> registered = -1;
  const auto body = [&](Halved& comm, TestSpace& space) {
    Arenas arenas(space, 640);
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
    comm.barrier();
    registered = emulation::nccl_counts.registrations.load();
    comm.barrier();
  };
  all_well(run<Halved>(2, body));
  CHECK(registered == 4);
  all_well(run<Halved>(2, body, {.register_arenas = false}));
  CHECK(registered == 0);
  emulation::nccl_settings.refuses_registration = true;
  all_well(run<Halved>(2, body));
  emulation::nccl_settings.refuses_registration = false;
  CHECK(registered == 0);
  CHECK(emulation::nccl_counts.registrations == 0);
}

TEST_CASE("memory that NCCL has registered is not freed before the exchange is closed") {
  std::atomic<int> refused = 0;
  all_well(run<Halved>(2, [&](Halved& comm, TestSpace& space) {
    Arenas arenas(space, 640);
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
    try {
      space.release(arenas.gradients.data(), arenas.gradients.bytes());
    } catch (const std::logic_error& error) {
      refused += std::string(error.what()) == "device memory was freed that NCCL has registered" ? 1 : 0;
    }
    comm.close();
    CHECK_THROWS_WITH_AS(comm.begin(0), "there is no bucket 0; 0 were opened", Error);
  }));
  CHECK(refused == 2);
  CHECK(emulation::nccl_counts.registrations == 0);
}

// The emulated device refuses to free memory that is still registered.
TEST_CASE_TEMPLATE("a rank dies, and the others free their memory, whatever ends them", C, AllReduced,
                   Halved) {
  const AsProcesses processes;
  for (const bool noticed : {false, true}) {
    CAPTURE(noticed);
    const int aborts = emulation::nccl_counts.aborts;
    std::atomic<int> trained = 0, dead = 0;
    const auto sentences = run<C>(3, [&](C& comm, TestSpace& space) {
      Arenas arenas(space, 640);
      const comm::Closing closing(comm);
      train(comm, arenas, 2);
      ++trained;
      while (trained < 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (comm.rank() == 1) {
        emulation::kill_an_nccl_rank_of_each_world();
        dead = 1;
        throw Error("died");
      }
      while (dead < 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (noticed) comm.barrier();
    });
    CHECK(sentences[1] == "died");
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}})
      CHECK(contains(sentences[r], noticed ? concat("rank ", r, ": nccl barrier: ") : ""));
    CHECK(emulation::nccl_counts.aborts - aborts == (noticed ? 3 : 1));
    CHECK(emulation::nccl_counts.registrations == 0);
  }
}

TEST_CASE("two ranks with one GPU are refused in one sentence") {
  emulation::nccl_settings.refuses_shared_gpus = true;
  const auto sentences = run<AllReduced>(2, [](AllReduced&, TestSpace&) {});
  emulation::nccl_settings.refuses_shared_gpus = false;
  for (const std::string& sentence : sentences)
    CHECK(contains(sentence, "nccl: ranks 0 and 1 both use the GPU at "));
}

TEST_CASE("what cannot be opened or begun is refused") { check_refusals<Halved>(); }

TEST_CASE_TEMPLATE("no rank of a process enqueues before all are about to, and none goes on before all have",
                   C, AllReduced, Halved) {
  constexpr int ranks = 3;
  std::atomic<int> early = 0;
  emulation::nccl_settings.delay = std::chrono::milliseconds(3);
  all_well(run<C>(ranks, [&](C& comm, TestSpace& space) {
    Arenas arenas(space, 1000);
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
    int enqueued = emulation::nccl_counts.enqueued;
    comm.barrier();
    enqueued += ranks;
    for (std::size_t b = 0; b < arenas.buckets.size(); ++b) {
      const Ready ready = arenas.compute(b, comm.rank(), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(3 * comm.rank()));
      early += emulation::nccl_counts.enqueued == enqueued ? 0 : 1;
      comm.begin(static_cast<int>(b), ready);  // with Halved, a group of calls
      if (!arenas.buckets[b].empty()) enqueued += ranks;
      early += emulation::nccl_counts.enqueued == enqueued ? 0 : 1;
    }
    comm.finish([](Range, float) {});
  }));
  emulation::nccl_settings.delay = {};
  CHECK(early == 0);
}

TEST_CASE_TEMPLATE("a rank of the process that is late or leaves frees those that wait for it on the host", C,
                   AllReduced, Halved) {
  for (const bool leaves : {false, true}) {
    CAPTURE(leaves);
    const int enqueued = emulation::nccl_counts.enqueued, aborts = emulation::nccl_counts.aborts;
    std::atomic<int> over = leaves ? 2 : 0;
    const auto sentences = run<C>(3, [&](C& comm, TestSpace& space) { go_without_rank_1(comm, space, over); },
                                  {.deadline = Seconds(leaves ? 1000 : 0.3)});
    CHECK(sentences[1] == "left");
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      CAPTURE(sentences[r]);
      CHECK(contains(sentences[r], concat("rank ", r, ": nccl ")));
      CHECK(contains(sentences[r], leaves
                                       ? "of bucket 0: rank 1 has left (peer rank 1, message 1, 284 bytes, "
                                       : "of bucket 0: rank 1 did not come within 0.3 s (peer rank 1, "));
    }
    CHECK(emulation::nccl_counts.enqueued == enqueued);
    CHECK(emulation::nccl_counts.aborts - aborts == 3);
  }
}

TEST_CASE("ranks of a group meet among themselves, and name one another as the world does") {
  const auto sentences = run<AllReduced>(4, [&](AllReduced& comm, TestSpace& space) {
    AllReduced part = comm.split(comm.rank() % 2);
    Arenas arenas(space, 640);
    const comm::Closing closing(part);
    part.open(comm::Fingerprint(), arenas.layout());
    if (comm.rank() == 3) throw Error("left");
    part.begin(0, arenas.compute(0, comm.rank(), 0));
    part.finish([](Range, float) {});
  });
  CHECK(sentences[3] == "left");
  CHECK(contains(sentences[1], "rank 1: nccl "));
  CHECK(contains(sentences[1], ": rank 3 has left (peer rank 3, "));
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) CHECK(sentences[r] == "");
}

TEST_CASE("ranks of a group that mean different things are named as in the world") {
  const auto sentences = run<AllReduced>(4, [&](AllReduced& comm, TestSpace& space) {
    AllReduced part = comm.split(comm.rank() % 2);
    Arenas arenas(space, comm.rank() == 3 ? 128 : 64);
    const comm::Closing closing(part);
    part.open(comm::Fingerprint(), arenas.layout());
  });
  for (const std::size_t r : {std::size_t{1}, std::size_t{3}})
    CHECK(sentences[r] == "rank 3 differs from rank 1 in gradients: 128 instead of 64");
}

// When ranks are processes, only work on the GPU notices that a rank is missing.

TEST_CASE_TEMPLATE("a rank that does not come is noticed by the others", C, AllReduced, Halved) {
  const AsProcesses processes;
  const int aborts = emulation::nccl_counts.aborts;
  std::atomic<int> over = 0;
  const auto sentences = run<C>(3, [&](C& comm, TestSpace& space) { go_without_rank_1(comm, space, over); },
                                {.deadline = Seconds(0.3)});
  CHECK(sentences[1] == "left");
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CAPTURE(sentences[r]);
    CHECK(contains(sentences[r], concat("rank ", r, ": nccl ")));
    CHECK(contains(sentences[r], concat("of bucket 0: ", works_late ? "was not over" : "did not begin",
                                        " within 0.3 s, 284 bytes")));
  }
  CHECK(emulation::nccl_counts.aborts - aborts == 3);
  CHECK(emulation::nccl_counts.communicators == 0);
}

TEST_CASE("a wait of the host has a deadline, and what failed stays failed") {
  const AsProcesses processes;
  std::atomic<int> over = 0;
  const auto sentences =
      run<AllReduced>(2,
                      [&](AllReduced& comm, TestSpace&) {
                        if (comm.rank() == 1) {
                          while (over < 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                          throw Error("left");
                        }
                        CHECK_THROWS_AS(comm.barrier(), CommError);
                        double d[] = {1};
                        CHECK_THROWS_AS(comm.all_reduce(std::span<double>(d), comm::sum), CommError);
                        over = 1;
                        comm.poll();
                      },
                      {.deadline = Seconds(0.3)});
  CHECK(contains(sentences[0], "within 0.3 s"));
}

TEST_CASE("a rank that dies is noticed at once") {
  const AsProcesses processes;
  std::atomic<int> waiting = 0;
  const auto sentences = run<AllReduced>(3, [&](AllReduced& comm, TestSpace&) {
    if (comm.rank() == 1) {
      while (waiting < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      emulation::kill_an_nccl_rank_of_each_world();
      throw Error("died");
    }
    ++waiting;
    comm.barrier();
  });
  CHECK(contains(sentences[0], "rank 0: nccl barrier: remote process exited"));
  CHECK(contains(sentences[2], "rank 2: nccl barrier: remote process exited"));
}

TEST_CASE("an end of NCCL that hangs is said") {
  const AsProcesses processes;
  std::atomic<int> over = 0;
  emulation::nccl_settings.hangs_in_abort = true;
  const auto sentences = run<AllReduced>(2,
                                         [&](AllReduced& comm, TestSpace&) {
                                           if (comm.rank() == 1) {
                                             while (over < 1)
                                               std::this_thread::sleep_for(std::chrono::milliseconds(2));
                                             throw Error("left");
                                           }
                                           try {
                                             comm.barrier();
                                           } catch (...) {
                                             over = 1;
                                             emulation::nccl_settings.hangs_in_abort = false;
                                             throw;
                                           }
                                         },
                                         {.deadline = Seconds(0.2), .abort_deadline = Seconds(0.1)});
  CHECK(contains(sentences[0],
                 "NCCL did not end within 0.1 s, perhaps because other ranks of the node have not "
                 "ended either, so end the process"));
  while (emulation::nccl_counts.communicators > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

TEST_CASE("an exchange ends by the deadline, although another rank of the node goes on with its own") {
  std::atomic<bool> ended = false;
  all_well(run<AllReduced>(2,
                           [&](AllReduced& comm, TestSpace&) {
                             {
                               const AllReduced part = comm.split(0);
                               const Deadline patience(Seconds(20));
                               while (comm.rank() == 1 && !ended && !patience.expired())
                                 std::this_thread::sleep_for(std::chrono::milliseconds(2));
                               if (comm.rank() == 1 && !ended) throw Error("the other has not ended");
                             }
                             ended = true;
                           },
                           {.deadline = Seconds(0.5)}));
  while (emulation::nccl_counts.communicators > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

TEST_CASE("an observer hears of every bucket of a step") { check_observer<AllReduced>(); }

TEST_CASE("traffic is that of a ring") { check_traffic<AllReduced>(); }

}  // namespace nccl_test
