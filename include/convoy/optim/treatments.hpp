// Treatments: how an optimizer treats each tensor of an arena, as runs of elements treated alike.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/optim/groups.hpp>
#include <convoy/optim/kernels.hpp>
#include <convoy/optim/optimizer.hpp>
#include <convoy/optim/runs.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>

#include <convoy/core/error.hpp>
#endif

namespace convoy::optim {

/// Alignment of live ranges in an arena, in elements.
inline constexpr std::int64_t arena_grain = alignment / sizeof(float);

/// One parameter in an arena. Alignment gaps between parameters hold zeros.
struct ArenaTensor {
  Range live;              ///< in the exchanged part
  Range dead;              ///< taps that have no gradient and only decay; empty: none
  int group = 0;           ///< index in Groups::list
  std::int64_t rows = 0;   ///< of the tensor as a matrix, for rules that update matrices; 0: not a matrix
  std::int64_t panel = 1;  ///< storage layout of its live part, see MatrixShape
};

/// The treatments of all tensors. Runs are in ascending order and have no place for state yet.
struct Treatments {
  std::vector<Treatment> list;  ///< one per set of constants; with per-tensor norms, one per tensor
  std::vector<Run> live;        ///< runs that are not frozen, each with the gap after it
  std::vector<Run> dead;
  bool any_frozen = false;
  bool any_decays_dead = false;
  bool any_matrix = false;

  bool decays(const Run& run) const {
    return list[static_cast<std::size_t>(run.constants)].weight_decay != 0;
  }
};

/// `tensors` and `groups` are as in Arena's constructor. Throws ConfigError if a group asks for weight decay
/// and the rule has none.
Treatments treatments_of(const RuleFacts& rule, std::span<const ArenaTensor> tensors,
                         std::span<const Group> groups);

#if CONVOY_DEFINITIONS

namespace detail {

CONVOY_FUNCTION Treatment treatment_of(const RuleFacts& rule, const Group& group) {
  if (group.weight_decay && *group.weight_decay != 0 && !rule.has_weight_decay)
    fail<ConfigError>("optimizer ", rule.name,
                      " has no weight decay, but a group of parameters asks for one of ",
                      *group.weight_decay);
  return {group.lr_scale, group.weight_decay.value_or(rule.weight_decay), group.frozen};
}

}  // namespace detail

CONVOY_FUNCTION Treatments treatments_of(const RuleFacts& rule, std::span<const ArenaTensor> tensors,
                                         std::span<const Group> groups) {
  Treatments made;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const ArenaTensor& tensor = tensors[t];
    if (tensor.group < 0 || static_cast<std::size_t>(tensor.group) >= groups.size())
      fail("optimizer: there is no group ", tensor.group, " of parameters");
    const Group& group = groups[static_cast<std::size_t>(tensor.group)];
    const Treatment treatment = detail::treatment_of(rule, group);
    made.any_frozen = made.any_frozen || treatment.frozen;
    const auto known =
        rule.per_tensor_norms ? made.list.end() : std::find(made.list.begin(), made.list.end(), treatment);
    const auto constants = static_cast<std::int32_t>(known - made.list.begin());
    if (known == made.list.end()) made.list.push_back(treatment);
    if (treatment.frozen) continue;
    const bool matrix = rule.takes_matrices && tensor.rows > 0 && !group.by_element && !tensor.live.empty();
    made.any_matrix = made.any_matrix || matrix;
    const std::int32_t as_matrix = matrix ? static_cast<std::int32_t>(t) : -1;
    const Range whole{tensor.live.begin, (tensor.live.end + arena_grain - 1) / arena_grain * arena_grain};
    if (!matrix && !made.live.empty() && made.live.back().range.end == whole.begin &&
        made.live.back().constants == constants && made.live.back().matrix < 0)
      made.live.back().range.end = whole.end;
    else if (!whole.empty())
      made.live.push_back({whole, constants, as_matrix});
    if (tensor.dead.empty()) continue;
    made.dead.push_back({tensor.dead, constants, as_matrix});
    // The gradient of a dead tap is exactly zero, so without decay it never moves and needs no state.
    made.any_decays_dead = made.any_decays_dead || made.decays(made.dead.back());
  }
  std::sort(made.dead.begin(), made.dead.end(),
            [](const Run& a, const Run& b) { return a.range.begin < b.range.begin; });
  return made;
}

#endif

}  // namespace convoy::optim
