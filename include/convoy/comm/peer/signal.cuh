// Signals: the words in memory by which kernels of several GPUs wait for one another. Tests that run kernels
// on a CPU replace this file (test/emulation).
#pragma once

#include <convoy/memory/launch.cuh>

namespace convoy::device {

/// Reads a word that a kernel of another GPU may write. Writes of that kernel before its store_release of the
/// value are visible afterwards (PTX memory model, system scope).
__device__ inline unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// Writes a word that a kernel of another GPU, or the host, waits for.
__device__ inline void store_release(unsigned* to, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%1], %0;" ::"r"(value), "l"(to) : "memory");
}

/// Called between two polls of a word that another kernel writes. A no-op, because a GPU runs kernels
/// concurrently.
__device__ inline void let_others_run() {}

}  // namespace convoy::device
