// Broadcast down a binomial tree: in round k each rank below 2^k, counted from the root, sends to the rank
// 2^k above it.
#pragma once

#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// Every rank ends with the root's buffer, in ceil(lg n) rounds.
struct Broadcast {
  static constexpr std::string_view name = "broadcast";
  static constexpr Goal goal = Goal::broadcast;
  static constexpr bool proved = true;
  int segments = 1;
  int root = 0;
  friend constexpr bool operator==(const Broadcast&, const Broadcast&) = default;

  constexpr int blocks(int) const { return 1; }
  constexpr int owner(int, int) const { return root; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    const int place = (rank - root + size) % size;
    // The first power of two above `place`: this rank receives from the rank mine / 2 below it.
    int mine = 1;
    while (mine <= place) mine *= 2;
    for (int segment = 0; segment < segments; ++segment) {
      if (place > 0) emit(Step{Action::receive, false, (place - mine / 2 + root) % size, segment});
      for (int distance = mine; place + distance < size; distance *= 2)
        emit(Step{Action::send, false, (place + distance + root) % size, segment});
    }
  }
};

}  // namespace convoy::schedule
