// All-reduce of host numbers over a bootstrap, for policies that exchange gradients in device memory: host
// numbers need not wait for these.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/engine/kernel.hpp>

namespace convoy::comm {

namespace detail {
/// Combines `count` numbers of each rank, in the order of ranks, in which they lie in `all`. `sources` has
/// room for one pointer per rank.
inline void fold_gathered(void* into, const std::byte* all, std::int64_t count, const Reduction& reduction,
                          std::span<const void*> sources) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(reduction.type);
  for (std::size_t r = 0; r < sources.size(); ++r) sources[r] = all + r * bytes;
  const int ranks = static_cast<int>(sources.size());
  reduction.fold(&into, 1, sources.data(), ranks, count,
                 reduction.op == Op::mean && reduction.divides ? 1.0 / ranks : 1, false);
}
}  // namespace detail

/// Every rank ends with the combined numbers of all ranks. Rank 0 combines them in the order of ranks, so
/// that only rank 0 receives every rank's numbers. They are sent in pieces of about 1 MiB over the whole
/// world at most, which are the same in all groups. The ranks of all groups call it together, with the same
/// count.
inline void all_reduce_numbers(AnyBootstrap& ranks, void* values, std::int64_t count,
                               const Reduction& reduction) {
  constexpr std::size_t bytes_at_a_time = std::size_t{1} << 20;
  const auto size = static_cast<std::size_t>(ranks.size());
  if (ranks.alone() || count <= 0) return;
  const std::size_t element = size_of(reduction.type);
  const auto world = static_cast<std::size_t>(ranks.world_size());
  const auto most = static_cast<std::int64_t>(std::max(bytes_at_a_time / element / world, std::size_t{1}));
  std::vector<std::byte> all(static_cast<std::size_t>(std::min(count, most)) * element * size);
  std::vector<const void*> sources(size);
  auto* at = static_cast<std::byte*>(values);
  for (std::int64_t done = 0; done < count; done += most) {
    const std::int64_t piece = std::min(count - done, most);
    const std::size_t bytes = static_cast<std::size_t>(piece) * element;
    ranks.gather({at, bytes}, {all.data(), bytes * size});
    if (ranks.rank() == 0) detail::fold_gathered(at, all.data(), piece, reduction, sources);
    ranks.broadcast({at, bytes});
    at += bytes;
  }
}

}  // namespace convoy::comm
