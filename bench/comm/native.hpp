// The MPI library's own reduce-scatter, all-gather and broadcast: to compare convoy's with.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "collectives.hpp"
#include <convoy/comm/policy/native.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/watchdog.hpp>

namespace bench {

class Native {
 public:
  Native(const transport::Mpi& where, const comm::Options& options)
      : where_(where.isolated()), deadline_(options.deadline) {}
  int rank() const { return where_.rank(); }
  int size() const { return where_.size(); }
  std::pmr::memory_resource* memory() { return std::pmr::new_delete_resource(); }

  void reduce_scatter(std::span<float> values, auto) {
    const int part = static_cast<int>(values.size()) / size();
    watched("MPI_Reduce_scatter_block", [&] {
      return MPI_Reduce_scatter_block(MPI_IN_PLACE, values.data(), part, MPI_FLOAT, MPI_SUM, where_.comm());
    });
  }
  void all_gather(std::span<float> values) {
    const int part = static_cast<int>(values.size()) / size();
    watched("MPI_Allgather", [&] {
      return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), part, MPI_FLOAT, where_.comm());
    });
  }
  void broadcast(std::span<float> values, int root) {
    watched("MPI_Bcast", [&] {
      return MPI_Bcast(values.data(), static_cast<int>(values.size()), MPI_FLOAT, root, where_.comm());
    });
  }

 private:
  void watched(const char* name, auto call) {
    const comm::Watchdog watchdog(name, rank(), deadline_);
    convoy::mpi::check(call(), name);
  }

  transport::Mpi where_;
  convoy::Seconds deadline_;
};

inline void add_native(std::vector<Case>& cases, const Place<transport::Mpi>& place, std::int64_t bytes) {
  const std::string tail = concat("native/mpi/f32/", bytes);
  const std::int64_t count = bytes / 4, n = place.size();
  // MPI's blocks are of equal size, and in place the result is at the beginning of the buffer.
  if (count % n == 0)
    add_halves<Native, float>(cases, place, tail, bytes, {0, count / n}, [part = count / n](int rank) {
      return convoy::Range{rank * part, (rank + 1) * part};
    });
  add_broadcast<Native, float>(cases, place, tail, bytes);
}

}  // namespace bench
