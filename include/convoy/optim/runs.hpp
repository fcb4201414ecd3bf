// Runs: which elements of an arena are treated alike, as a table that lies beside the arena, so that one pass
// over a range needs no word of the host's for each of them.
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

/// Neighbours in an arena that are treated alike, alignment gaps included: these hold zeros and stay zero.
struct Run {
  Range range;
  std::int32_t constants = 0;  ///< which set of these
  std::int32_t matrix = -1;    ///< the tensor that the run is, if it is updated as a whole
  std::int64_t state = -1;     ///< where a slot of it begins; below 0: this rank keeps none, and updates none

  CONVOY_HD bool has_state() const { return state >= 0; }
};

/// A table of runs in memory of a space, ascending and apart from each other. The arena is cut into chunks,
/// so that a block of threads finds its runs at once.
struct Runs {
  static constexpr std::int64_t chunk = 2048;  ///< elements

  const Run* run = nullptr;
  const std::int32_t* first = nullptr;  ///< by chunk: the first run that ends behind the chunk's beginning
  std::int64_t first_chunk = 0;         ///< the one at `first`
};

/// Where a table is read: the part of it for a range, and what of the range it covers.
struct RunsWithin {
  Range range;             ///< empty: there is none
  int begin = 0, end = 0;  ///< of the table's runs

  CONVOY_HD std::int64_t first_chunk() const { return range.begin / Runs::chunk; }
  std::int64_t chunks() const {
    return range.empty() ? 0 : (range.end - 1) / Runs::chunk - first_chunk() + 1;
  }
};

/// The table, and the same on the host.
template <memory::Space S>
class RunTable {
 public:
  RunTable() = default;
  /// `runs` ascend and are apart from each other.
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

  /// How many parts chunks and runs cut each other into at most.
  std::size_t parts() const { return runs_.size() + first_.size(); }

 private:
  std::vector<Run> runs_;
  memory::Array<Run, S> there_;
  memory::Array<std::int32_t, S> first_;
  std::int64_t first_chunk_ = 0;
};

}  // namespace convoy::optim
