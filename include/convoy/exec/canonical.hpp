// Canonical form: maps a parameter in its PyTorch shape to its slot in an arena of the plan, where the dead
// taps of a convolution are stored apart from the live ones. The element order within a slot is the plan's
// here; an Exec that permutes the elements of `live` applies its permutation on top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/graph/plan.hpp>

namespace convoy::exec {

/// Calls `visit(canonical, arena, live)` for each element of parameter `p` in canonical order: its index in
/// the canonical tensor, its index in the parameter arena, and whether it lies in the live part of the slot.
template <class Visit>
void for_each_element(const Plan& plan, int p, Visit&& visit) {
  const auto& parameter = plan.parameter_list[static_cast<std::size_t>(p)];
  const auto& slot = plan.slots[static_cast<std::size_t>(p)];
  const std::int64_t size = parameter.shape.size();
  if (slot.dead.empty()) {
    for (std::int64_t i = 0; i < size; ++i) visit(i, slot.live.begin + i, true);
    return;
  }
  const graph::Taps taps = plan.live_taps(p);
  const int height = parameter.shape[2], width = parameter.shape[3];
  std::int64_t live = slot.live.begin, dead = slot.dead.begin;
  for (std::int64_t i = 0; i < size;)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x, ++i)
        if (y >= taps.top && y < taps.bottom && x >= taps.left && x < taps.right)
          visit(i, live++, true);
        else
          visit(i, dead++, false);
}

/// Copies parameter `p` out of a parameter arena into canonical order.
template <class T>
void read_canonical(const Plan& plan, int p, std::span<const T> arena, std::span<T> values) {
  for_each_element(plan, p, [&](std::int64_t i, std::int64_t at, bool) {
    values[static_cast<std::size_t>(i)] = arena[static_cast<std::size_t>(at)];
  });
}

/// Copies parameter `p` in canonical order into a parameter arena.
template <class T>
void write_canonical(const Plan& plan, int p, std::span<const T> values, std::span<T> arena) {
  for_each_element(plan, p, [&](std::int64_t i, std::int64_t at, bool) {
    arena[static_cast<std::size_t>(at)] = values[static_cast<std::size_t>(i)];
  });
}

/// Throws ConfigError unless the plan has parameter `p` and it has `size` elements.
inline void expect_parameter(const Plan& plan, int p, std::size_t size) {
  const auto count = static_cast<int>(plan.parameter_list.size());
  if (p < 0 || p >= count) fail<ConfigError>("exec: there is no parameter ", p, "; the model has ", count);
  const auto& parameter = plan.parameter_list[static_cast<std::size_t>(p)];
  if (static_cast<std::int64_t>(size) != parameter.shape.size())
    fail<ConfigError>("exec: ", parameter.name, " of ", parameter.shape, " has ", parameter.shape.size(),
                      " elements, not ", size);
}

/// The range of each running statistic in the arena of statistics: in order of definition, each aligned like
/// a slot.
inline std::vector<Range> statistic_ranges(const Plan& plan) {
  std::vector<Range> ranges;
  std::int64_t at = 0;
  for (const auto& statistic : plan.statistic_list) {
    ranges.push_back({at, at + statistic.shape.size()});
    at = graph::align_slot(ranges.back().end);
  }
  return ranges;
}

}  // namespace convoy::exec
