// All-reduce over groups of ranks, such as those of one node: reduce-scatter inside each group, so that every
// member holds a shard of the group's sum; all-reduce across the groups on each shard, among the members that
// hold it; all-gather inside. The slow links between groups carry each shard once, whatever the size of the
// groups.
//
//     groups {0 1 2 3} {4 5}, the shards of each rank after the reduce-scatter:
//         rank 0: 0     1: 1     2: 2     3: 3        rank 4: 0 1     5: 2 3
//     so 0 and 4 all-reduce shard 0, 1 and 4 shard 1, 2 and 5 shard 2, 3 and 5 shard 3
//
// Groups may differ in size: there are as many shards as blocks in the group with most blocks, and each block
// of a smaller group is several shards. A rank without a shard (in a double tree, all but the two roots of a
// group) takes no part across groups. Both levels are schedules, and either may itself be hierarchical.
#pragma once

#include <algorithm>
#include <concepts>
#include <string_view>

#include <convoy/comm/schedule/parts.hpp>
#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// Groups of `k` consecutive ranks; the last group may be smaller.
template <int k>
struct Every {
  static_assert(k > 0, "convoy: a group has at least one rank");
  static constexpr bool proved = true;
  constexpr int count(int size) const { return (size + k - 1) / k; }
  constexpr int begin(int group, int size) const { return std::min(size, group * k); }
};

/// Groups of the given sizes, repeated until all ranks are in a group; the last group may be smaller.
template <int... k>
struct Sizes {
  static_assert(sizeof...(k) > 0 && ((k > 0) && ...), "convoy: a group has at least one rank");
  static constexpr bool proved = true;
  static constexpr int turn = (k + ...);
  static constexpr int groups = static_cast<int>(sizeof...(k));
  constexpr int count(int size) const {
    int n = size / turn * groups;
    while (begin(n, size) < size) ++n;
    return n;
  }
  constexpr int begin(int group, int size) const {
    constexpr int sizes[] = {k...};
    int first = group / groups * turn;
    for (int g = 0; g < group % groups; ++g) first += sizes[g];
    return std::min(size, first);
  }
};

/// How ranks form groups: `count(size)` of them, group g being ranks [begin(g), begin(g + 1)), none empty.
template <class G>
concept Grouping = requires(const G& g, int n) {
  { g.count(n) } -> std::same_as<int>;
  { g.begin(n, n) } -> std::same_as<int>;
};

namespace detail {

// Which rank holds which shard between the levels, and the steps of one rank at each level.
template <class Intra, class Inter, class Groups>
class Hierarchy {
 public:
  constexpr explicit Hierarchy(int size) : size_(size), groups_(Groups{}.count(size)) {
    for (int g = 0; g < groups_; ++g) shards_ = std::max(shards_, Intra{}.blocks(members_of(g)));
  }

  constexpr int blocks() const { return shards_ * parts_of_shard(); }
  constexpr int owner(int block) const {
    return holder(block / parts_of_shard(), Inter{}.owner(block % parts_of_shard(), groups_));
  }

  template <class Half, class Emit>
  constexpr void inside(int rank, int segments, int window, Emit& emit) const {
    const int group = group_of(rank), first = Groups{}.begin(group, size_), parts = parts_of_shard();
    InParts<Half>{shards_, segments, window}.steps(rank - first, members_of(group), [&](const Step& step) {
      emit(Step{step.action, step.completes && groups_ == 1, step.peer + first, step.chunk * parts,
                step.count * parts});
    });
  }

  template <class Outer, class Emit>
  constexpr void across(int rank, int segments, int window, Emit& emit) const {
    const Outer outer = segmented(Outer{}, segments, window);
    const int group = group_of(rank);
    for (int shard = 0; shard < shards_; ++shard) {
      if (holder(shard, group) != rank) continue;
      outer.steps(group, groups_, [&](const Step& step) {
        emit(Step{step.action, step.completes, holder(shard, step.peer),
                  shard * parts_of_shard() * segments + step.chunk, step.count});
      });
    }
  }

 private:
  constexpr int members_of(int group) const {
    return Groups{}.begin(group + 1, size_) - Groups{}.begin(group, size_);
  }
  constexpr int group_of(int rank) const {
    int group = 0;
    while (Groups{}.begin(group + 1, size_) <= rank) ++group;
    return group;
  }
  constexpr int parts_of_shard() const { return Inter{}.blocks(groups_); }
  // The rank of a group that holds a shard between the two halves.
  constexpr int holder(int shard, int group) const {
    return Groups{}.begin(group, size_) +
           InParts<typename Intra::ReduceScatter>{shards_}.owner(shard, members_of(group));
  }

  int size_, groups_, shards_ = 1;
};

}  // namespace detail

/// The first half of Hierarchical, if `Inter` also has two halves: inside the groups, then across them.
template <class Intra, class Inter, class Groups>
struct HierarchicalReduceScatter;
/// The second half: across the groups, then inside them.
template <class Intra, class Inter, class Groups>
struct HierarchicalAllGather;

template <TwoHalves Intra, TwoHalves Inter, Grouping Groups>
struct HierarchicalReduceScatter<Intra, Inter, Groups> {
  static constexpr std::string_view name = "hierarchical reduce-scatter";
  static constexpr Goal goal = Goal::reduce_scatter;
  static constexpr bool proved =
      detail::proved<Intra>() && detail::proved<Inter>() && detail::proved<Groups>();
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const HierarchicalReduceScatter&,
                                   const HierarchicalReduceScatter&) = default;

  constexpr int blocks(int size) const { return detail::Hierarchy<Intra, Inter, Groups>(size).blocks(); }
  constexpr int owner(int block, int size) const {
    return detail::Hierarchy<Intra, Inter, Groups>(size).owner(block);
  }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    const detail::Hierarchy<Intra, Inter, Groups> levels(size);
    levels.template inside<typename Intra::ReduceScatter>(rank, segments, window, emit);
    levels.template across<typename Inter::ReduceScatter>(rank, segments, window, emit);
  }
};

template <TwoHalves Intra, TwoHalves Inter, Grouping Groups>
struct HierarchicalAllGather<Intra, Inter, Groups> {
  static constexpr std::string_view name = "hierarchical all-gather";
  static constexpr Goal goal = Goal::all_gather;
  static constexpr bool proved =
      detail::proved<Intra>() && detail::proved<Inter>() && detail::proved<Groups>();
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const HierarchicalAllGather&, const HierarchicalAllGather&) = default;

  constexpr int blocks(int size) const { return detail::Hierarchy<Intra, Inter, Groups>(size).blocks(); }
  constexpr int owner(int block, int size) const {
    return detail::Hierarchy<Intra, Inter, Groups>(size).owner(block);
  }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    const detail::Hierarchy<Intra, Inter, Groups> levels(size);
    levels.template across<typename Inter::AllGather>(rank, segments, window, emit);
    levels.template inside<typename Intra::AllGather>(rank, segments, window, emit);
  }
};

/// All-reduce by `Intra` inside groups and by `Inter` across them.
template <TwoHalves Intra, Schedule Inter, Grouping Groups>
struct Hierarchical {
  static constexpr std::string_view name = "hierarchical";
  static constexpr Goal goal = Goal::all_reduce;
  static constexpr bool proved =
      detail::proved<Intra>() && detail::proved<Inter>() && detail::proved<Groups>();
  static_assert(Inter::goal == Goal::all_reduce, "convoy: groups exchange their sums by an all-reduce");
  using ReduceScatter = HierarchicalReduceScatter<Intra, Inter, Groups>;
  using AllGather = HierarchicalAllGather<Intra, Inter, Groups>;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const Hierarchical&, const Hierarchical&) = default;

  constexpr int blocks(int size) const { return detail::Hierarchy<Intra, Inter, Groups>(size).blocks(); }
  constexpr int owner(int block, int size) const {
    return detail::Hierarchy<Intra, Inter, Groups>(size).owner(block);
  }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    const detail::Hierarchy<Intra, Inter, Groups> levels(size);
    levels.template inside<typename Intra::ReduceScatter>(rank, segments, window, emit);
    levels.template across<Inter>(rank, segments, window, emit);
    levels.template inside<typename Intra::AllGather>(rank, segments, window, emit);
  }
};

}  // namespace convoy::schedule
