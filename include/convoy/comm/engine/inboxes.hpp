// Inboxes: receive buffers. A message library may write to one for as long as a receive is announced, which
// can be longer than the buffer's owner lives.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/memory/pages.hpp>

#if CONVOY_DEFINITIONS
#include <mutex>
#endif

namespace convoy::comm::detail {

/// Keeps deallocated memory until `free`, called when no receive is outstanding, or until its own end. After
/// `keep` it keeps that memory for good.
class Inboxes : public std::pmr::memory_resource {
 public:
  /// `at_once`: memory is freed when deallocated, because only this rank itself writes to it.
  explicit Inboxes(bool at_once) : at_once_(at_once) {}
  CONVOY_FUNCTION ~Inboxes() override;
  Inboxes(const Inboxes&) = delete;
  Inboxes& operator=(const Inboxes&) = delete;

  void free() noexcept;
  void keep() noexcept { kept_ = true; }

 private:
  struct Block {
    void* data;
    std::size_t bytes, align;
  };

  CONVOY_FUNCTION void* do_allocate(std::size_t bytes, std::size_t align) override;
  CONVOY_FUNCTION void do_deallocate(void* data, std::size_t bytes, std::size_t align) override;
  CONVOY_FUNCTION bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  bool at_once_, kept_ = false;
  std::vector<Block> retired_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Inboxes::~Inboxes() {
  if (!kept_) {
    free();
    return;
  }
  // The list stays reachable, so that nothing takes the memory for lost.
  static std::mutex mutex;
  static auto* const kept = new std::vector<Block>;
  const std::lock_guard lock(mutex);
  kept->insert(kept->end(), retired_.begin(), retired_.end());
}

CONVOY_FUNCTION void Inboxes::free() noexcept {
  for (const Block& b : retired_) memory::pages()->deallocate(b.data, b.bytes, b.align);
  retired_.clear();
}

CONVOY_FUNCTION void* Inboxes::do_allocate(std::size_t bytes, std::size_t align) {
  return memory::pages()->allocate(bytes, align);
}

CONVOY_FUNCTION void Inboxes::do_deallocate(void* data, std::size_t bytes, std::size_t align) {
  if (at_once_)
    memory::pages()->deallocate(data, bytes, align);
  else
    retired_.push_back({data, bytes, align});
}
#endif

}  // namespace convoy::comm::detail
