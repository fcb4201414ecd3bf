// The ring: reduce-scatter, all-gather, and both in sequence (Patarasuk and Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations", 2009). Each rank communicates only with its two
// neighbors and moves 2(n-1)/n of the buffer, which is the lower bound.
//
// The steps of one block on its way round the ring of 4 (rank r owns block r after the reduce-scatter):
//
//     round            0        1        2     |   3        4        5
//     block 0 goes   1 -> 2   2 -> 3   3 -> 0  | 0 -> 1   1 -> 2   2 -> 3
//                        receive and reduce    |         receive
//
// Segments pipeline the rounds: while segment 1 is on the wire, segment 0 is being added. Segments go in
// batches of `window`. At most two batches are posted at any time, and the first sends of a batch go out
// before the previous batch ends.
#pragma once

#include <algorithm>
#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

namespace detail {

// Rounds [first, last) out of the rounds 0..2n-3 of the ring all-reduce, for all segments.
template <class Emit>
constexpr void ring_rounds(int rank, int size, int segments, int window, int first, int last, Emit&& emit) {
  if (size < 2 || first >= last) return;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  // In round t this rank sends block (rank - 1 - t) and receives block (rank - 2 - t), modulo size.
  const auto send = [&](int round, int segment) {
    const int block = (rank + 2 * size - 1 - round) % size;
    emit(Step{Action::send, false, next, block * segments + segment});
  };
  const auto receive = [&](int round, int segment) {
    const int block = (rank + 2 * size - 2 - round) % size;
    const bool reduces = round < size - 1;
    emit(Step{reduces ? Action::receive_reduce : Action::receive, round == size - 2, previous,
              block * segments + segment});
  };
  for (int begin = 0; begin < segments; begin += window) {
    const int end = std::min(segments, begin + window);
    if (begin == 0)
      for (int s = begin; s < end; ++s) send(first, s);
    for (int round = first; round < last; ++round) {
      if (round + 1 == last)
        for (int s = end; s < std::min(segments, end + window); ++s) send(first, s);
      for (int s = begin; s < end; ++s) {
        receive(round, s);
        if (round + 1 < last) send(round + 1, s);
      }
    }
  }
}

}  // namespace detail

/// The first n-1 rounds: rank r ends with block r of the result.
struct RingReduceScatter {
  static constexpr std::string_view name = "ring reduce-scatter";
  static constexpr Goal goal = Goal::reduce_scatter;
  static constexpr bool proved = true;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const RingReduceScatter&, const RingReduceScatter&) = default;

  constexpr int blocks(int size) const { return size; }
  constexpr int owner(int block, int) const { return block; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::ring_rounds(rank, size, segments, window, 0, size - 1, emit);
  }
};

/// The last n-1 rounds: rank r starts with block r, every rank ends with all blocks.
struct RingAllGather {
  static constexpr std::string_view name = "ring all-gather";
  static constexpr Goal goal = Goal::all_gather;
  static constexpr bool proved = true;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const RingAllGather&, const RingAllGather&) = default;

  constexpr int blocks(int size) const { return size; }
  constexpr int owner(int block, int) const { return block; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::ring_rounds(rank, size, segments, window, size - 1, 2 * (size - 1), emit);
  }
};

/// All-reduce in 2(n-1) rounds.
struct Ring {
  static constexpr std::string_view name = "ring";
  static constexpr Goal goal = Goal::all_reduce;
  static constexpr bool proved = true;
  using ReduceScatter = RingReduceScatter;
  using AllGather = RingAllGather;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const Ring&, const Ring&) = default;

  constexpr int blocks(int size) const { return size; }
  constexpr int owner(int block, int) const { return block; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::ring_rounds(rank, size, segments, window, 0, 2 * (size - 1), emit);
  }
};

}  // namespace convoy::schedule
