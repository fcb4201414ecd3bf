// Launch: how kernels are started, and the words of a kernel that differ where a test runs kernels on
// processors. A kernel is started here and nowhere else; it takes numbers and pointers; every thread of a
// block reaches every barrier; its blocks may run in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/core/dtype.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::device {

/// Where a kernel runs: a stream, and how many blocks of how many threads; `shared` is the bytes of dynamic
/// shared memory a block.
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

/// Loads a kernel, which its first launch does else and may wait for all work of the GPU.
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

/// The time in nanoseconds, from a start of its own; it goes on while kernels wait.
__device__ inline unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace convoy::device
