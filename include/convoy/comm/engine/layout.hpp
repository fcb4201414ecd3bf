// What a layout must satisfy, and what ranks compare of it at `open`.
#pragma once

#include <string_view>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <convoy/comm/schedule/shards.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>
#endif

namespace convoy::comm::detail {

/// What ranks compare at `open`: the caller's fields, the policy and the layout. A policy adds its options.
/// Throws ConfigError unless the layout's buckets are disjoint and lie in its gradients, and its `whole`
/// ranges are non-empty, disjoint, in ascending order and each within one bucket, where they begin at
/// multiples of schedule::shard_grain: GPUs exchange the parts of a bucket in vectors of 16 bytes.
Fingerprint fingerprint_of(const Fingerprint& caller, const Layout& layout, std::string_view policy);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void check(const Layout& layout) {
  const auto size = static_cast<std::int64_t>(layout.gradients.size());
  for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
    const Range b = layout.buckets[i];
    if (b.begin < 0 || b.end < b.begin || b.end > size)
      fail<ConfigError>("bucket ", i, " is [", b.begin, ", ", b.end, "), outside of ", size, " gradients");
    for (std::size_t j = 0; j < i; ++j)
      if (const Range a = layout.buckets[j]; std::max(a.begin, b.begin) < std::min(a.end, b.end))
        fail<ConfigError>("bucket ", i, " is [", b.begin, ", ", b.end, "), part of which is in bucket ", j);
  }
  std::int64_t end = 0;
  for (const Range& w : layout.whole) {
    const auto bucket = std::find_if(layout.buckets.begin(), layout.buckets.end(),
                                     [&](const Range& b) { return b.begin <= w.begin && w.end <= b.end; });
    if (w.empty() || w.begin < end || bucket == layout.buckets.end())
      fail<ConfigError>("elements ", w.begin, " to ", w.end,
                        " must stay whole, but do not lie in a single bucket after those before them");
    if (const std::int64_t at = w.begin - bucket->begin; at % schedule::shard_grain != 0)
      fail<ConfigError>("elements ", w.begin, " to ", w.end, " must stay whole, but begin at element ", at,
                        " of their bucket, which is not a multiple of ", schedule::shard_grain);
    end = w.end;
  }
}

// As their number, with a hash of where they are.
CONVOY_FUNCTION void add_ranges(Fingerprint& fingerprint, std::string_view name,
                                std::span<const Range> ranges) {
  std::uint64_t hash = hash_start;
  for (const Range& r : ranges)
    for (const std::int64_t at : {r.begin, r.end}) hash = hash_of(static_cast<std::uint64_t>(at), hash);
  fingerprint.add(name, hash, concat(ranges.size()));
}

CONVOY_FUNCTION Fingerprint fingerprint_of(const Fingerprint& caller, const Layout& layout,
                                           std::string_view policy) {
  check(layout);
  Fingerprint all = caller;
  all.add("comm", policy);
  all.add("element", name_of(dtype_of<float>));
  all.add("gradients", layout.gradients.size());
  all.add("parameters", layout.parameters.size());
  add_ranges(all, "buckets", layout.buckets);
  add_ranges(all, "kept whole", layout.whole);
  return all;
}
#endif

}  // namespace convoy::comm::detail
