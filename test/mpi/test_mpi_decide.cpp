// RANKS: 2 3
// Rules that decide over the whole gradient, over MPI and shared memory: the expected bits.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "../comm_decide.hpp"
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/policy/native.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>

using namespace convoy;
using transport::Mpi;
using transport::Shm;

namespace {

constexpr std::int64_t count = 3'001;
const comm::Options small{.deadline = Seconds(30), .segment_bytes = 256, .window = 2};

template <comm::Comm C>
void check(C exchange) {
  CAPTURE(exchange.policy());
  CHECK(exchange.decides());
  const std::vector<float> parameters = decide::train(exchange, count);
  if (exchange.role() == comm::Role::server)
    CHECK(parameters.empty());
  else
    CHECK(oracle::same_bits(parameters, decide::trained(exchange.workers(), count)));
}

}  // namespace

TEST_CASE("clipping and skipping over mpi and shared memory") {
  check(comm::Ring<Mpi>(Mpi{}, small));
  check(comm::Native(Mpi{}, small));
  check(comm::Hierarchical<comm::Direct<Shm>, comm::Ring<Mpi>>(Mpi{}, small));
  check(comm::Sharded<comm::Ring<Mpi>>(Mpi{}, small));
  check(comm::Direct<Shm>(Shm(MPI_COMM_WORLD, Seconds(30)), small));
  check(comm::Sharded<comm::Direct<Shm>>(Shm(MPI_COMM_WORLD, Seconds(30)), small));
}

TEST_CASE("servers of mpi and shared memory decide together") {
  check(comm::AnyParameterServer(Mpi{}, {{}, 1, comm::Placement::among}, small));
  check(comm::AnyParameterServer(Mpi{}, {{}, 2, comm::Placement::among}, small));
  check(comm::AnyParameterServer(Mpi{}, {{}, 1, comm::Placement::beside}, small));
  check(comm::AnyParameterServer(Shm(MPI_COMM_WORLD, Seconds(30)), {{}, 2, comm::Placement::among}, small));
}
