// Launch: kernel launches, and the kernel primitives that tests replace to run kernels on CPUs. Kernels are
// launched only here. Their arguments are trivially copyable, every thread of a block reaches every barrier,
// and blocks may run in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/core/dtype.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::device {

/// A launch configuration: stream, number of blocks, threads per block, and bytes of dynamic shared memory
/// per block.
struct Launch {
  cudaStream_t stream = nullptr;
  dim3 grid = 1;
  dim3 block = 256;
  std::size_t shared = 0;
};

/// Enqueues `kernel`. Throws DeviceError if it could not be started.
template <class... P>
void launch(const Launch& where, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "convoy: CUDA copies arguments byte by byte");
  cudaLaunchConfig_t config{};
  config.gridDim = where.grid;
  config.blockDim = where.block;
  config.dynamicSmemBytes = where.shared;
  config.stream = where.stream;
  void* pointers[] = {&arguments..., nullptr};
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers), "start a kernel");
}

/// Loads a kernel. Otherwise its first launch loads it, which may wait for all work on the GPU.
template <class... P>
void load(void (*kernel)(P...)) {
  cudaFuncAttributes unread{};
  check(cudaFuncGetAttributes(&unread, reinterpret_cast<const void*>(kernel)), "load a kernel");
}

/// The dynamic shared memory of the block.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

/// The time in nanoseconds from an arbitrary start; it advances while kernels wait.
__device__ inline unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace convoy::device
