// Processors: how many there are for this process.
#pragma once

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#endif

namespace convoy {

/// The number of processors that this process may run on; at least 1.
int processors();

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION int processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}
#endif

}  // namespace convoy
