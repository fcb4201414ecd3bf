// Counts the calls of a program that cost host time on a GPU. The work that a graph replays is not counted.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace emulation {

enum class Called : unsigned char {
  kernel,
  graph,
  copy,           ///< between device and pinned memory
  pageable_copy,  ///< of pageable host memory, for which the host may wait
  fill,
  record,       ///< event record
  stream_wait,  ///< a stream waits for an event
  host_wait,    ///< the host waits for a stream or an event
  kinds
};

/// Calls that the process has made so far, by kind.
class Counts {
 public:
  static constexpr std::size_t kinds = static_cast<std::size_t>(Called::kinds);

  static void count(Called kind) { ++so_far()[static_cast<std::size_t>(kind)]; }
  static Counts now() {
    Counts all;
    for (std::size_t i = 0; i < kinds; ++i) all.of_[i] = so_far()[i];
    return all;
  }

  long operator[](Called kind) const { return of_[static_cast<std::size_t>(kind)]; }
  long all() const {
    long sum = 0;
    for (const long n : of_) sum += n;
    return sum;
  }
  friend Counts operator-(Counts a, const Counts& b) {
    for (std::size_t i = 0; i < kinds; ++i) a.of_[i] -= b.of_[i];
    return a;
  }

 private:
  static std::array<std::atomic<long>, kinds>& so_far() {
    static std::array<std::atomic<long>, kinds> counts{};
    return counts;
  }
  std::array<long, kinds> of_{};
};

}  // namespace emulation
