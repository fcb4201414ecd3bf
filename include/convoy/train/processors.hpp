// Processors: how many threads a rank computes with where nobody says. Ranks that may run on the same
// processors share them out: a team of all processors for each of them would mostly wait for its turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/host_identity.hpp>

#if CONVOY_DEFINITIONS
#if defined(__linux__)
#include <sched.h>
#endif

#include <cstdlib>
#include <string_view>

#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/hash.hpp>

extern "C" int omp_get_max_threads(void);
#endif

namespace convoy::train {

/// A number that two ranks have in common that may run on the same processors of the same host.
std::uint64_t place_of_this_rank(const HostIdentity& host = identity_of_host());

/// The threads of one of `ranks` ranks that share processors: what OpenMP would use, but no more than the
/// rank's part of the processors. 0, which is OpenMP's number, where that says so (OMP_NUM_THREADS).
int threads_of_one(int ranks);

/// How many ranks of the Comm, this one included, may run on this rank's processors. Every rank calls it.
template <comm::Comm C>
int ranks_here(C& comm) {
  // Exact as doubles in halves; a rank knows its own, and the largest number is the one beside zeros.
  const auto size = static_cast<std::size_t>(comm.size()), rank = static_cast<std::size_t>(comm.rank());
  std::vector<double> places(2 * size);
  const std::uint64_t place = place_of_this_rank();
  places[2 * rank] = static_cast<double>(place >> 32);
  places[2 * rank + 1] = static_cast<double>(place & 0xffffffffu);
  if (size > 1) comm.all_reduce(std::span<double>(places), comm::max);
  int count = 0;
  for (std::size_t r = 0; r < size; ++r)
    count += places[2 * r] == places[2 * rank] && places[2 * r + 1] == places[2 * rank + 1] ? 1 : 0;
  return std::max(1, count);
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
  return std::max(1, std::min(transport::processors() / ranks, omp_get_max_threads()));
}
#endif

}  // namespace convoy::train
