// EMULATES: nccl
// The exchange over NCCL where streams do their work at once: sums, groups, deadlines and sentences.
#include "emulation/emulation.hpp"
#include "emulation/nccl.hpp"
#include <convoy/memory/device.cuh>

namespace device_test {
using TestSpace = convoy::memory::Device;
inline constexpr bool works_late = false;
// Closing memory to the host costs most of the time of these tests; one of them has it.
[[maybe_unused]] const bool open_to_host = (emulation::settings.closed_to_host = false, true);
}  // namespace device_test

#include "comm_nccl.hpp"

namespace nccl_test {

TEST_CASE_TEMPLATE("the host touches no memory of a GPU", C, AllReduced, Halved) {
  const emulation::With closed({.closed_to_host = true});
  std::atomic<int> right = 0;
  all_well(run<C>(2, [&](C& comm, TestSpace& space) {
    right += train(comm, space, 1000, 1) == sums(2, 1000, 1) ? 1 : 0;
    double d[] = {1};
    comm.all_reduce(std::span<double>(d), comm::sum);
    comm.broadcast(std::span<double>(d), 1);
  }));
  CHECK(right == 2);
}

}  // namespace nccl_test
