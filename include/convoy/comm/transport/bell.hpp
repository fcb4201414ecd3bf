// Bell: a counter that wakes sleeping waiters when it changes (an event count), with a time limit on the
// sleep, which std::atomic::wait does not have. While nobody is about to sleep, `ring` only reads, so that
// spinning waiters and those who ring do not contend for the cache line.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#else
#include <thread>
#endif

namespace convoy::transport {

/// `across_processes`: whether the bell lies in memory that processes share.
template <bool across_processes = false>
class Bell {
 public:
  /// Announces that the caller is about to sleep, after one more look at what it waits for. That look finds
  /// any sequentially consistent store made before; a store made later, followed by `ring`, ends the sleep.
  /// Followed by `sleep` or `stir`.
  std::uint32_t doze() {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    return count_.load(std::memory_order_seq_cst);
  }
  void stir() { sleepers_.fetch_sub(1, std::memory_order_seq_cst); }

  /// Wakes all sleepers.
  void ring() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    count_.fetch_add(1, std::memory_order_seq_cst);
#if defined(__linux__)
    ::syscall(SYS_futex, address(), across_processes ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr,
              nullptr, 0);
#endif
  }

  /// Sleeps until the count differs from `seen` or `limit` has passed; may wake spuriously.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds limit) {
#if defined(__linux__)
    if (count_.load(std::memory_order_seq_cst) == seen) {
      const timespec time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
      ::syscall(SYS_futex, address(), across_processes ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, &time,
                nullptr, 0);
    }
#else
    const auto end = std::chrono::steady_clock::now() + limit;
    while (count_.load(std::memory_order_seq_cst) == seen && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
    stir();
  }

 private:
  std::uint32_t* address() {
    static_assert(sizeof(count_) == sizeof(std::uint32_t));
    return reinterpret_cast<std::uint32_t*>(&count_);
  }

  alignas(64) std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace convoy::transport
