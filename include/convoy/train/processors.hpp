// Processors: the default number of threads of a rank. Ranks that may run on the same processors divide them:
// if each used a team of all processors, its threads would mostly wait for their turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/gather.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/host_identity.hpp>

#if CONVOY_DEFINITIONS
#if defined(__linux__)
#include <sched.h>
#endif

#include <cstdlib>
#include <string_view>

#include <convoy/core/hash.hpp>
#include <convoy/parallel/openmp.hpp>
#include <convoy/parallel/processors.hpp>
#endif

namespace convoy::train {

/// A hash of the host and of the set of processors on which this rank may run.
std::uint64_t place_of_this_rank(const HostIdentity& host = identity_of_host());

/// The number of threads for each of `ranks` ranks that share processors: OpenMP's default, but at most the
/// rank's part of the processors. 0, which leaves the number to OpenMP, for a single rank or if
/// OMP_NUM_THREADS is set.
int threads_of_one(int ranks);

/// The number of ranks of the Comm, this one included, that have this rank's host and set of processors.
/// Every rank must call it.
template <comm::Comm C>
int ranks_here(C& comm) {
  const std::uint64_t mine = place_of_this_rank();
  const std::vector<std::uint64_t> places =
      comm::gathered(comm.rank(), comm.size(), std::span(&mine, 1), [&](std::span<i32> all) {
        if (comm.size() > 1) comm.all_reduce(all, comm::sum);
      });
  return static_cast<int>(std::count(places.begin(), places.end(), mine));
}

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::uint64_t place_of_this_rank(const HostIdentity& host) {
  std::uint64_t place =
      hash_of(std::string_view(host.boot.data()), hash_of(std::string_view(host.name.data())));
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int p = 0; p < CPU_SETSIZE; ++p)
      if (CPU_ISSET(p, &set)) place = hash_of(static_cast<std::uint64_t>(p), place);
#endif
  return place;
}

CONVOY_FUNCTION int threads_of_one(int ranks) {
  if (ranks < 2 || std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
  return std::max(1, std::min(processors() / ranks, omp_get_max_threads()));
}
#endif

}  // namespace convoy::train
