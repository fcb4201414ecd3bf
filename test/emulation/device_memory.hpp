// Device memory: a range of addresses that faults when the host touches it, and is accessible while work
// runs.
//
// An allocation begins at a multiple of 256 bytes and is filled with NaN bits. Addresses are never reused.
// Behind each allocation lies a gap. Under the address sanitizer, touching a gap or released memory is
// reported at once; otherwise release() checks whether the gap was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "fibers.hpp"
#include "settings.hpp"

namespace emulation {

class DeviceMemory {
 public:
  static DeviceMemory& of_process() {
    static DeviceMemory memory;
    return memory;
  }

  /// Makes the memory accessible to this process while an object of this class lives.
  class Open {
   public:
    Open() { of_process().open(); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open() { of_process().close(); }
  };

  /// Null if memory is exhausted.
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (in_use_ + bytes > settings.bytes) return nullptr;
    const std::size_t size = (bytes + alignment - 1) / alignment * alignment + gap;
    if (used_ + size > capacity) return nullptr;
    const Opened opened(*this);
    std::byte* made = base_ + used_;
    used_ += size;
    protect(made, made + size, PROT_READ | PROT_WRITE);
    std::memset(made, 0xff, bytes);
    std::memset(made + bytes, mark, size - bytes);
    poison(made + bytes, size - bytes);
    in_use_ += bytes;
    allocations_[made] = bytes;
    return made;
  }

  /// False if `p` is not the beginning of an allocation.
  bool release(void* p) {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(static_cast<std::byte*>(p));
    if (found == allocations_.end()) return false;
    const auto [begin, bytes] = *found;
    const Opened opened(*this);
    unpoison(begin + bytes, gap);
    for (std::size_t k = 0; k < gap; ++k)
      if (begin[bytes + k] != std::byte{mark})
        throw std::logic_error("device memory was written " + std::to_string(k) +
                               " bytes behind the end of an allocation of " + std::to_string(bytes) +
                               " bytes");
    std::memset(begin, 0xff, bytes);
    poison(begin, bytes + gap);
    in_use_ -= bytes;
    abandon(allocations_.erase(found));
    return true;
  }

  /// Whether `p` is an address of the device, allocated or not.
  bool is_device(const void* p) const {
    const auto at = reinterpret_cast<std::uintptr_t>(p), base = reinterpret_cast<std::uintptr_t>(base_);
    return at >= base && at < base + capacity;
  }
  /// Whether the `bytes` bytes at `p` lie within one allocation.
  bool holds(const void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto* at = static_cast<const std::byte*>(p);
    auto next = allocations_.upper_bound(const_cast<std::byte*>(at));
    if (next == allocations_.begin()) return false;
    const auto& [begin, size] = *--next;
    const auto offset = static_cast<std::size_t>(at - begin);
    return offset <= size && bytes <= size - offset;
  }

  /// Begin and size of the allocation that contains `p`; null if there is none.
  std::pair<std::byte*, std::size_t> allocation(const void* p) {
    const std::lock_guard lock(mutex_);
    auto next = allocations_.upper_bound(const_cast<std::byte*>(static_cast<const std::byte*>(p)));
    if (next == allocations_.begin()) return {};
    const auto& [begin, size] = *--next;
    if (static_cast<std::size_t>(static_cast<const std::byte*>(p) - begin) >= size) return {};
    return {begin, size};
  }

  std::size_t in_use() {
    const std::lock_guard lock(mutex_);
    return in_use_;
  }

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 37, alignment = 256, gap = 256;
  // With small pages, mprotect takes a millisecond for each 32 MB.
  static constexpr std::size_t page = std::size_t{2} << 20;
  static constexpr unsigned char mark = 0xa5;

  DeviceMemory() {
    void* mapped =
        mmap(nullptr, capacity + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    const auto at = reinterpret_cast<std::uintptr_t>(mapped);
    base_ = static_cast<std::byte*>(mapped) + ((at + page - 1) / page * page - at);
    madvise(base_, capacity, MADV_HUGEPAGE);
  }

  // Accessible while this lives; its owner holds the mutex.
  struct Opened {
    DeviceMemory& memory;
    explicit Opened(DeviceMemory& m) : memory(m) { memory.one_more(); }
    ~Opened() { memory.one_less(); }
  };
  void open() {
    const std::lock_guard lock(mutex_);
    one_more();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    one_less();
  }
  void one_more() {
    if (users_++ == 0 && closed_) protect_all(PROT_READ | PROT_WRITE);
  }
  void one_less() {
    if (--users_ == 0 && settings.closed_to_host) protect_all(PROT_NONE);
  }
  std::byte* page_of(std::byte* p) const {
    return base_ + (p - base_) / std::ptrdiff_t{page} * std::ptrdiff_t{page};
  }
  std::byte* page_behind(std::byte* p) const { return page_of(p + page - 1); }
  /// Changes the whole pages from that of `first` to that before `end`.
  void protect(std::byte* first, std::byte* end, int to) {
    first = page_of(first);
    if (mprotect(first, static_cast<std::size_t>(page_behind(end) - first), to) != 0)
      throw std::system_error(errno, std::generic_category(), "mprotect");
  }
  /// Protects the pages of all allocations, with one call for neighbors.
  void protect_all(int to) {
    closed_ = to == PROT_NONE;
    std::byte *first = nullptr, *end = nullptr;
    for (const auto& [begin, bytes] : allocations_) {
      if (first != nullptr && page_of(begin) > page_behind(end))
        protect(std::exchange(first, nullptr), end, to);
      if (first == nullptr) first = begin;
      end = begin + bytes + gap;
    }
    if (first != nullptr) protect(first, end, to);
  }
  /// Closes for good the pages before `next` on which no allocation is left, and returns them to the system.
  void abandon(std::map<std::byte*, std::size_t>::iterator next) {
    std::byte* const end = next == allocations_.end() ? page_of(base_ + used_) : page_of(next->first);
    std::byte* first = base_;
    if (next != allocations_.begin()) {
      const auto& [begin, bytes] = *std::prev(next);
      first = page_behind(begin + bytes + gap);
    }
    if (first >= end) return;
    protect(first, end, PROT_NONE);
    madvise(first, static_cast<std::size_t>(end - first), MADV_DONTNEED);
  }

#ifdef EMULATION_ADDRESS_SANITIZER
  static void poison(const void* p, std::size_t bytes) { ASAN_POISON_MEMORY_REGION(p, bytes); }
  static void unpoison(const void* p, std::size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(p, bytes); }
#else
  static void poison(const void*, std::size_t) {}
  static void unpoison(const void*, std::size_t) {}
#endif

  std::mutex mutex_;
  std::byte* base_ = nullptr;
  std::size_t used_ = 0, in_use_ = 0;
  int users_ = 0;
  bool closed_ = true;
  std::map<std::byte*, std::size_t> allocations_;
};

/// Bytes of device memory that were allocated and not freed.
inline std::size_t bytes_in_use() { return DeviceMemory::of_process().in_use(); }

}  // namespace emulation
