// Groups of ranks: subsets of a world whose exchanges run beside those of the world and of other groups.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <convoy/comm/engine/collectives.hpp>
#include <convoy/comm/gather.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

namespace detail {

// "0 2 5", or "no rank".
inline std::string listed_ranks(std::span<const i32> ranks) {
  std::string text;
  for (const i32 r : ranks) text += concat(text.empty() ? "" : " ", r);
  return text.empty() ? "no rank" : text;
}

template <transport::Transport T>
std::vector<i32> gathered_over(const T& world, std::span<const i32> mine, const Options& options) {
  Collectives<schedule::Ring, T> all(world, options);
  return gathered(world.rank(), world.size(), mine,
                  [&](std::span<i32> table) { all.all_reduce(table, sum); });
}

}  // namespace detail

/// The group of the ranks that give the same `color`, ordered by key and then by rank, as in MPI_Comm_split.
/// All ranks of the world call it, and then all make the same exchanges over their groups, in the same order:
/// `Ring<transport::Group<T>> part{split(world, row, 0)}`. A world may be split repeatedly, as into rows and
/// into columns. Errors give ranks by their numbers in the group.
template <transport::Transport T>
transport::Group<T> split(const T& world, int color, int key = 0, const Options& options = {}) {
  const i32 mine[] = {color, key};
  const std::vector<i32> all = detail::gathered_over(world, std::span<const i32>(mine), options);
  std::vector<int> members;
  for (int r = 0; r < world.size(); ++r)
    if (all[2 * static_cast<std::size_t>(r)] == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1];
  });
  return transport::Group<T>(world, members);
}

/// The group of the ranks in a list, in the order of the list. All ranks of the world call it, each with the
/// list of its own group: the groups partition the world. Throws ConfigError on every rank, with the same
/// sentence, if a rank is not in its own list, if a list names a rank twice or one that does not exist, or if
/// two ranks of a group give different lists.
template <transport::Transport T>
transport::Group<T> group(const T& world, const std::vector<int>& members, const Options& options = {}) {
  const int size = world.size();
  // The list's length, which may be wrong, and as much of the list as could be right.
  const auto row = static_cast<std::size_t>(size) + 1;
  std::vector<i32> mine(row, -1);
  mine[0] = static_cast<i32>(members.size());
  std::copy_n(members.begin(), std::min(members.size(), row - 1), mine.begin() + 1);
  const std::vector<i32> table = detail::gathered_over(world, std::span<const i32>(mine), options);
  const auto list = [&](int rank) {
    const i32* at = table.data() + row * static_cast<std::size_t>(rank);
    return std::span<const i32>(at + 1, std::min(static_cast<std::size_t>(at[0]), row - 1));
  };
  for (int r = 0; r < size; ++r) {
    const auto its = list(r);
    if (table[row * static_cast<std::size_t>(r)] > size)
      fail<ConfigError>("rank ", r, " lists ", table[row * static_cast<std::size_t>(r)],
                        " ranks as its group in a world of ", size);
    for (std::size_t i = 0; i < its.size(); ++i) {
      if (its[i] < 0 || its[i] >= size)
        fail<ConfigError>("rank ", r, " lists rank ", its[i], " in its group, in a world of ", size);
      if (std::find(its.begin(), its.begin() + static_cast<std::ptrdiff_t>(i), its[i]) !=
          its.begin() + static_cast<std::ptrdiff_t>(i))
        fail<ConfigError>("rank ", r, " lists rank ", its[i], " twice in its group");
    }
    if (std::find(its.begin(), its.end(), r) == its.end())
      fail<ConfigError>("rank ", r, " is not in the group that it lists: ", detail::listed_ranks(its));
  }
  for (int r = 0; r < size; ++r)
    for (const i32 other : list(r))
      if (!std::ranges::equal(list(r), list(other)))
        fail<ConfigError>("rank ", other, " lists the group ", detail::listed_ranks(list(other)),
                          " where rank ", r, " lists ", detail::listed_ranks(list(r)));
  return transport::Group<T>(world, members);
}

}  // namespace convoy::comm
