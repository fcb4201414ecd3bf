// parallel: a team of threads on the OpenMP runtime that oneDNN uses. A second thread pool spinning beside
// that runtime costs several times the work itself, so convoy's own loops run on the same one. Needs libgomp
// (or libomp) at link time, and no compiler flag.
#pragma once

#include <cstdint>
#include <type_traits>

#include <convoy/core/range.hpp>
#include <convoy/parallel/openmp.hpp>

namespace convoy {

/// Below this many elements waking a team costs more than a pass over them.
inline constexpr std::int64_t worth_a_team = 1 << 15;

/// Calls `body(thread, threads)` once on each of `threads` threads and returns when all are done. The body
/// must not throw. With one thread it is a plain call.
template <class Body>
void parallel(int threads, Body&& body) {
  if (threads <= 1) {
    body(0, 1);
    return;
  }
  using Plain = std::remove_reference_t<Body>;
  GOMP_parallel([](void* data) { (*static_cast<Plain*>(data))(omp_get_thread_num(), omp_get_num_threads()); },
                const_cast<void*>(static_cast<const void*>(&body)), static_cast<unsigned>(threads), 0);
}

}  // namespace convoy
