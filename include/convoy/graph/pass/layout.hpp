// Layout: where each parameter lies in the flat arenas. Tensors stand in the order in which backward finishes
// their gradients, so that a bucket is one contiguous range and needs no packing. The parameter arena is
//     [ exchanged: live parts, in backward order | frozen | dead taps ]
// and the gradient arena is its exchanged part alone.
#pragma once

#include <convoy/core/range.hpp>
#include <convoy/graph/pass/fusion.hpp>
#include <convoy/graph/pass/taps.hpp>

namespace convoy::graph {

/// Elements to which the start of every tensor is aligned: 64 bytes of f32.
inline constexpr std::int64_t slot_alignment = 16;

/// The place of one parameter. A convolution with dead taps is split: `live` holds [out][in][live taps],
/// `dead` the rest in the same order; otherwise `dead` is empty. An Exec may permute elements within `live`,
/// never its size.
struct Slot {
  Range live, dead;
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

/// Writes a slot for each parameter and, in `order`, the parameters as they stand in the exchanged part;
/// returns the arenas' sizes and in `exchanged_count` how many parameters are exchanged.
constexpr ArenaSizes lay_out(const Graph& g, const Step* steps, int step_count, const Taps* taps, Slot* slots,
                             int* order, int& exchanged_count) {
  ArenaSizes sizes;
  exchanged_count = 0;
  auto live_size = [&](int p) {
    const Parameter& parameter = g.parameters[p];
    const Taps& t = taps[parameter.node];
    const auto& shape = parameter.shape;
    return shape.rank == 4 ? static_cast<std::int64_t>(shape[0]) * shape[1] * t.count() : shape.size();
  };
  auto visit = [&](int node) {
    if (node < 0) return;
    for (int k = 0; k < g.nodes[node].parameters; ++k) {
      const int p = g.nodes[node].parameter + k;
      if (g.parameters[p].group == Group::frozen) continue;
      slots[p].live = {sizes.exchanged, sizes.exchanged + live_size(p)};
      sizes.exchanged = align_slot(slots[p].live.end);
      order[exchanged_count++] = p;
    }
  };
  for (int s = step_count - 1; s >= 0; --s) {
    visit(steps[s].norm);
    visit(steps[s].main);
  }
  sizes.parameters = sizes.exchanged;
  auto append = [&](Range& range, std::int64_t size) {
    range = {sizes.parameters, sizes.parameters + size};
    sizes.parameters = align_slot(range.end);
  };
  for (int p = 0; p < g.parameter_count; ++p)
    if (g.parameters[p].group == Group::frozen) append(slots[p].live, live_size(p));
  for (int p = 0; p < g.parameter_count; ++p)
    append(slots[p].dead, g.parameters[p].shape.size() - live_size(p));
  for (int i = 0; i < g.statistic_count; ++i) sizes.statistics += align_slot(g.statistics[i].shape.size());
  return sizes;
}

}  // namespace convoy::graph
