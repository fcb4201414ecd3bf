// Pages: what buffers of this process are allocated from.
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

/// The size of a huge page of x86-64, and of arm64 with small pages of 4 KiB.
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Memory from operator new, in huge pages where a buffer is large. Linux is asked for such pages
/// (madvise(2), MADV_HUGEPAGE) and gives them unless they are switched off. One entry of the processor's
/// table of translations (TLB) then covers 2 MiB instead of 4 KiB, so that passes over large arenas seldom
/// miss there. A large buffer begins on the boundary of a huge page and takes up to one more of them than it
/// fills.
std::pmr::memory_resource* pages();

#if CONVOY_DEFINITIONS

namespace detail {

class Pages final : public std::pmr::memory_resource {
 private:
  /// Of smaller buffers the pages that are only begun would be much of the whole.
  static constexpr std::size_t large = 2 * huge_page;

  static std::size_t boundary(std::size_t bytes, std::size_t align) {
    return bytes < large ? align : std::max(align, huge_page);
  }
  void* do_allocate(std::size_t bytes, std::size_t align) override {
    void* made = std::pmr::new_delete_resource()->allocate(bytes, boundary(bytes, align));
#if defined(__linux__)
    if (bytes >= large) madvise(made, bytes, MADV_HUGEPAGE);  // which may fail: small pages do as well
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
  // Never destroyed: buffers that are static may be released after it.
  static detail::Pages& all = *new detail::Pages;
  return &all;
}

#endif

}  // namespace convoy::memory
