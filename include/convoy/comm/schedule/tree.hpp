// The double binary tree (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", 2009; NCCL since 2.4): two trees over the same ranks, each for one half of the buffer,
// so that the inner ranks of one are the leaves of the other and every link is busy in both directions.
// Segments go up the trees, which is a reduce-scatter to the two roots, and come down again, an all-gather
// from them: about 2 lg n latencies and 2M bytes per rank.
//
// The first tree of 8 ranks; the second is its mirror image (rank r in the place of rank 7 - r) or, for odd
// sizes, the first shifted by one rank:
//
//     0---------.
//               4
//           .--' '--.
//           2       6
//          / \     / \.
//         1   3   5   7
#pragma once

#include <algorithm>
#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

namespace detail {

// The neighbors of a place in the binary tree whose leaves are the odd places.
struct TreePlace {
  int parent = -1;
  int child[2] = {-1, -1};

  constexpr bool leaf() const { return child[0] < 0 && child[1] < 0; }

  constexpr TreePlace(int place, int size) {
    int bit = 1;
    while (bit < size && (place & bit) == 0) bit *= 2;
    if (place > 0) {
      parent = (place ^ bit) | (2 * bit);
      if (parent >= size) parent = place ^ bit;
    }
    if (place == 0) {
      child[1] = size > 1 ? bit / 2 : -1;
      return;
    }
    int reach = bit / 2;
    if (reach == 0) return;
    child[0] = place - reach;
    while (reach > 0 && place + reach >= size) reach /= 2;
    if (reach > 0) child[1] = place + reach;
  }
};

// The neighbors of a rank in one of the two trees.
constexpr TreePlace neighbors(int rank, int size, int tree) {
  const bool mirrored = size % 2 == 0;
  const auto place_of = [&](int r) {
    return tree == 0 ? r : mirrored ? size - 1 - r : (r + size - 1) % size;
  };
  const auto rank_of = [&](int p) {
    return p < 0 ? -1 : tree == 0 ? p : mirrored ? size - 1 - p : (p + 1) % size;
  };
  TreePlace t(place_of(rank), size);
  t.parent = rank_of(t.parent);
  for (int& c : t.child) c = rank_of(c);
  return t;
}

// A leaf waits for no rank on the way up, and no rank waits for a leaf on the way down. So on the way up a
// rank runs ahead in the tree in which it is a leaf, and on the way down it lags behind there. If a rank
// handled a segment of both trees in one step, each tree would wait for the whole height of the other.
template <class Emit>
class TreeSteps {
 public:
  constexpr TreeSteps(int rank, int size, int segments, int window, Emit& emit)
      : trees_{neighbors(rank, size, 0), neighbors(rank, size, 1)},
        segments_(segments),
        lead_(std::min(2 * window - 1, segments)),
        leaf_(trees_[0].leaf() ? 0 : 1),
        emit_(emit) {}

  constexpr void reduce_scatter() {
    for (int s = 0; s < segments_ + lead_; ++s) {
      up(leaf_, s);
      up(1 - leaf_, s - lead_);
    }
  }
  constexpr void all_gather() {
    for (int s = 0; s < segments_ + lead_; ++s) {
      down(1 - leaf_, s);
      down(leaf_, s - lead_);
    }
  }

 private:
  constexpr void up(int tree, int s) {
    if (s < 0 || s >= segments_) return;
    const TreePlace& t = trees_[tree];
    int left = (t.child[0] >= 0) + (t.child[1] >= 0);
    for (int child : t.child)
      if (child >= 0)
        emit_(Step{Action::receive_reduce, t.parent < 0 && --left == 0, child, tree * segments_ + s});
    if (t.parent >= 0) emit_(Step{Action::send, false, t.parent, tree * segments_ + s});
  }
  constexpr void down(int tree, int s) {
    if (s < 0 || s >= segments_) return;
    const TreePlace& t = trees_[tree];
    if (t.parent >= 0) emit_(Step{Action::receive, false, t.parent, tree * segments_ + s});
    for (int child : t.child)
      if (child >= 0) emit_(Step{Action::send, false, child, tree * segments_ + s});
  }

  TreePlace trees_[2];
  int segments_, lead_, leaf_;
  Emit& emit_;
};

// One block per tree.
constexpr int tree_blocks(int size) { return size > 1 ? 2 : 1; }
constexpr int tree_root(int block, int size) {
  return block == 0 || size < 2 ? 0 : size % 2 == 0 ? size - 1 : 1;
}

}  // namespace detail

/// The first half: the root of each tree ends with its block, all others with none.
struct TreeReduceScatter {
  static constexpr std::string_view name = "tree reduce-scatter";
  static constexpr Goal goal = Goal::reduce_scatter;
  static constexpr bool proved = true;
  int segments = 1;
  int window = 4;  ///< up to twice as many segments are in flight between two ranks
  friend constexpr bool operator==(const TreeReduceScatter&, const TreeReduceScatter&) = default;

  constexpr int blocks(int size) const { return detail::tree_blocks(size); }
  constexpr int owner(int block, int size) const { return detail::tree_root(block, size); }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::TreeSteps(rank, size, segments, window, emit).reduce_scatter();
  }
};

/// The second half: the root of each tree starts with its block, every rank ends with both.
struct TreeAllGather {
  static constexpr std::string_view name = "tree all-gather";
  static constexpr Goal goal = Goal::all_gather;
  static constexpr bool proved = true;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const TreeAllGather&, const TreeAllGather&) = default;

  constexpr int blocks(int size) const { return detail::tree_blocks(size); }
  constexpr int owner(int block, int size) const { return detail::tree_root(block, size); }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::TreeSteps(rank, size, segments, window, emit).all_gather();
  }
};

/// All-reduce up and down two binary trees.
struct Tree {
  static constexpr std::string_view name = "tree";
  static constexpr Goal goal = Goal::all_reduce;
  static constexpr bool proved = true;
  using ReduceScatter = TreeReduceScatter;
  using AllGather = TreeAllGather;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const Tree&, const Tree&) = default;

  constexpr int blocks(int size) const { return detail::tree_blocks(size); }
  constexpr int owner(int block, int size) const { return detail::tree_root(block, size); }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    detail::TreeSteps steps(rank, size, segments, window, emit);
    steps.reduce_scatter();
    steps.all_gather();
  }
};

}  // namespace convoy::schedule
