// Shards: the part of each range that each rank updates when updates are sharded. Parts are equal. If some
// ranges must stay whole, such as matrices that an optimizer updates as a unit, the parts are as even as
// these ranges allow.
//
//     3 ranks; the ranges 0..95 and 96..159, of which 16..79 and 96..127 stay whole:
//         rank 0:   0..15    96..127
//         rank 1:  16..79   nothing
//         rank 2:  80..95   128..159
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/core/range.hpp>

namespace convoy::schedule {

/// Ranges of floats are cut at multiples of this many elements, counted from the first element of the range.
/// Ranges that stay whole begin at such multiples.
inline constexpr std::int64_t shard_grain = 16;

/// The last position in [begin, end] where `range` may be cut, given that `begin` is such a position. Returns
/// `begin` if a range of `whole` extends from there beyond `end`. Positions count from the first element of
/// `range`.
inline std::int64_t last_cut(const Range& range, std::span<const Range> whole, std::int64_t begin,
                             std::int64_t end) {
  if (end >= range.size()) return range.size();
  end = std::max(begin, end / shard_grain * shard_grain);
  const std::int64_t at = range.begin + end;
  const auto next =
      std::partition_point(whole.begin(), whole.end(), [&](const Range& w) { return w.end <= at; });
  return next != whole.end() && next->begin < at ? next->begin - range.begin : end;
}

/// The end of the first range of `whole` that begins at or after `begin`; the size of `range` if there is
/// none. Positions count from the first element of `range`.
inline std::int64_t whole_end(const Range& range, std::span<const Range> whole, std::int64_t begin) {
  const auto next = std::partition_point(whole.begin(), whole.end(),
                                         [&](const Range& w) { return w.begin < range.begin + begin; });
  return next != whole.end() ? next->end - range.begin : range.size();
}

/// Elements of each rank's part of a range if the parts are equal, as GPU collectives require. The last rank
/// also has the remainder.
constexpr std::int64_t equal_part(std::int64_t count, int ranks) {
  return count / (shard_grain * ranks) * shard_grain;
}

/// Cuts ranges of floats among ranks, one range after the other.
class Shards {
 public:
  /// `whole` is in ascending order and disjoint, and must outlive this object.
  Shards(int ranks, std::span<const Range> whole) : whole_(whole), loads_(static_cast<std::size_t>(ranks)) {}

  /// Cuts the next range; no range of `whole` may extend beyond it. Part r is [at[r], at[r + 1]), counted
  /// from the first element of the range, and may be empty. Without `whole` the parts of a range are equal.
  /// Otherwise a rank's parts of all ranges so far exceed the mean over ranks by at most the longest of
  /// `whole`, rounded up to the grain. The cuts depend only on the arguments so far.
  std::vector<std::int64_t> cut(const Range& range) {
    std::vector<std::int64_t> at(loads_.size() + 1, range.size());
    if (whole_.empty()) {
      for (std::size_t r = 0; r < loads_.size(); ++r)
        at[r] = share(range.size(), static_cast<std::int64_t>(r), std::ssize(loads_), shard_grain).begin;
      return at;
    }
    // Binary search for the smallest limit of a rank's load at which the ranks take all of the range.
    std::int64_t least = 0, enough = *std::max_element(loads_.begin(), loads_.end()) + range.size();
    while (least < enough) {
      const std::int64_t tried = least + (enough - least) / 2;
      if (fill(range, tried, at))
        enough = tried;
      else
        least = tried + 1;
    }
    fill(range, least, at);
    for (std::size_t r = 0; r < loads_.size(); ++r) loads_[r] += at[r + 1] - at[r];
    return at;
  }

 private:
  // Gives each rank in turn as much as possible up to a total load of `most`; false if some is left.
  bool fill(const Range& range, std::int64_t most, std::vector<std::int64_t>& at) const {
    at[0] = 0;
    for (std::size_t r = 0; r < loads_.size(); ++r)
      at[r + 1] = last_cut(range, whole_, at[r], at[r] + std::max<std::int64_t>(0, most - loads_[r]));
    return at.back() == range.size();
  }

  std::span<const Range> whole_;
  std::vector<std::int64_t> loads_;
};

}  // namespace convoy::schedule
