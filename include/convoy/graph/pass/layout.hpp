// Layout: where each parameter lies in the flat arenas. Tensors are in the order in which backward finishes
// their gradients, so that a bucket is one contiguous range and needs no packing. The parameter arena is
//     [ exchanged: live parts, in backward order | frozen | dead taps ]
// and the gradient arena has the same layout as its exchanged part.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/core/range.hpp>
#include <convoy/graph/pass/fusion.hpp>

namespace convoy::graph {

/// The place of one parameter. A convolution's weight with dead taps is split: `live` holds [out][in][live
/// taps], `dead` the rest in the same order; otherwise `dead` is empty. An Exec may permute the elements of
/// `live`, but not change its size.
struct Slot {
  Range live, dead;
  int stages = 0;  ///< the number of stages that use the parameter; its gradient is the sum of theirs
  int first = -1;  ///< the first of these stages: backward runs it last, and the gradient is final after it
  int last = -1;   ///< the last of these stages: backward runs it first, and it assigns the gradient to which
                   ///< the others add
};

/// The sizes of the arenas in elements.
struct ArenaSizes {
  std::int64_t exchanged = 0;   ///< the gradient arena, and the beginning of the parameter arena
  std::int64_t parameters = 0;  ///< the whole parameter arena
  std::int64_t statistics = 0;  ///< the arena of running statistics, in order of definition
};

constexpr std::int64_t align_slot(std::int64_t size) {
  return (size + slot_alignment - 1) / slot_alignment * slot_alignment;
}

/// Writes the live taps of each parameter: those of a convolution's weight, which no other operation uses;
/// empty (0 by 0) for all other parameters, which are live as a whole.
constexpr void find_live_taps(const Graph& g, Taps* taps) {
  for (int p = 0; p < g.count.parameters; ++p) taps[p] = {};
  for (int n = 0; n < g.count.nodes; ++n) {
    if (g.nodes[n].uses > 0)
      taps[g.parameter(n, 0)] = operation_taps[static_cast<std::size_t>(g.nodes[n].op)](g, n);
  }
}

/// The number of live elements of parameter `p`.
constexpr std::int64_t live_size(const Graph& g, const Taps* taps, int p) {
  const Shape& shape = g.parameters[p].shape;
  return taps[p].count() > 0 ? static_cast<std::int64_t>(shape[0]) * shape[1] * taps[p].count()
                             : shape.size();
}

/// Writes a slot for each parameter and, in `order`, the parameters in the order of the exchanged part.
/// Returns the sizes of the arenas and, in `exchanged_count`, the number of exchanged parameters. A parameter
/// that no operation uses is treated as frozen, whatever its group. Parameters that only one operation uses,
/// all trained or all frozen, lie one after another in the order of their use.
constexpr ArenaSizes lay_out(const Graph& g, const Stage* stages, int stage_count, const int* members,
                             const Taps* taps, Slot* slots, int* order, int& exchanged_count) {
  ArenaSizes sizes;
  exchanged_count = 0;
  for (int s = 0; s < stage_count; ++s)
    for (int m = stages[s].first; m < stages[s].first + stages[s].count; ++m)
      for (int k = 0; k < g.nodes[members[m]].uses; ++k) {
        Slot& slot = slots[g.parameter(members[m], k)];
        if (slot.first < 0) slot.first = s;
        if (slot.last != s) ++slot.stages;
        slot.last = s;
      }
  for (int s = stage_count - 1; s >= 0; --s)
    for (int m = stages[s].first + stages[s].count - 1; m >= stages[s].first; --m)
      for (int k = 0; k < g.nodes[members[m]].uses; ++k) {
        const int p = g.parameter(members[m], k);
        if (g.parameters[p].group == Group::frozen || slots[p].first != s || !slots[p].live.empty()) continue;
        slots[p].live = {sizes.exchanged, sizes.exchanged + live_size(g, taps, p)};
        sizes.exchanged = align_slot(slots[p].live.end);
        order[exchanged_count++] = p;
      }
  sizes.parameters = sizes.exchanged;
  auto append = [&](Range& range, std::int64_t size) {
    range = {sizes.parameters, sizes.parameters + size};
    sizes.parameters = align_slot(range.end);
  };
  const auto append_live = [&](int p) {
    if (slots[p].live.empty()) append(slots[p].live, live_size(g, taps, p));
  };
  for (int n = 0; n < g.count.nodes; ++n)
    for (int k = 0; k < g.nodes[n].uses; ++k) append_live(g.parameter(n, k));
  for (int p = 0; p < g.count.parameters; ++p) append_live(p);
  for (int p = 0; p < g.count.parameters; ++p)
    append(slots[p].dead, g.parameters[p].shape.size() - live_size(g, taps, p));
  for (int i = 0; i < g.count.statistics; ++i) sizes.statistics += align_slot(g.statistics[i].shape.size());
  return sizes;
}

}  // namespace convoy::graph
