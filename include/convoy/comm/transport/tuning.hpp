// The thresholds of waiting, in one place.
#pragma once

#include <chrono>

#include <convoy/core/clock.hpp>

namespace convoy::transport {

/// How a rank waits for others.
struct WaitTuning {
  /// Looks before a rank rests where there is a processor for each: about a millisecond.
  int looks = 10'000;
  /// Looks where ranks share processors: just long enough not to sleep through an answer that is on its way.
  int looks_when_shared = 300;
  /// First looks during which the clock is not asked, because what comes at once does not wait for it.
  int looks_without_clock = 8;
  /// Looks that take longer than this in all are enough, however few they were: a look may give the processor
  /// away, and come back tens of milliseconds later.
  double longest_looks = 0.005;
  /// Rounds of resting that yield, where there is nothing to sleep on; later ones sleep for `nap`.
  int yields = 100;
  std::chrono::microseconds nap{50};
  /// Every so many looks a rank asks what costs a system call or a message: whether a peer is gone.
  unsigned looks_a_check = 64;
  /// How long a rank that takes its memory back lets its peers go on reading it.
  Seconds reading_grace{1};
  /// How long a rank that an exception has made to withdraw is given to say what was thrown.
  std::chrono::milliseconds unwinding_grace{1000};
  /// How long a rank that gives up lets MPI go on with its last messages.
  Seconds leaving_grace{0.1};
};
inline constexpr WaitTuning wait_tuning{};

}  // namespace convoy::transport
