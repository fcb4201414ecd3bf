// Sleep: waiting until a point in time without occupying the processor.
#pragma once

#include <chrono>

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <cerrno>
#include <thread>
#if defined(__linux__)
#include <ctime>
#endif
#endif

namespace convoy {

/// Sleeps until `moment`; returns at once if it has passed. Operating systems wake a thread about 50 us late;
/// because `moment` is absolute, these delays do not accumulate over consecutive waits.
void sleep_until(Clock::time_point moment);

/// The same, accurate to a few microseconds: the thread polls the clock for the last 100 us.
void sleep_exactly_until(Clock::time_point moment);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void sleep_until(Clock::time_point moment) {
#if defined(__linux__)
  // libstdc++ sleeps for the remaining duration, so a thread preempted after computing it oversleeps.
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(moment.time_since_epoch()).count();
  if (since <= 0) return;
  std::timespec at{};
  at.tv_sec = static_cast<std::time_t>(since / 1'000'000'000);
  at.tv_nsec = static_cast<long>(since % 1'000'000'000);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
#else
  std::this_thread::sleep_until(moment);
#endif
}

CONVOY_FUNCTION void sleep_exactly_until(Clock::time_point moment) {
  sleep_until(moment - std::chrono::microseconds(100));
  while (Clock::now() < moment) std::this_thread::yield();
}
#endif

}  // namespace convoy
