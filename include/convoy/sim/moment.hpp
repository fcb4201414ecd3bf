// Moment: a time with its critical path: for each cause, the seconds on the path that determined the time. A
// wait for two moments takes the later one with its path, so that the last moment of a step shows what the
// step's length consists of (the critical path method, Kelley and Walker 1959).
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace convoy::sim {

/// What takes time.
enum class Cause : unsigned char {
  compute,    ///< forward, backward and updates
  launch,     ///< of a bucket
  latency,    ///< of messages
  inside,     ///< bytes inside nodes
  nic,        ///< bytes through NICs
  fabric,     ///< bytes between leaves
  combining,  ///< reductions and codecs
  staging,    ///< copies between devices and hosts
};
inline constexpr std::size_t causes = 8;

constexpr std::string_view name_of(Cause cause) {
  constexpr std::string_view names[causes] = {"compute", "launch", "latency",   "inside",
                                              "nic",     "fabric", "combining", "staging"};
  return names[static_cast<std::size_t>(cause)];
}

struct Moment {
  double at = 0;                      ///< seconds from the beginning
  std::array<double, causes> path{};  ///< sums to `at`

  Moment after(Cause cause, double seconds) const {
    Moment then = *this;
    then.add(cause, seconds);
    return then;
  }
  void add(Cause cause, double seconds) {
    at += seconds;
    path[static_cast<std::size_t>(cause)] += seconds;
  }
  void wait_for(const Moment& other) {
    if (at < other.at) *this = other;
  }
};

}  // namespace convoy::sim
