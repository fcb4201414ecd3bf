// The thresholds of waiting, in one place.
#pragma once

#include <chrono>

#include <convoy/core/clock.hpp>

namespace convoy::transport {

/// How a rank waits for others.
struct WaitTuning {
  /// Looks before a rank rests, if every rank has a processor: about a millisecond.
  int looks = 10'000;
  /// Looks if ranks share processors: just long enough not to sleep through an answer that is on its way.
  int looks_when_shared = 300;
  /// First looks without a clock read, so that an answer that comes at once does not wait for one.
  int looks_without_clock = 8;
  /// Seconds of looking after which a rank rests, however few its looks were: a look may yield the processor
  /// and come back tens of milliseconds later.
  double longest_looks = 0.005;
  /// Rounds of resting that yield, if there is nothing to sleep on; later rounds sleep for `nap`.
  int yields = 100;
  std::chrono::microseconds nap{50};
  /// Looks per check whether a peer is gone, which costs a system call or a message.
  unsigned looks_a_check = 64;
  /// How long a rank that withdraws its memory lets its peers finish reading it.
  Seconds reading_grace{1};
  /// How long a rank that withdraws because of an exception has to say what was thrown.
  std::chrono::milliseconds unwinding_grace{1000};
  /// How long a rank that gives up lets MPI finish its last messages.
  Seconds leaving_grace{0.1};
};
inline constexpr WaitTuning wait_tuning{};

}  // namespace convoy::transport
