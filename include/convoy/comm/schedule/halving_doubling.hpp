// Recursive halving and doubling (Rabenseifner, "Optimization of collective reduction operations", 2004):
// the bandwidth of the ring in 2 lg n messages instead of 2(n-1). Partners at distance n/2, n/4, ... 1 send
// each other the half of the buffer that the receiver keeps, until each rank holds one block; the way back
// gathers the blocks.
//
//     8 ranks, blocks of rank 5 (binary 101):   4..7  ->  4..5  ->  5  ->  4..5  ->  4..7  ->  0..7
//     with partner                                1        7        4        7         1
//
// If n is not a power of two but n = 2^k + e, the first 2e ranks form pairs. A pair first adds its two
// buffers, each rank one half of them; the even rank collects the sum and takes part, the odd rank waits and
// gets the result. That adds two rounds before the halving and one after the doubling, of M/2, M/2 and M
// bytes.
#pragma once

#include <algorithm>
#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

namespace detail {

// One rank's place among the 2^k that take part: the first 2 * extra ranks share one place per pair.
struct Cube {
  int rank, size;
  int places = 1;  // the largest power of two up to size
  int extra = 0;   // the ranks that do not fit
  int place = 0;   // -1: this rank is an extra one

  constexpr Cube(int r, int n) : rank(r), size(n) {
    while (2 * places <= n) places *= 2;
    extra = n - places;
    if (r >= 2 * extra)
      place = r - extra;
    else
      place = r % 2 == 0 ? r / 2 : -1;
  }
  constexpr int rank_at(int p) const { return p < extra ? 2 * p : p + extra; }
  constexpr bool paired() const { return rank < 2 * extra; }
};

template <class Emit>
class HalvingSteps {
 public:
  constexpr HalvingSteps(int rank, int size, int segments, int window, Emit& emit)
      : cube_(rank, size), segments_(segments), window_(window), emit_(emit) {}

  constexpr void reduce_scatter() {
    const int all = cube_.places;
    if (cube_.paired()) fold_in();
    if (cube_.place < 0) return;
    for (int first = 0, length = all; length > 1;) {
      const int half = length / 2;
      const bool upper = (cube_.place & half) != 0;
      const int mine = upper ? first + half : first, theirs = upper ? first : first + half;
      const int partner = cube_.rank_at(cube_.place ^ half);
      exchange({partner, theirs, half}, {partner, mine, half}, Action::receive_reduce, half == 1);
      first = mine;
      length = half;
    }
  }

  constexpr void all_gather() {
    if (cube_.place >= 0)
      for (int length = 1; length < cube_.places; length *= 2) {
        const int mine = cube_.place / length * length, theirs = mine ^ length;
        const int partner = cube_.rank_at(cube_.place ^ length);
        exchange({partner, mine, length}, {partner, theirs, length}, Action::receive);
      }
    if (!cube_.paired()) return;
    if (cube_.place >= 0)
      send({cube_.rank + 1, 0, cube_.places});
    else
      receive({cube_.rank - 1, 0, cube_.places});
  }

 private:
  // `count` blocks from `first` on, to or from a rank.
  struct Run {
    int peer, first, count;
  };

  // Pairs exist only among three or more ranks, so the sum of a pair is never complete.
  constexpr void fold_in() {
    const int half = cube_.places / 2;
    if (cube_.place >= 0) {
      const int other = cube_.rank + 1;
      exchange({other, half, half}, {other, 0, half}, Action::receive_reduce);
      receive({other, half, half});
    } else {
      const int other = cube_.rank - 1;
      exchange({other, 0, half}, {other, half, half}, Action::receive_reduce);
      send({other, half, half});
    }
  }

  // Sends and receives `segments` messages each; `window` sends come before the first receive.
  constexpr void exchange(Run out, Run in, Action action, bool completes = false) {
    const int ahead = std::min(window_, segments_);
    for (int s = 0; s < ahead; ++s) step(Action::send, out, s);
    for (int s = 0; s < segments_; ++s) {
      step(action, in, s, completes);
      if (s + ahead < segments_) step(Action::send, out, s + ahead);
    }
  }
  constexpr void send(Run out) {
    for (int s = 0; s < segments_; ++s) step(Action::send, out, s);
  }
  constexpr void receive(Run in) {
    for (int s = 0; s < segments_; ++s) step(Action::receive, in, s);
  }

  constexpr void step(Action action, Run run, int segment, bool completes = false) {
    emit_(Step{action, completes, run.peer, run.first * segments_ + segment * run.count, run.count});
  }

  Cube cube_;
  int segments_, window_;
  Emit& emit_;
};

}  // namespace detail

/// The first half: the rank at place b ends with block b of the result.
struct HalvingDoublingReduceScatter {
  static constexpr std::string_view name = "halving-doubling reduce-scatter";
  static constexpr Goal goal = Goal::reduce_scatter;
  static constexpr bool proved = true;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const HalvingDoublingReduceScatter&,
                                   const HalvingDoublingReduceScatter&) = default;

  constexpr int blocks(int size) const { return detail::Cube(0, size).places; }
  constexpr int owner(int block, int size) const { return detail::Cube(0, size).rank_at(block); }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::HalvingSteps(rank, size, segments, window, emit).reduce_scatter();
  }
};

/// The second half: the rank at place b starts with block b, every rank ends with all blocks.
struct HalvingDoublingAllGather {
  static constexpr std::string_view name = "halving-doubling all-gather";
  static constexpr Goal goal = Goal::all_gather;
  static constexpr bool proved = true;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const HalvingDoublingAllGather&,
                                   const HalvingDoublingAllGather&) = default;

  constexpr int blocks(int size) const { return detail::Cube(0, size).places; }
  constexpr int owner(int block, int size) const { return detail::Cube(0, size).rank_at(block); }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::HalvingSteps(rank, size, segments, window, emit).all_gather();
  }
};

/// All-reduce in 2 lg n rounds, plus up to three if n is not a power of two.
struct HalvingDoubling {
  static constexpr std::string_view name = "halving-doubling";
  static constexpr Goal goal = Goal::all_reduce;
  static constexpr bool proved = true;
  using ReduceScatter = HalvingDoublingReduceScatter;
  using AllGather = HalvingDoublingAllGather;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const HalvingDoubling&, const HalvingDoubling&) = default;

  constexpr int blocks(int size) const { return detail::Cube(0, size).places; }
  constexpr int owner(int block, int size) const { return detail::Cube(0, size).rank_at(block); }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::HalvingSteps steps(rank, size, segments, window, emit);
    steps.reduce_scatter();
    steps.all_gather();
  }
};

}  // namespace convoy::schedule
