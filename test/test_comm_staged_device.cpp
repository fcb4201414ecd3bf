// EMULATES
// ALONE
// Staged on a GPU other than the first one.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/transport/threads.hpp>
#include <convoy/memory/device.cuh>

using namespace convoy;

TEST_CASE("buckets are copied out by a thread that begins no other GPU") {
  emulation::Settings two = emulation::settings;
  two.devices = 2;
  const emulation::With with(two);
  std::vector<float> seen(100);
  std::thread([&] {
    device::use(1);
    memory::Device space;
    const memory::Array<float, memory::Device> gradients(space, seen.size());
    space.fill(gradients.data(), 100, 3.0f);
    const std::vector<Range> buckets{{0, 100}};
    comm::detail::CopyOut<memory::Device> copies;
    copies.open(gradients.data(), seen.data(), buckets);
    copies.post(0, space.mark());
    for (int waits = 0; waits < 20'000 && copies.copied(0, std::chrono::milliseconds(1)) == 0; ++waits) {
    }
  }).join();
  CHECK(seen == std::vector<float>(100, 3.0f));
  CHECK(emulation::State::of_process().begun == std::set<int>{1});
}

TEST_CASE("host memory that buckets go through is locked while it is open") {
  const auto locked = [] {
    auto& pinned = emulation::Pinned::of_process();
    const std::lock_guard lock(pinned.mutex);
    return std::count_if(pinned.pieces.begin(), pinned.pieces.end(),
                         [](const auto& piece) { return !piece.second.allocated; });
  };
  const std::vector<Range> buckets{{0, 60}, {60, 100}};
  transport::Threads::World(1).run([&](const transport::Threads& endpoint) {
    memory::Device space;
    const memory::Array<float, memory::Device> gradients(space, 100), parameters(space, 100);
    {
      comm::Staged<comm::Ring<transport::Threads>, memory::Device> staged(endpoint);
      for (int opened = 0; opened < 2; ++opened) {
        staged.open(comm::Fingerprint(), {.gradients = {gradients.data(), 100},
                                          .parameters = {parameters.data(), 100},
                                          .buckets = buckets,
                                          .space = &space});
        CHECK(locked() == 2);
      }
    }
    CHECK(locked() == 0);
  });
}
