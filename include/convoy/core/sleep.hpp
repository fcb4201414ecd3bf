// Sleep: waiting for a moment without using the processor.
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

/// Sleeps until a moment that may have passed. Systems wake a thread some 50 us late; since the moment is
/// absolute, waits one after the other do not add that up.
void sleep_until(Clock::time_point moment);

/// The same to within a few microseconds: the thread is awake for the last 100 us.
void sleep_exactly_until(Clock::time_point moment);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void sleep_until(Clock::time_point moment) {
#if defined(__linux__)
  // libstdc++ sleeps for the time that is left, which a thread that is interrupted in between oversleeps.
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
