// EMULATES: nccl
// ALONE
// The exchange over NCCL where streams run their work at once: sums, groups, deadlines and error messages.
#include "device_of_tests.hpp"
#include "emulation/nccl.hpp"

namespace device_test {
inline constexpr bool works_late = false;
}  // namespace device_test

#include "comm_nccl.hpp"

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

}  // namespace nccl_test
