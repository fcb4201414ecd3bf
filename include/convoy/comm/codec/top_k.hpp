// TopK: the elements of largest magnitude only, with their indices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace convoy::comm::codec {

/// A fraction of a range's elements as pairs (Aji and Heafield 2017); the others wait in the error. Elements
/// that are NaN count as the largest.
struct TopK {
  static constexpr std::string_view name = "topk";
  double fraction = 0.01;

  struct Pair {
    std::uint32_t index = 0;
    float value = 0;
  };
  /// How many of `count` elements are kept: at least one.
  std::int64_t kept(std::int64_t count) const {
    const auto k = static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(count)));
    return std::clamp<std::int64_t>(k, count > 0 ? 1 : 0, count);
  }
  /// Writes kept(count) pairs in ascending order of index; `order` is room for `count` numbers.
  void encode(Pair* to, const float* values, float* error, std::int64_t count,
              std::vector<std::uint32_t>& order) const {
    const std::int64_t k = kept(count);
    order.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      error[i] += values[i];
      order[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(i);
    }
    const auto magnitude = [&](std::uint32_t i) {
      const float v = std::fabs(error[i]);
      return v == v ? v : HUGE_VALF;
    };
    std::nth_element(order.begin(), order.begin() + k, order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return magnitude(a) > magnitude(b) || (magnitude(a) == magnitude(b) && a < b);
    });
    std::sort(order.begin(), order.begin() + k);
    for (std::int64_t j = 0; j < k; ++j) {
      const std::uint32_t i = order[static_cast<std::size_t>(j)];
      to[j] = {i, error[i]};
      error[i] = 0;
    }
  }
};

}  // namespace convoy::comm::codec
