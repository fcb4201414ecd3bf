// Signals: the words by which kernels of several GPUs wait for one another. A test that runs kernels on
// processors has a file of its own in place of this one (test/emulation).
#pragma once

#include <convoy/memory/launch.cuh>

namespace convoy::device {

/// Reads a word that a kernel of another GPU may write. What that kernel wrote before its store_release of
/// the value is seen from here on (PTX memory model, scope of the system).
__device__ inline unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// Writes a word that a kernel of another GPU, or the host, waits for.
__device__ inline void store_release(unsigned* to, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%1], %0;" ::"r"(value), "l"(to) : "memory");
}

/// Between two looks at a word that another kernel writes. A GPU runs kernels side by side and needs nothing
/// here.
__device__ inline void let_others_run() {}

}  // namespace convoy::device
