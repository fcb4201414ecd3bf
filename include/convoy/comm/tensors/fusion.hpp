// Fusion: which tensors are exchanged together. Many small messages pay many latencies, so tensors are
// grouped in buckets (Sergeev and Del Balso, "Horovod", 2018; Li et al., "PyTorch Distributed", VLDB 2020).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <convoy/comm/operation.hpp>
#include <convoy/comm/tensors/named_span.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>

namespace convoy::comm {

/// How tensors are fused and combined; the same on all ranks.
struct FusionOptions {
  Op op = Op::mean;  ///< sum or mean
  /// Bytes of the first bucket, which is small, so that the exchange starts early.
  std::size_t first_bytes = std::size_t{1} << 20;
  /// Bytes of each later bucket, or a quarter of all tensors if that is less, so that the exchange of few
  /// tensors overlaps too. 0: one bucket for each tensor.
  std::size_t bucket_bytes = std::size_t{25} << 20;
  /// Whether tensors that are unmarked when the step ends count as unused rather than as an error. Costs one
  /// small reduction a step, which finds out whether any rank has used them.
  bool find_unused = false;

  static constexpr void fields(auto& self, auto&& field) {
    field("op", self.op);
    field("first_bytes", self.first_bytes);
    field("bucket_bytes", self.bucket_bytes);
    field("find_unused", self.find_unused);
  }
};

/// Tensors of one element type, in the order in which they were registered.
struct FusedBucket {
  DType type = DType::f32;
  std::int64_t count = 0;    ///< elements of all tensors
  std::vector<int> tensors;  ///< indices of the tensors
  friend bool operator==(const FusedBucket&, const FusedBucket&) = default;
};

/// The buckets in the order in which they are exchanged, which is the order of their last tensors. A bucket
/// ends where its size is nearest to the wanted size. The result depends on types, counts and options only,
/// so that all ranks get the same buckets.
std::vector<FusedBucket> fuse(std::span<const NamedSpan> tensors, const FusionOptions& options);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::vector<FusedBucket> fuse(std::span<const NamedSpan> tensors,
                                              const FusionOptions& options) {
  std::size_t all = 0;
  for (const NamedSpan& t : tensors) all += t.bytes();
  const std::size_t first = std::min(options.first_bytes, options.bucket_bytes);
  const std::size_t others = std::min(options.bucket_bytes, std::max(first, all / 4));

  std::vector<FusedBucket> closed, open;  // at most one of each type is open
  const auto close = [&](std::size_t which) {
    closed.push_back(std::move(open[which]));
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedSpan& t = tensors[i];
    const auto which = [&] {
      const auto at = std::find_if(open.begin(), open.end(), [&](auto& b) { return b.type == t.type(); });
      return static_cast<std::size_t>(at - open.begin());
    };
    const auto wanted = [&] { return closed.empty() ? first : others; };
    if (const std::size_t at = which(); at < open.size()) {
      const std::size_t size = static_cast<std::size_t>(open[at].count) * size_of(t.type());
      if (size > 0 && size + t.bytes() > wanted() && size + t.bytes() - wanted() >= wanted() - size)
        close(at);
    }
    if (which() == open.size()) open.push_back({t.type(), 0, {}});
    const std::size_t at = which();
    open[at].count += t.count;
    open[at].tensors.push_back(static_cast<int>(i));
    if (static_cast<std::size_t>(open[at].count) * size_of(t.type()) >= wanted()) close(at);
  }
  while (!open.empty()) close(0);
  // A bucket may have been closed long after its last tensor, by one of its type that was too large for it.
  std::sort(closed.begin(), closed.end(),
            [](const FusedBucket& a, const FusedBucket& b) { return a.tensors.back() < b.tensors.back(); });
  return closed;
}
#endif

}  // namespace convoy::comm
