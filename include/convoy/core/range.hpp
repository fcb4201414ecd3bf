// Range: a half-open interval of elements of an arena.
#pragma once

#include <cstdint>

namespace convoy {

/// [begin, end) in elements.
struct Range {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

}  // namespace convoy
