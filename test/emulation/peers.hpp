// Emulated memory of other GPUs and other processes. The devices share one memory, and threads stand for
// processes, so the IPC handle of an allocation is its address. Freeing memory that another process has
// mapped is refused or put off.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include "held.hpp"
#include "runtime.hpp"

namespace emulation {

/// Counts that tests read.
struct PeerCounts {
  std::atomic<int> mapped = 0;  ///< mappings of other processes' memory that are open
};
inline PeerCounts peer_counts;

/// The mappings of all processes.
class Mappings {
 public:
  static Mappings& of_all() {
    static Mappings mappings;
    return mappings;
  }
  void add(void* base) {
    const std::size_t bytes = DeviceMemory::of_process().allocation(base).second;
    const auto number =
        Held::of_process().hold(base, bytes, "process " + std::to_string(getpid()) + " has mapped", true);
    const std::lock_guard lock(mutex_);
    numbers_.insert({{getpid(), base}, number});
    ++peer_counts.mapped;
  }
  /// False if this process has no such mapping.
  bool remove(void* base) {
    std::unique_lock lock(mutex_);
    const auto found = numbers_.find({getpid(), base});
    if (found == numbers_.end()) return false;
    const std::uintptr_t number = numbers_.extract(found).mapped();
    --peer_counts.mapped;
    lock.unlock();
    Held::of_process().let_go(number);
    return true;
  }
  /// Removes all mappings of this process, as if the process had been killed.
  void die() {
    std::vector<void*> bases;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [at, number] : numbers_)
        if (at.first == getpid()) bases.push_back(at.second);
    }
    for (void* base : bases) remove(base);
  }

 private:
  std::mutex mutex_;
  std::multimap<std::pair<pid_t, void*>, std::uintptr_t> numbers_;  // the number in Held
};

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
    emulation::Mappings::of_all().add(*p);
    return cudaSuccess;
  });
}
cudaError_t cudaIpcCloseMemHandle(void* p) {
  return emulation::call(
      [&] { return emulation::Mappings::of_all().remove(p) ? cudaSuccess : cudaErrorInvalidValue; });
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
