// Runs: a table of the runs of elements in an arena that are treated alike. The table is in the arena's
// memory space, so that one pass over a range needs no host work per run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <convoy/core/hd.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/space.hpp>

namespace convoy::optim {

/// Consecutive elements of an arena that are treated alike, alignment gaps included: gaps hold zeros and stay
/// zero.
struct Run {
  Range range;
  std::int32_t constants = 0;  ///< index of the set of constants
  std::int32_t matrix = -1;    ///< index of the tensor that the run is, if updated as a whole
  std::int64_t state = -1;     ///< offset of its state in a slot; below 0: this rank has no state for it and
                               ///< does not update it

  CONVOY_HD bool has_state() const { return state >= 0; }
};

/// A table of runs in memory of a space, in ascending order and not overlapping. The arena is split into
/// chunks, so that a thread block finds its runs without a search.
struct Runs {
  static constexpr std::int64_t chunk = 2048;  ///< elements

  const Run* run = nullptr;
  const std::int32_t* first = nullptr;  ///< per chunk: the first run that ends after the chunk's start
  std::int64_t first_chunk = 0;         ///< the chunk that first[0] is for
};

/// The runs of a table that overlap a range.
struct RunsWithin {
  Range range;             ///< from the first to the last overlap; empty: none
  int begin = 0, end = 0;  ///< indices of the table's runs

  CONVOY_HD std::int64_t first_chunk() const { return range.begin / Runs::chunk; }
  std::int64_t chunks() const {
    return range.empty() ? 0 : (range.end - 1) / Runs::chunk - first_chunk() + 1;
  }
};

/// The table in memory of the space, and a copy on the host.
template <memory::Space S>
class RunTable {
 public:
  RunTable() = default;
  /// `runs` are in ascending order and do not overlap.
  [[gnu::cold]] RunTable(S& space, std::vector<Run> runs) : runs_(std::move(runs)) {
    if (runs_.empty()) return;
    const std::int64_t begin = runs_.front().range.begin / Runs::chunk,
                       end = (runs_.back().range.end - 1) / Runs::chunk + 1;
    std::vector<std::int32_t> first;
    std::size_t run = 0;
    for (std::int64_t c = begin; c < end; ++c) {
      while (runs_[run].range.end <= c * Runs::chunk) ++run;
      first.push_back(static_cast<std::int32_t>(run));
    }
    first_chunk_ = begin;
    there_ = memory::Array<Run, S>(space, runs_.size());
    first_ = memory::Array<std::int32_t, S>(space, first.size());
    space.write(there_.data(), runs_.data(), there_.bytes());
    space.write(first_.data(), first.data(), first_.bytes());
  }

  std::span<const Run> runs() const { return runs_; }
  Runs view() const { return {there_.data(), first_.data(), first_chunk_}; }

  RunsWithin within(Range range) const {
    const auto begin = std::partition_point(runs_.begin(), runs_.end(),
                                            [&](const Run& r) { return r.range.end <= range.begin; });
    const auto end =
        std::partition_point(begin, runs_.end(), [&](const Run& r) { return r.range.begin < range.end; });
    if (begin == end) return {};
    return {{std::max(range.begin, begin->range.begin), std::min(range.end, (end - 1)->range.end)},
            static_cast<int>(begin - runs_.begin()),
            static_cast<int>(end - runs_.begin())};
  }

  /// An upper bound of the number of parts into which the chunks split the runs.
  std::size_t parts() const { return runs_.size() + first_.size(); }

 private:
  std::vector<Run> runs_;
  memory::Array<Run, S> there_;
  memory::Array<std::int32_t, S> first_;
  std::int64_t first_chunk_ = 0;
};

}  // namespace convoy::optim
