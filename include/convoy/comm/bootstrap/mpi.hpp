// The bootstrap over MPI, for programs that mpirun starts.
#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/watchdog.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

/// Carries bytes between the ranks of an MPI communicator. MPI's calls cannot be polled: a watchdog ends the
/// process if one does not return in time.
class MpiBootstrap {
 public:
  explicit MpiBootstrap(const transport::Mpi& world) : world_(world) {}

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }

  void broadcast(std::span<std::byte> data) {
    const Watchdog watchdog("MPI_Bcast", rank(), world_.limit());
    mpi::check(MPI_Bcast(data.data(), count(data.size()), MPI_BYTE, 0, world_.comm()), "MPI_Bcast");
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    const Watchdog watchdog("MPI_Allgather", rank(), world_.limit());
    mpi::check(MPI_Allgather(mine.data(), count(mine.size()), MPI_BYTE, all.data(), count(mine.size()),
                             MPI_BYTE, world_.comm()),
               "MPI_Allgather");
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    const Watchdog watchdog("MPI_Gather", rank(), world_.limit());
    mpi::check(MPI_Gather(mine.data(), count(mine.size()), MPI_BYTE, all.data(), count(mine.size()), MPI_BYTE,
                          0, world_.comm()),
               "MPI_Gather");
  }

 private:
  static int count(std::size_t bytes) {
    if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max()))
      fail<ConfigError>("bootstrap: MPI does not carry ", bytes, " bytes at once");
    return static_cast<int>(bytes);
  }

  transport::Mpi world_;
};

static_assert(Bootstrap<MpiBootstrap>);

}  // namespace convoy::comm
