// Memory of other GPUs and other processes, emulated: the devices share their memory, and processes are
// threads that say so, so that a handle of a piece of memory is its address.
#pragma once

#include <atomic>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime.h>

#include "runtime.hpp"

namespace emulation {

/// What happened, for tests that look.
struct PeerCounts {
  std::atomic<int> mapped = 0;  ///< pieces of other processes' memory that are mapped now
};
inline PeerCounts peer_counts;

inline CUresult address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr p) {
  const auto found = DeviceMemory::of_process().allocation(reinterpret_cast<const void*>(p));
  if (found.first == nullptr) return CUDA_ERROR_NOT_FOUND;
  *base = reinterpret_cast<CUdeviceptr>(found.first);
  *bytes = found.second;
  return CUDA_SUCCESS;
}

}  // namespace emulation

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
  return emulation::call([&] {
    const bool known = std::strcmp(symbol, "cuMemGetAddressRange") == 0;
    *function = known ? reinterpret_cast<void*>(&emulation::address_range) : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  return emulation::call([&] {
    const auto found = emulation::DeviceMemory::of_process().allocation(p);
    if (found.first == nullptr) return cudaErrorInvalidValue;
    *handle = {};
    std::memcpy(handle, &found.first, sizeof found.first);
    return cudaSuccess;
  });
}
cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned flags) {
  return emulation::call([&] {
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    std::memcpy(p, &handle, sizeof *p);
    ++emulation::peer_counts.mapped;
    return cudaSuccess;
  });
}
cudaError_t cudaIpcCloseMemHandle(void* p) {
  return emulation::call([&] {
    if (!emulation::DeviceMemory::of_process().is_device(p)) return cudaErrorInvalidValue;
    --emulation::peer_counts.mapped;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return emulation::call([&] {
    *can = device != peer;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return emulation::call([] { return cudaSuccess; });
}

}  // extern "C"
