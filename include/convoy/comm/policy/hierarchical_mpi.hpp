// Hierarchical over MPI: which ranks of an MPI world share a node, and their shared memory.
#pragma once

#include <cstddef>
#include <vector>

#include <convoy/comm/policy/hierarchical.hpp>
#include <convoy/comm/policy/native.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>
#include <convoy/comm/watchdog.hpp>

namespace convoy::comm {

template <>
struct NodeOf<transport::Shm, transport::Mpi> {
  static Nodes nodes(const transport::Mpi& world) {
    const Watchdog watchdog("MPI_Allgather", world.rank(), world.limit());
    MPI_Comm node = split(world);
    int first = world.rank();
    mpi::check(MPI_Bcast(&first, 1, MPI_INT, 0, node), "MPI_Bcast");
    MPI_Comm_free(&node);
    std::vector<int> node_of(static_cast<std::size_t>(world.size()));
    mpi::check(MPI_Allgather(&first, 1, MPI_INT, node_of.data(), 1, MPI_INT, world.comm()), "MPI_Allgather");
    return Nodes(node_of);
  }
  static transport::Shm local(const transport::Mpi& world, const Nodes& nodes) {
    const Watchdog watchdog("MPI_Comm_split", world.rank(), world.limit());
    MPI_Comm node = MPI_COMM_NULL;
    mpi::check(MPI_Comm_split(world.comm(), nodes.node_of(world.rank()), world.rank(), &node),
               "MPI_Comm_split");
    transport::Shm shm(node, world.limit());
    MPI_Comm_free(&node);
    return shm;
  }

 private:
  static MPI_Comm split(const transport::Mpi& world) {
    MPI_Comm node = MPI_COMM_NULL;
    mpi::check(MPI_Comm_split_type(world.comm(), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
               "MPI_Comm_split_type");
    return node;
  }
};

template <>
struct Offer<registry::Hierarchical, transport::Mpi> {
  using type = Hierarchical<Direct<transport::Shm>, Ring<transport::Mpi>>;
};

}  // namespace convoy::comm
