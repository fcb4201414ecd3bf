// Pages: the memory resource that buffers of this process are allocated from by default.
#pragma once

#include <cstddef>
#include <memory_resource>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#endif

namespace convoy::memory {

/// Size of a huge page of x86-64, and of arm64 with 4 KiB base pages, in bytes.
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Memory from operator new, on huge pages for large buffers. Linux is asked for huge pages (madvise(2),
/// MADV_HUGEPAGE), and grants them unless huge pages are disabled. One TLB entry then covers 2 MiB instead of
/// 4 KiB, so that passes over large arenas seldom miss the TLB. A large buffer is aligned to a huge page, and
/// its last huge page may be only partly used.
std::pmr::memory_resource* pages();

#if CONVOY_DEFINITIONS

namespace detail {

class Pages final : public std::pmr::memory_resource {
 private:
  /// The partly used last page of a smaller buffer would be a large share of the whole.
  static constexpr std::size_t large = 2 * huge_page;

  static std::size_t boundary(std::size_t bytes, std::size_t align) {
    return bytes < large ? align : std::max(align, huge_page);
  }
  void* do_allocate(std::size_t bytes, std::size_t align) override {
    void* made = std::pmr::new_delete_resource()->allocate(bytes, boundary(bytes, align));
#if defined(__linux__)
    if (bytes >= large) madvise(made, bytes, MADV_HUGEPAGE);  // may fail: small pages work as well
#endif
    return made;
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t align) override {
    std::pmr::new_delete_resource()->deallocate(data, bytes, boundary(bytes, align));
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace detail

CONVOY_FUNCTION std::pmr::memory_resource* pages() {
  // Never destroyed, because static buffers may be released later.
  static detail::Pages& all = *new detail::Pages;
  return &all;
}

#endif

}  // namespace convoy::memory
