// Ownership: which elements of an arena this rank updates, and where the optimizer's state of each lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/range.hpp>
#include <convoy/optim/optimizer.hpp>
#include <convoy/optim/runs.hpp>
#include <convoy/optim/treatments.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>

#include <convoy/core/error.hpp>
#endif

namespace convoy::optim {

/// Slot s of an element that lies at `state` begins `s * stride` floats behind it.
class Ownership {
 public:
  /// Neighbours whose state lies together.
  struct Part {
    Range range;
    int slots = 0;
    std::int64_t state = 0;
  };

  /// Of nothing.
  Ownership() = default;
  /// Of `ranges`, which do not overlap, and of all dead taps that decay. Throws ConfigError for a range that
  /// ends within a matrix which the rule updates as a whole.
  Ownership(const RuleFacts& rule, const Treatments& treatments, std::span<const ArenaTensor> tensors,
            std::span<const Range> ranges);

  std::span<const Part> parts() const { return parts_; }
  std::int64_t stride() const { return stride_; }
  /// Floats of state, with gaps.
  std::int64_t floats() const { return floats_; }
  /// Bytes of state, without.
  std::size_t bytes() const;

  /// `runs`, cut where what is owned begins and ends, with the place of their state.
  std::vector<Run> placed(std::span<const Run> runs) const;

 private:
  void add(const RuleFacts& rule, const Treatments& treatments, std::span<const ArenaTensor> tensors,
           Range range);
  void add(Range part, int slots);
  void place(const RuleFacts& rule);

  std::vector<Part> parts_;
  std::int64_t stride_ = 0, floats_ = 0;
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION Ownership::Ownership(const RuleFacts& rule, const Treatments& treatments,
                                     std::span<const ArenaTensor> tensors, std::span<const Range> ranges) {
  std::vector<Range> all(ranges.begin(), ranges.end());
  for (const Run& dead : treatments.dead)
    if (treatments.decays(dead)) all.push_back(dead.range);
  std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& range : all)
    if (!range.empty()) add(rule, treatments, tensors, range);
  place(rule);
}

// Cuts what is owned where matrices begin and end, which have slots of their own number.
CONVOY_FUNCTION void Ownership::add(const RuleFacts& rule, const Treatments& treatments,
                                    std::span<const ArenaTensor> tensors, Range range) {
  for (const Run& run : treatments.live) {
    if (run.matrix < 0 || run.range.end <= range.begin || run.range.begin >= range.end) continue;
    const Range live = tensors[static_cast<std::size_t>(run.matrix)].live;
    if (range.begin > live.begin || range.end < live.end)
      fail<ConfigError>("optimizer ", rule.name, " updates whole matrices, and elements ", live.begin, " to ",
                        live.end, " are one of which this rank would update only ",
                        std::max(range.begin, live.begin), " to ", std::min(range.end, live.end));
    add({range.begin, live.begin}, rule.slots);
    range.begin = std::min(run.range.end, range.end);
    add({live.begin, range.begin}, rule.matrix_slots);
  }
  add(range, rule.slots);
}

CONVOY_FUNCTION void Ownership::add(Range part, int slots) {
  if (part.empty()) return;
  if (!parts_.empty() && parts_.back().range.end == part.begin && parts_.back().slots == slots)
    parts_.back().range.end = part.end;
  else
    parts_.push_back({part, slots});
}

// The state of matrices lies behind all others', so that the last slots, which matrices do not have, end
// before it.
CONVOY_FUNCTION void Ownership::place(const RuleFacts& rule) {
  std::int64_t size = 0;
  const auto place = [&](bool all_slots) {
    for (Part& part : parts_)
      if ((part.slots == rule.slots) == all_slots) {
        // A vector of parameters has a vector of state.
        size += ((part.range.begin - size) % arena_grain + arena_grain) % arena_grain;
        part.state = size;
        size += part.range.size();
      }
    size = (size + arena_grain - 1) / arena_grain * arena_grain;
  };
  place(true);
  const std::int64_t in_last = size;
  place(false);
  stride_ = size;
  floats_ = rule.slots > 0 ? stride_ * (rule.slots - 1) + in_last : 0;
}

CONVOY_FUNCTION std::size_t Ownership::bytes() const {
  std::int64_t floats = 0;
  for (const Part& part : parts_) floats += part.range.size() * part.slots;
  return static_cast<std::size_t>(floats) * sizeof(float);
}

CONVOY_FUNCTION std::vector<Run> Ownership::placed(std::span<const Run> runs) const {
  std::vector<Run> all;
  auto part = parts_.begin();
  for (Run run : runs) {
    const std::int64_t end = run.range.end;
    while (run.range.begin < end) {
      while (part != parts_.end() && part->range.end <= run.range.begin) ++part;
      const bool own = part != parts_.end() && part->range.begin <= run.range.begin;
      const std::int64_t next = part == parts_.end() ? end : own ? part->range.end : part->range.begin;
      run.range.end = std::min(end, next);
      run.state = own ? part->state + (run.range.begin - part->range.begin) : -1;
      all.push_back(run);
      run.range.begin = run.range.end;
    }
  }
  return all;
}

#endif

}  // namespace convoy::optim
