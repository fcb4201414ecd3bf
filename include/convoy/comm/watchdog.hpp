// Watchdog for calls that cannot be polled (MPI_Init, MPI_Comm_dup, MPI_Finalize, MPI_Allreduce). A call that
// does not return cannot throw, so the process names the call and exits.
#pragma once

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/stuck.hpp>

#if CONVOY_DEFINITIONS
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#endif

namespace convoy::comm {

/// Ends the process with `exit_code` unless it is destroyed within the limit.
class Watchdog {
 public:
  static constexpr int exit_code = stuck_exit_code;

  /// `call` names the watched call ("MPI_Finalize"); `rank` is -1 if it is not known yet. `why` follows the
  /// limit in the sentence (", because ..."). Both texts must outlive the watchdog.
  Watchdog(const char* call, int rank, Seconds limit, const char* why = "");
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct Guard {
    const char* call;
    const char* why;
    int rank;
    Deadline deadline;
    Guard* next;
    Guard* previous;
  };

  class Thread;
  static Thread& thread();

  Guard guard_;
};

#if CONVOY_DEFINITIONS
// One thread per process, started with the first guard. It checks the guards four times a second, so that
// arming one costs a lock and no system call.
class Watchdog::Thread {
 public:
  Thread() : thread_([this] { watch(); }) {}
  ~Thread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void add(Guard& guard) {
    const std::lock_guard lock(mutex_);
    guard.next = first_;
    if (first_ != nullptr) first_->previous = &guard;
    first_ = &guard;
  }
  void remove(Guard& guard) {
    const std::lock_guard lock(mutex_);
    if (guard.next != nullptr) guard.next->previous = guard.previous;
    (guard.previous != nullptr ? guard.previous->next : first_) = guard.next;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(250), [this] { return stop_; }))
      for (const Guard* g = first_; g != nullptr; g = g->next)
        if (g->deadline.expired()) {
          std::fprintf(stderr, "rank %d: %s did not return within %.3g s%s; the process ends\n", g->rank,
                       g->call, g->deadline.elapsed(), g->why);
          end_stuck_process();
        }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  Guard* first_ = nullptr;
  bool stop_ = false;
  std::thread thread_;  // last, because the thread uses the other members
};

CONVOY_FUNCTION Watchdog::Thread& Watchdog::thread() {
  static Thread one;
  return one;
}

CONVOY_FUNCTION Watchdog::Watchdog(const char* call, int rank, Seconds limit, const char* why)
    : guard_{call, why, rank, Deadline(limit), nullptr, nullptr} {
  thread().add(guard_);
}
CONVOY_FUNCTION Watchdog::~Watchdog() { thread().remove(guard_); }
#endif

}  // namespace convoy::comm
