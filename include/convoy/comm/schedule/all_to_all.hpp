// All-to-all: every rank sends one of its blocks to each other rank and receives one from each, all at once.
// Received blocks go into an inbox beside the buffer, so that all have arrived before any is combined.
#pragma once

#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// Block i * n + j goes from rank i to rank j. In rank r's memory that is block j of its buffer if r = i, and
/// slot i of its inbox if r = j.
struct AllToAll {
  static constexpr std::string_view name = "all-to-all";
  static constexpr Goal goal = Goal::all_to_all;
  static constexpr bool proved = true;
  int segments = 1;
  friend constexpr bool operator==(const AllToAll&, const AllToAll&) = default;

  constexpr int blocks(int size) const { return size * size; }
  constexpr int owner(int block, int size) const { return block / size; }
  /// How many blocks the buffer has; the places after them are slots of the inbox.
  constexpr int places(int size) const { return size; }
  constexpr int place(int block, int rank, int size) const {
    return block / size == rank ? block % size : size + block / size;
  }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    // In round k every rank sends to the k-th rank after it, so that not all send to the same rank first.
    for (int s = 0; s < segments; ++s) {
      for (int k = 1; k < size; ++k) {
        const int peer = (rank + k) % size;
        emit(Step{Action::send, false, peer, (rank * size + peer) * segments + s});
      }
      for (int k = 1; k < size; ++k) {
        const int peer = (rank + size - k) % size;
        emit(Step{Action::receive, false, peer, (peer * size + rank) * segments + s});
      }
    }
  }
};

}  // namespace convoy::schedule
