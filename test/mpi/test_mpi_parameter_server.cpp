// RANKS: 2 3
// SANITIZE: address
// The parameter server over MPI and over shared memory: the bits of a sum in the order of workers.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "../comm_step.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>

using namespace convoy;

namespace {

template <class T>
void check(const T& world, const comm::Service& service, bool exact, bool elsewhere = false) {
  const std::int64_t count = 5'003;
  comm::AnyParameterServer exchange(world, service, {.deadline = Seconds(20), .segment_bytes = 512});
  auto* const memory = elsewhere ? std::pmr::new_delete_resource() : exchange.memory();
  Buffer<float> gradients(static_cast<std::size_t>(count), memory);
  Buffer<float> parameters(static_cast<std::size_t>(count), memory);
  const auto cuts = oracle::buckets(count);
  exchange.open(comm::Fingerprint().add("model", "none"), {gradients, parameters, cuts});
  const auto serve = [&](const comm::ServerPart& part) {
    for (std::int64_t i = 0; i < part.range.size(); ++i) part.parameters[i] -= part.gradients[i];
  };
  exchange.serve(serve);
  if (exchange.role() == comm::Role::server) return;
  std::vector<float> expected(parameters.size());
  for (int step = 0; step < 3; ++step) {
    const auto mine = oracle::input<float>(exchange.rank(), count, static_cast<std::uint64_t>(step));
    std::copy(mine.begin(), mine.end(), gradients.begin());
    for (int b = 0; b < static_cast<int>(cuts.size()); ++b) exchange.begin(b);
    exchange.finish([](Range, float) {});
    std::vector<float> sum = oracle::input<float>(0, count, static_cast<std::uint64_t>(step));
    for (int w = 1; w < exchange.workers(); ++w) {
      const auto values = oracle::input<float>(w, count, static_cast<std::uint64_t>(step));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) expected[i] -= sum[i];
  }
  exchange.dismiss();
  if (exact) CHECK(oracle::same_bits(std::vector<float>(parameters.begin(), parameters.end()), expected));
}

}  // namespace

TEST_CASE("parameters are served between processes") {
  using comm::Placement;
  const transport::Mpi mpi(MPI_COMM_WORLD);
  const transport::Shm shm(MPI_COMM_WORLD);
  check(mpi, {{}, 2, Placement::among}, true);
  check(mpi, {{}, 1, Placement::beside}, true);
  check(mpi, {comm::Async::consistency, 1, Placement::beside}, false);
  check(mpi, {comm::Stale<1>::consistency, 2, Placement::among}, false);
  check(shm, {{}, std::min(3, shm.size()), Placement::among}, true);
  check(shm, {{}, 1, Placement::beside}, true);
  check(shm, {{}, 2, Placement::among}, true, true);  // arenas that servers cannot read
  check(shm, {comm::Stale<1>::consistency, 2, Placement::among}, false);
}
