// Device memory that somebody other than its owner may access: NCCL, which has registered it, or a process
// that has mapped it. Freeing such memory throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace emulation {

class Held {
 public:
  static Held& of_process() {
    static Held held;
    return held;
  }

  /// Registers `who` as a holder of `bytes` bytes until `let_go` is called with the returned number.
  /// `outlasts`: if an exception makes the owner free the memory, it stays allocated until then, as memory
  /// does that another process has mapped.
  std::uintptr_t hold(const void* p, std::size_t bytes, std::string who, bool outlasts = false) {
    const std::lock_guard lock(mutex_);
    pieces_[++last_] = {static_cast<const std::byte*>(p), bytes, std::move(who), outlasts};
    return last_;
  }
  /// False if there is no such number.
  bool let_go(std::uintptr_t number) {
    std::vector<Freed> free;
    {
      const std::lock_guard lock(mutex_);
      if (pieces_.erase(number) == 0) return false;
      for (auto next = freed_.begin(); next != freed_.end();)
        if (holder(next->begin, next->bytes) == nullptr) {
          free.push_back(std::move(*next));
          next = freed_.erase(next);
        } else {
          ++next;
        }
    }
    for (const Freed& it : free) it.release();
    return true;
  }

  /// Calls `release`, which frees these bytes. Throws if any of them is held.
  void free(const void* p, std::size_t bytes, std::function<void()> release) {
    const auto* begin = static_cast<const std::byte*>(p);
    {
      const std::lock_guard lock(mutex_);
      if (const Piece* by = holder(begin, bytes)) {
        if (!by->outlasts || std::uncaught_exceptions() == 0)
          throw std::logic_error("device memory was freed that " + by->who);
        freed_.push_back({begin, bytes, std::move(release)});
        return;
      }
    }
    release();
  }

 private:
  struct Piece {
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
    std::string who;
    bool outlasts = false;
  };
  struct Freed {
    const std::byte* begin;
    std::size_t bytes;
    std::function<void()> release;
  };

  // Prefers a holder for whom freeing is always an error.
  const Piece* holder(const std::byte* begin, std::size_t bytes) const {
    const Piece* found = nullptr;
    for (const auto& [number, piece] : pieces_)
      if (piece.begin < begin + bytes && begin < piece.begin + piece.bytes &&
          (found == nullptr || found->outlasts))
        found = &piece;
    return found;
  }

  std::mutex mutex_;
  std::uintptr_t last_ = 0;
  std::map<std::uintptr_t, Piece> pieces_;
  std::vector<Freed> freed_;  // by their owners, but still held
};

}  // namespace emulation
