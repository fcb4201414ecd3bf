// EMULATES
// What Staged does on a GPU that is not the first one.
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include <convoy/comm/policy/staged.hpp>
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
