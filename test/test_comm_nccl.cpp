// EMULATES: nccl
// ALONE
// The exchange over NCCL where streams run their work at once: sums, groups, deadlines and error messages.
#include <atomic>
#include <chrono>
#include <memory_resource>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "as_processes.hpp"
#include "device_of_tests.hpp"
#include "emulation/nccl.hpp"
#include "rank_table.hpp"
#include <convoy/memory/device.cuh>
#include <convoy/memory/space.hpp>

namespace device_test {
inline constexpr bool works_late = false;
}  // namespace device_test

#include "comm_nccl.hpp"
#include "comm_other_gpus.hpp"

namespace nccl_test {

TEST_CASE_TEMPLATE("the host touches no memory of a GPU", C, AllReduced, Halved) {
  const emulation::With closed({.closed_to_host = true});
  std::atomic<int> right = 0;
  all_well(run<C>(2, [&](C& comm, TestSpace& space) {
    double d[] = {1};
    comm.all_reduce(std::span<double>(d), comm::sum);
    comm.broadcast(std::span<double>(d), 1);
    right += train(comm, space, 1000, 1) == sums(2, 1000, 1) ? 1 : 0;
  }));
  CHECK(right == 2);
}

TEST_CASE_TEMPLATE("threads may use an exchange whatever GPU they have chosen", C, AllReduced, Halved) {
  check_use_from_other_gpus<C>();
}

TEST_CASE("a group has the GPUs of its ranks, whatever GPU the thread that makes it has chosen") {
  const emulation::With three({.devices = 3, .closed_to_host = false});
  std::atomic<int> right = 0;
  all_well(rank_table::run(2, [&](const AtTable& bootstrap) {
    device::use(1 + bootstrap.rank());
    TestSpace space;
    AllReduced comm(bootstrap);
    on_another_gpu(space, [&] {
      AllReduced group = comm.split(0);
      right += train(group, space, 1000, 2) == sums(2, 1000, 2) ? 1 : 0;
    });
  }));
  CHECK(right == 2);
}

// Memory for arenas that the exchange can map on other ranks' GPUs.
struct Mapped {
  explicit Mapped(std::pmr::memory_resource* memory)
      : space(memory),
        gradients(space, 1000, memory::exchanged),
        parameters(space, 1000, memory::exchanged) {}
  comm::Layout layout() {
    return {.gradients = {gradients.data(), gradients.size()},
            .parameters = {parameters.data(), parameters.size()},
            .buckets = buckets,
            .space = &space};
  }
  memory::Device space;
  memory::Array<float, memory::Device> gradients, parameters;
  std::vector<Range> buckets{{0, 400}, {400, 1000}};
};

struct Seen {
  comm::Access access{};
  int windows = 0, buffers = 0;  // of all ranks, while the exchange is open
  bool same = false;             // whether the sums are right
};

// Opens an exchange of 2 ranks twice, as a trainer that resumes does, and makes a step after each.
template <class C>
Seen opened_twice(const comm::NcclOptions& options = {}) {
  Seen seen;
  std::atomic<int> right = 0;
  for (const std::string& sentence : rank_table::run(2, [&](const rank_table::AtTable& bootstrap) {
         C comm(bootstrap, options);
         Mapped arenas(comm.memory());
         const comm::Closing closing(comm);
         std::vector<float> values(1000);
         for (int step = 0; step < 2; ++step) {
           comm.open(comm::Fingerprint(), arenas.layout());
           arenas.space.fill(arenas.gradients.data(), 1000, static_cast<float>(comm.rank() + 1 + step));
           comm.finish([&](Range r, float) {
             arenas.space.add(arenas.parameters.data() + r.begin, arenas.gradients.data() + r.begin,
                              r.size());
           });
         }
         arenas.space.read(values.data(), arenas.parameters.data(), arenas.parameters.bytes());
         right += values == std::vector<float>(1000, 3 + 5) ? 1 : 0;
         comm.barrier();
         if (comm.rank() == 0)
           seen = {comm.traffic().arenas, emulation::nccl_counts.windows,
                   emulation::nccl_counts.registrations};
         comm.barrier();
       }))
    CHECK(sentence == "");
  seen.same = right == 2;
  CHECK(emulation::nccl_counts.windows == 0);
  CHECK(emulation::nccl_counts.registrations == 0);
  CHECK(emulation::nccl_counts.communicators == 0);
  CHECK(emulation::NcclAllocations::of_process().pieces.empty());
  return seen;
}

// Restores what tests change of NCCL.
struct Restored {
  ~Restored() {
    auto& nccl = emulation::nccl_settings;
    nccl.has_windows = nccl.has_memory = true;
    nccl.refuses_registration = false;
    nccl.version = NCCL_VERSION_CODE;
  }
};

TEST_CASE_TEMPLATE("arenas from the exchange's memory become windows, once for each opening", C, AllReduced,
                   Halved) {
  const int arenas = std::is_same_v<C, Halved> ? 2 : 1, before = emulation::nccl_counts.windows_made;
  const Seen seen = opened_twice<C>();
  CHECK(seen.access == comm::Access::symmetric);
  CHECK(seen.windows == 2 * arenas);
  CHECK(seen.buffers == 0);
  CHECK(seen.same);
  CHECK(emulation::nccl_counts.windows_made - before == 2 * 2 * arenas);
}

TEST_CASE_TEMPLATE("an NCCL without windows, or without memory for them, registers buffers", C, AllReduced,
                   Halved) {
  const Restored restored;
  auto& nccl = emulation::nccl_settings;
  const int arenas = std::is_same_v<C, Halved> ? 2 : 1, before = emulation::nccl_counts.windows_made;
  SUBCASE("GPUs cannot access one another's memory") { nccl.has_windows = false; }
  SUBCASE("an older library is loaded") { nccl.version = NCCL_VERSION(2, 26, 5); }
  SUBCASE("NCCL has no memory") { nccl.has_memory = false; }
  const Seen seen = opened_twice<C>();
  CHECK(seen.access == comm::Access::registered);
  CHECK(seen.buffers == 2 * arenas);
  CHECK(seen.same);
  CHECK(emulation::nccl_counts.windows_made == before);
}

TEST_CASE_TEMPLATE("an NCCL that registers nothing exchanges plain arenas", C, AllReduced, Halved) {
  const Restored restored;
  comm::NcclOptions options;
  SUBCASE("NCCL refuses") {
    emulation::nccl_settings.has_windows = false;
    emulation::nccl_settings.refuses_registration = true;
  }
  SUBCASE("the options do not ask for it") { options.register_arenas = false; }
  const Seen seen = opened_twice<C>(options);
  CHECK(seen.access == comm::Access::plain);
  CHECK(seen.windows + seen.buffers == 0);
  CHECK(seen.same);
}

TEST_CASE("ranks register buffers if the memory of one of them cannot be a window") {
  std::atomic<int> registered = 0;
  for (const std::string& sentence : rank_table::run(2, [&](const rank_table::AtTable& bootstrap) {
         AllReduced comm(bootstrap);
         Mapped arenas(comm.rank() == 0 ? comm.memory() : nullptr);
         const comm::Closing closing(comm);
         comm.open(comm::Fingerprint(), arenas.layout());
         registered += comm.traffic().arenas == comm::Access::registered ? 1 : 0;
       }))
    CHECK(sentence == "");
  CHECK(registered == 2);
}

// The emulated device refuses to free memory that is still a window.
TEST_CASE("a rank dies, and the others free their windows' memory") {
  const AsProcesses processes;
  const int aborts = emulation::nccl_counts.aborts;
  std::atomic<int> opened = 0;
  const auto sentences = rank_table::run(3, [&](const rank_table::AtTable& bootstrap) {
    AllReduced comm(bootstrap, {.deadline = Seconds(10)});
    Mapped arenas(comm.memory());
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
    ++opened;
    while (opened < 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (comm.rank() == 1) {
      emulation::kill_an_nccl_rank_of_each_world();
      throw Error("died");
    }
    comm.barrier();
  });
  CHECK(sentences[1] == "died");
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}})
    CHECK(contains(sentences[r], "remote process exited"));
  CHECK(emulation::nccl_counts.aborts - aborts >= 3);
  CHECK(emulation::nccl_counts.windows == 0);
  CHECK(emulation::nccl_counts.communicators == 0);
  CHECK(emulation::NcclAllocations::of_process().pieces.empty());
}

}  // namespace nccl_test
