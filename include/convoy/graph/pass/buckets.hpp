// Buckets: the contiguous ranges of the gradient arena that are exchanged together, in the order in which
// backward finishes them. The first is small, so that the exchange starts early (Li et al., "PyTorch
// Distributed", VLDB 2020); the others are about 25 MiB, or a quarter of a model smaller than 100 MiB, so
// that its exchange overlaps too. Toward the end they shrink, each to half of the remainder, because no
// computation is left to hide the last one.
#pragma once

#include <cstdint>

#include <convoy/graph/pass/layout.hpp>

namespace convoy::graph {

/// Target sizes in bytes of f32 gradients, both positive; {1, 1} gives a bucket for each tensor. A model may
/// declare its own: `static constexpr BucketOptions buckets = {...};`.
struct BucketOptions {
  std::int64_t first = 1 << 20;    ///< of the first bucket, and the least of the others
  std::int64_t others = 25 << 20;  ///< of the others, or a quarter of all gradients if that is less; toward
                                   ///< the end half of the rest

  static constexpr void fields(auto& self, auto&& field) {
    field("first", self.first);
    field("others", self.others);
  }
};

/// Writes at most `exchanged_count` buckets that cover [0, exchanged) without gaps, each cut at the tensor
/// boundary nearest to its target size; returns their number. Only the last bucket, and a bucket that ends
/// before a tensor used by several stages, may be smaller than `first`: such a tensor is final so late that
/// the gradients before it should not wait.
constexpr int make_buckets(const Slot* slots, const int* order, int exchanged_count, std::int64_t exchanged,
                           const BucketOptions& options, Range* buckets) {
  const auto element = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t least = options.first / element;
  const std::int64_t quarter = exchanged / 4;
  const std::int64_t most = options.others / element < quarter ? options.others / element : quarter;
  const auto end_of = [&](int i) {
    return i + 1 < exchanged_count ? slots[order[i + 1]].live.begin : exchanged;
  };
  int count = 0;
  std::int64_t begin = 0;
  for (int i = 0; i < exchanged_count; ++i) {
    const bool cut = i + 1 < exchanged_count && slots[order[i + 1]].stages > 1;
    const std::int64_t size = end_of(i) - begin;
    const std::int64_t half = (exchanged - begin) / 2;
    std::int64_t wanted = count == 0 ? least : half < most ? half : most;
    if (wanted < least) wanted = least;
    if (i + 1 < exchanged_count && !cut) {
      if (size < least) continue;
      const std::int64_t with_next = end_of(i + 1) - begin;
      if (size < wanted && with_next - wanted < wanted - size) continue;
    }
    buckets[count++] = {begin, begin + size};
    begin += size;
  }
  return count;
}

}  // namespace convoy::graph
