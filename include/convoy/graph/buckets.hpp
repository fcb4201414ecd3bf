// Buckets: the contiguous ranges of the gradient arena that are exchanged together, in the order in which
// backward finishes them. The first is small, so that the exchange starts early (Li et al., "PyTorch
// Distributed", VLDB 2020); the others are about 25 MiB, or a quarter of a model smaller than 100 MiB, so
// that its exchange overlaps too.
#pragma once

#include <convoy/graph/layout.hpp>

namespace convoy::graph {

/// Sizes in bytes of f32 gradients. A model may declare its own: `static constexpr BucketOptions buckets =
/// {...};`.
struct BucketOptions {
  std::int64_t first = 1 << 20;
  std::int64_t others = 25 << 20;
};

/// Writes at most `exchanged_count` buckets that cover [0, exchanged) without gaps, cut between tensors;
/// returns their number.
constexpr int make_buckets(const Slot* slots, const int* order, int exchanged_count, std::int64_t exchanged,
                           const BucketOptions& options, Range* buckets) {
  const auto element = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t quarter = exchanged / 4;
  std::int64_t limit = options.others / element;
  if (limit > quarter) limit = quarter;
  if (limit < options.first / element) limit = options.first / element;
  int count = 0;
  std::int64_t begin = 0;
  for (int i = 0; i < exchanged_count; ++i) {
    const std::int64_t end = i + 1 < exchanged_count ? slots[order[i + 1]].live.begin : exchanged;
    if (end - begin < (count == 0 ? options.first / element : limit) && i + 1 < exchanged_count) continue;
    buckets[count++] = {begin, end};
    begin = end;
  }
  return count;
}

}  // namespace convoy::graph
