// All-reduce over groups of ranks, such as those of one node: reduce-scatter inside each group, so that every
// member holds a shard of the group's sum; all-reduce across the groups on each shard, among the members that
// hold it; all-gather inside. The slow links between groups carry each shard once, whatever the size of the
// groups.
//
//     groups {0 1 2 3} {4 5}, the shards that a rank holds after the reduce-scatter:
//         rank 0: 0     1: 1     2: 2     3: 3        rank 4: 0 1     5: 2 3
//     so 0 and 4 all-reduce shard 0, 1 and 4 shard 1, 2 and 5 shard 2, 3 and 5 shard 3
//
// Groups may differ in size: there are as many shards as the group with most blocks has, and a smaller
// group's blocks are several shards each. Both levels are schedules, and the outer one may be hierarchical
// again.
#pragma once

#include <algorithm>
#include <concepts>
#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// Groups of `k` consecutive ranks; the last one takes what is left.
template <int k>
struct Every {
  static_assert(k > 0, "convoy: a group has at least one rank");
  constexpr int count(int size) const { return (size + k - 1) / k; }
  constexpr int begin(int group, int size) const { return std::min(size, group * k); }
};

/// Groups of the given sizes, over and over until the ranks are used up.
template <int... k>
struct Sizes {
  static_assert(sizeof...(k) > 0 && ((k > 0) && ...), "convoy: a group has at least one rank");
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

/// All-reduce by `Intra` inside groups and by `Inter` across them.
template <TwoHalves Intra, Schedule Inter, Grouping Groups>
struct Hierarchical {
  static constexpr std::string_view name = "hierarchical";
  static constexpr Goal goal = Goal::all_reduce;
  static_assert(Inter::goal == Goal::all_reduce, "convoy: groups exchange their sums by an all-reduce");
  int segments = 1;
  int window = 4;

  constexpr int blocks(int size) const { return shards(size) * Inter{}.blocks(Groups{}.count(size)); }
  constexpr int owner(int block, int size) const {
    const int parts = Inter{}.blocks(Groups{}.count(size));
    const int group = Inter{}.owner(block % parts, Groups{}.count(size));
    return holder(block / parts, group, shards(size), size);
  }

  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    const int groups = Groups{}.count(size);
    int group = 0;
    while (Groups{}.begin(group + 1, size) <= rank) ++group;
    const int first = Groups{}.begin(group, size), members = Groups{}.begin(group + 1, size) - first;
    const int shard_count = shards(size), parts = Inter{}.blocks(groups);

    const auto inside = [&](auto half) {
      half.segments = segments;
      if constexpr (requires { half.window; }) half.window = window;
      const int mine = half.blocks(members);
      // The first chunk, of all, of one of the group's chunks: its blocks are runs of shards.
      const auto chunk_of = [&](int chunk) {
        const int block = chunk / segments, segment = chunk % segments;
        const int begin = block * shard_count / mine, end = (block + 1) * shard_count / mine;
        return (begin * segments + segment * (end - begin)) * parts;
      };
      half.steps(rank - first, members, [&](const Step& step) {
        const int begin = chunk_of(step.chunk), end = chunk_of(step.chunk + step.count);
        emit(Step{step.action, step.completes && groups == 1, step.peer + first, begin, end - begin});
      });
    };

    inside(typename Intra::ReduceScatter{});
    for (int shard = 0; shard < shard_count; ++shard) {
      if (holder(shard, group, shard_count, size) != rank) continue;
      Inter inter{};
      inter.segments = segments;
      if constexpr (requires { inter.window; }) inter.window = window;
      inter.steps(group, groups, [&](const Step& step) {
        emit(Step{step.action, step.completes, holder(shard, step.peer, shard_count, size),
                  shard * parts * segments + step.chunk, step.count});
      });
    }
    inside(typename Intra::AllGather{});
  }

 private:
  constexpr int members_of(int group, int size) const {
    return Groups{}.begin(group + 1, size) - Groups{}.begin(group, size);
  }
  constexpr int shards(int size) const {
    int most = 1;
    for (int g = 0; g < Groups{}.count(size); ++g) most = std::max(most, Intra{}.blocks(members_of(g, size)));
    return most;
  }
  // The rank of a group that holds a shard between the two halves.
  constexpr int holder(int shard, int group, int shard_count, int size) const {
    const int members = members_of(group, size), mine = Intra{}.blocks(members);
    const int block = ((shard + 1) * mine - 1) / shard_count;  // the first whose run ends behind the shard
    return Groups{}.begin(group, size) + typename Intra::ReduceScatter{}.owner(block, members);
  }
};

}  // namespace convoy::schedule
