// Range: a half-open interval of elements of an arena.
#pragma once

#include <algorithm>
#include <cstdint>

namespace convoy {

/// [begin, end) in elements.
struct Range {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// Share `i` of [0, count) divided among `shares`, cut at multiples of `grain`. Shares may be empty.
constexpr Range share(std::int64_t count, std::int64_t i, std::int64_t shares, std::int64_t grain = 1) {
  const std::int64_t grains = (count + grain - 1) / grain;
  return {std::min(count, grains * i / shares * grain), std::min(count, grains * (i + 1) / shares * grain)};
}

}  // namespace convoy
