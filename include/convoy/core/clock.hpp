// Clock: elapsed time and deadlines on the monotonic clock.
#pragma once

#include <chrono>

namespace convoy {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Seconds since construction or the last restart.
class Stopwatch {
 public:
  double seconds() const { return Seconds(Clock::now() - start_).count(); }
  void restart() { start_ = Clock::now(); }

 private:
  Clock::time_point start_ = Clock::now();
};

/// The time at which a wait gives up. A limit too large for the clock to represent, including infinity, never
/// expires.
class Deadline {
 public:
  /// Limits of this length, about thirty years, and above never expire. It leaves ample room below the
  /// clock's 2^63 nanoseconds.
  static constexpr Seconds most{1e9};

  explicit Deadline(Seconds limit)
      : start_(Clock::now()),
        end_(limit < most ? start_ + std::chrono::duration_cast<Clock::duration>(limit)
                          : Clock::time_point::max()) {}
  bool expired() const { return Clock::now() >= end_; }
  double elapsed() const { return Seconds(Clock::now() - start_).count(); }
  Clock::time_point end() const { return end_; }

 private:
  Clock::time_point start_, end_;
};

}  // namespace convoy
