// NcclMemory: memory of ncclMemAlloc, which NCCL can map on other GPUs.
#pragma once

#include <cstddef>
#include <map>
#include <memory_resource>
#include <mutex>
#include <new>
#include <span>

#include <cuda_runtime.h>
#include <nccl.h>

namespace convoy::comm::detail {

/// Memory of the calling thread's current GPU. Throws std::bad_alloc if NCCL has none. Thread-safe.
class NcclMemory final : public std::pmr::memory_resource {
 public:
  static NcclMemory& of_process() {
    static NcclMemory memory;
    return memory;
  }

  /// Whether these bytes lie in one allocation.
  bool holds(std::span<const std::byte> bytes) const {
    const std::lock_guard lock(mutex_);
    auto next = sizes_.upper_bound(bytes.data());
    if (next == sizes_.begin()) return false;
    const auto& [begin, size] = *--next;
    const auto offset = static_cast<std::size_t>(bytes.data() - begin);
    return offset <= size && bytes.size() <= size - offset;
  }

 private:
  void* do_allocate(std::size_t bytes, std::size_t) override {
    void* made = nullptr;
    if (ncclMemAlloc(&made, bytes) != ncclSuccess || made == nullptr) {
      cudaGetLastError();  // clears the error, which the next launch would report
      throw std::bad_alloc();
    }
    const std::lock_guard lock(mutex_);
    sizes_[static_cast<const std::byte*>(made)] = bytes;
    return made;
  }
  void do_deallocate(void* p, std::size_t, std::size_t) override {
    {
      const std::lock_guard lock(mutex_);
      sizes_.erase(static_cast<const std::byte*>(p));
    }
    ncclMemFree(p);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> sizes_;  // of the allocations, by where they begin
};

}  // namespace convoy::comm::detail
