// Ownership: which elements of an arena this rank updates, and where the optimizer state of each is stored.
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

/// The state of an element consists of the floats at `state + s * stride` for each slot s.
class Ownership {
 public:
  /// A range of elements whose state is contiguous within each slot.
  struct Part {
    Range range;
    int slots = 0;
    std::int64_t state = 0;
  };

  /// Owns nothing.
  Ownership() = default;
  /// Owns `ranges`, which must not overlap, and all dead taps that decay. Throws ConfigError for a range that
  /// ends within a matrix that the rule updates as a whole.
  Ownership(const RuleFacts& rule, const Treatments& treatments, std::span<const ArenaTensor> tensors,
            std::span<const Range> ranges);

  std::span<const Part> parts() const { return parts_; }
  std::int64_t stride() const { return stride_; }
  /// The number of floats of state, gaps included.
  std::int64_t floats() const { return floats_; }
  /// The bytes of state without gaps.
  std::size_t bytes() const;

  /// `runs`, split where owned parts begin and end, with the places of their state.
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

// Splits a range where matrices begin and end, because they have another number of slots.
CONVOY_FUNCTION void Ownership::add(const RuleFacts& rule, const Treatments& treatments,
                                    std::span<const ArenaTensor> tensors, Range range) {
  for (const Run& run : treatments.live) {
    if (run.matrix < 0 || run.range.end <= range.begin || run.range.begin >= range.end) continue;
    const Range live = tensors[static_cast<std::size_t>(run.matrix)].live;
    if (range.begin > live.begin || range.end < live.end)
      fail<ConfigError>("optimizer ", rule.name, " updates whole matrices, but of the matrix of elements ",
                        live.begin, " to ", live.end, " this rank would update only ",
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

// The state of matrices is placed after all other state, so that slots which matrices do not have need no
// room for them.
CONVOY_FUNCTION void Ownership::place(const RuleFacts& rule) {
  std::int64_t size = 0;
  const auto place = [&](bool all_slots) {
    for (Part& part : parts_)
      if ((part.slots == rule.slots) == all_slots) {
        // The state is aligned like the parameters, so that a vector of parameters has a vector of state.
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
