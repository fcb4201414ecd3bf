// Members: which ranks of a world are in a group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>

namespace convoy::transport {

/// The ranks of a group, by their numbers in the world of which the group is a part.
class Members {
 public:
  /// Of the group of rank `rank` in a world of `size` ranks. Throws ConfigError if a member is not a rank of
  /// the world, or if `rank` is not a member.
  Members(std::vector<int> ranks, int rank, int size) : ranks_(std::move(ranks)) {
    for (const int r : ranks_)
      if (r < 0 || r >= size) fail<ConfigError>("a group names rank ", r, " in a world of ", size);
    rank_ = find(rank);
    if (rank_ < 0) fail<ConfigError>("rank ", rank, " is not in its own group");
  }

  /// This rank's number in the group.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  /// The number in the world of rank `member` of the group.
  int operator[](int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  /// The number in the group of rank `rank` of the world, or -1.
  int find(int rank) const {
    const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
    return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
  }

 private:
  std::vector<int> ranks_;
  int rank_ = 0;
};

}  // namespace convoy::transport
