// The parameters of a plan as matrices, for an exchange that uses the shapes of tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/graph/plan.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>
#endif

namespace convoy::train {

/// The exchanged parameters of `plan` in the order of the arena, as matrices with one row per output channel
/// or feature. `panels[p]` is the storage layout of parameter p, as comm::Matrix::panel; a parameter with 0,
/// which is not stored as a matrix, is given as a single row.
std::vector<comm::Matrix> matrices(const Plan& plan, std::span<const std::int64_t> panels);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::vector<comm::Matrix> matrices(const Plan& plan, std::span<const std::int64_t> panels) {
  std::vector<comm::Matrix> all;
  for (std::size_t p = 0; p < plan.parameter_list.size(); ++p) {
    const Range live = plan.slots[p].live;
    if (live.empty() || live.end > plan.sizes.exchanged) continue;  // frozen
    const auto& shape = plan.parameter_list[p].shape;
    const std::int64_t panel = shape.rank > 1 ? panels[p] : 0;
    const std::int64_t rows = panel > 0 ? shape[0] : 1;
    all.push_back({live, rows, live.size() / rows, std::max<std::int64_t>(panel, 1)});
  }
  std::sort(all.begin(), all.end(),
            [](const comm::Matrix& a, const comm::Matrix& b) { return a.range.begin < b.range.begin; });
  return all;
}
#endif

}  // namespace convoy::train
