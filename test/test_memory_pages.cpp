// The memory that buffers are allocated from: alignment, huge pages where the system provides them, and that
// memory is released with the size and alignment of its allocation.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "skip.hpp"
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/pages.hpp>

namespace {

using namespace convoy;

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// Bytes of huge pages in the mapping that holds `p`.
std::size_t huge_bytes(const void* p) {
  std::ifstream maps("/proc/self/smaps");
  bool holds = false;
  for (std::string line; std::getline(maps, line);) {
    std::size_t end = 0;
    const std::size_t dash = line.find('-'), space = line.find(' ');
    if (dash != std::string::npos && dash < space) {
      const std::uintptr_t begin = std::stoull(line, &end, 16);
      if (end == dash)
        holds = begin <= address(p) && address(p) < std::stoull(line.substr(dash + 1), nullptr, 16);
    }
    if (holds && line.starts_with("AnonHugePages:")) return std::stoull(line.substr(14)) * 1024;
  }
  return 0;
}

TEST_CASE("large buffers begin on the boundary of a huge page, small ones where they are asked to") {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4096}, memory::huge_page, 2 * memory::huge_page - 1})
    for (const std::size_t align : {std::size_t{8}, std::size_t{64}, std::size_t{4096}}) {
      void* p = memory::pages()->allocate(bytes, align);
      CHECK(address(p) % align == 0);
      std::memset(p, 1, bytes);
      memory::pages()->deallocate(p, bytes, align);
    }
  for (const std::size_t bytes : {2 * memory::huge_page, 5 * memory::huge_page + 123}) {
    void* p = memory::pages()->allocate(bytes, alignment);
    CHECK(address(p) % memory::huge_page == 0);
    std::memset(p, 1, bytes);
    memory::pages()->deallocate(p, bytes, alignment);
  }
}

TEST_CASE("a large buffer is in huge pages where the system gives them") {
  std::string given;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled") >> std::ws, given);
  if (given.find("[madvise]") == std::string::npos && given.find("[always]") == std::string::npos)
    SKIP("this system gives no huge pages");
  const Buffer<float> buffer(8 * memory::huge_page / sizeof(float));
  // Not all pages may be free; without the request there would be none under [madvise].
  CHECK(huge_bytes(buffer.data()) >= memory::huge_page);
}

TEST_CASE("the resource is one, and equal to itself alone") {
  CHECK(memory::pages() == memory::pages());
  CHECK_FALSE(memory::pages()->is_equal(*std::pmr::new_delete_resource()));
}

}  // namespace
