// Numbers of the host, combined over a bootstrap: for policies whose own exchange is one of gradients in a
// device's memory, which the host's numbers need not wait for.
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
/// Combines so many numbers of each rank, in the order of ranks; those of rank r lie in `all` behind those of
/// the ranks before it. `sources` has room for a pointer for each rank.
inline void fold_gathered(void* into, const std::byte* all, std::int64_t count, const Reduction& reduction,
                          std::span<const void*> sources) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(reduction.type);
  for (std::size_t r = 0; r < sources.size(); ++r) sources[r] = all + r * bytes;
  const int ranks = static_cast<int>(sources.size());
  reduction.fold(&into, 1, sources.data(), ranks, count,
                 reduction.op == Op::mean && reduction.divides ? 1.0 / ranks : 1, false);
}
}  // namespace detail

/// Every rank ends with the numbers of all, combined by rank 0 in the order of ranks, so that nobody else
/// need hear of each rank's. A bootstrap carries so many bytes at a time; the numbers of all ranks are held
/// meanwhile. The ranks of all groups call it together, with as many numbers.
inline void all_reduce_numbers(AnyBootstrap& ranks, void* values, std::int64_t count,
                               const Reduction& reduction) {
  constexpr std::size_t bytes_at_a_time = std::size_t{1} << 20;
  const auto size = static_cast<std::size_t>(ranks.size());
  if (size == 1 || count <= 0) return;
  const std::size_t element = size_of(reduction.type);
  const auto most = static_cast<std::int64_t>(std::max(bytes_at_a_time / element / size, std::size_t{1}));
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
