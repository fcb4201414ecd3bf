// Exchanges used by threads whose current device is not the GPU of their rank. Including sources include
// comm_device.hpp and the emulation before.
#pragma once

#include <atomic>
#include <exception>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm_device.hpp"

namespace device_test {

// Does `work` in a thread that has chosen another GPU than that of the space.
template <class Space, class F>
void on_another_gpu(const Space& space, F&& work) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      device::use((space.ordinal() + 1) % device::count());
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

// Checks that threads may use an exchange whatever GPU they have chosen.
template <class C>
void check_use_from_other_gpus(const typename C::Options& options = {}) {
  const emulation::With three({.devices = 3, .closed_to_host = false});
  const std::vector<float> expected = sums(2, 1000, 2);
  std::atomic<int> right = 0;
  all_well(rank_table::run(2, [&](const AtTable& bootstrap) {
    device::use(1 + bootstrap.rank());
    TestSpace space;
    C comm(bootstrap, options);
    Arenas arenas(space, 1000);
    const comm::Closing closing(comm);
    on_another_gpu(space, [&] {
      double ranks[] = {1};
      comm.all_reduce(std::span<double>(ranks), comm::sum);
      right += ranks[0] == 2 ? 1 : 0;
    });
    on_another_gpu(space, [&] {
      float root[] = {static_cast<float>(comm.rank())};
      comm.broadcast(std::span<float>(root), 1);
      right += root[0] == 1 ? 1 : 0;
    });
    on_another_gpu(space, [&] { right += train(comm, arenas, 2) == expected ? 1 : 0; });
  }));
  CHECK(right == 6);
}

}  // namespace device_test
