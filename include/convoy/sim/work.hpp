// Work: what one worker computes in a step, and when its gradients are ready to be exchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/range.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::sim {

/// The gradients of a tensor, with a row for each output channel or feature.
struct Matrix {
  std::int64_t rows = 0, columns = 0;

  static constexpr void fields(auto& self, auto&& field) {
    field("rows", self.rows);
    field("columns", self.columns);
  }
};

/// Gradients that are exchanged together.
struct Bucket {
  std::int64_t bytes = 0;             ///< of f32 gradients
  double ready = 0;                   ///< seconds from the beginning of backward until they are final
  double update = 0;                  ///< seconds that the optimizer takes for them
  std::vector<Matrix> matrices = {};  ///< that lie entirely in it, for codecs that use shapes
  /// Ranges of elements, counted from the bucket's first, that the optimizer updates as one (comm::Layout):
  /// none is split when updates are divided among ranks or servers.
  std::vector<Range> whole = {};

  static constexpr void fields(auto& self, auto&& field) {
    field("bytes", self.bytes);
    field("ready", self.ready);
    field("update", self.update);
    field("matrices", self.matrices);
    field("whole", self.whole);
  }
};

/// Consecutive buckets, and the ranges in them that must stay whole, in elements.
struct Arena {
  std::vector<Range> buckets, whole;

  std::int64_t size() const { return buckets.empty() ? 0 : buckets.back().end; }
};

/// One step of a worker of speed 1.
struct Work {
  double samples = 1;           ///< of one worker's batch
  double forward = 0;           ///< seconds, including everything else before backward
  double backward = 0;          ///< seconds
  std::vector<Bucket> buckets;  ///< in the order in which backward finishes them

  static constexpr void fields(auto& self, auto&& field) {
    field("samples", self.samples);
    field("forward", self.forward);
    field("backward", self.backward);
    field("buckets", self.buckets);
  }

  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const Bucket& bucket : buckets) sum += bucket.bytes;
    return sum;
  }
  double update() const {
    double sum = 0;
    for (const Bucket& bucket : buckets) sum += bucket.update;
    return sum;
  }
  /// Seconds of a step without an exchange.
  double alone() const { return forward + backward + update(); }
  Arena arena() const;
  /// Seconds from the beginning of backward until a bucket's exchange can begin. An exchange that uses the
  /// processor delays backward by the time it takes; to first order this is as if the exchange could only
  /// begin in the last part of backward. `hide` is the fraction of backward that an exchange can overlap.
  double ready(int bucket, double hide) const {
    return backward - hide * (backward - buckets[static_cast<std::size_t>(bucket)].ready);
  }

  /// Throws ConfigError, with the bucket, for invalid times and sizes.
  void check() const;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Arena Work::arena() const {
  Arena arena;
  for (const Bucket& bucket : buckets) {
    const std::int64_t begin = arena.size();
    for (const Range& whole : bucket.whole) arena.whole.push_back({begin + whole.begin, begin + whole.end});
    arena.buckets.push_back({begin, begin + bucket.bytes / 4});
  }
  return arena;
}

CONVOY_FUNCTION void Work::check() const {
  const auto is_time = [](double seconds) { return seconds >= 0 && seconds < 1e9; };
  if (!(samples > 0) || !(samples < 1e12))
    fail<ConfigError>("work: a step has ", samples, " samples; it must be above 0 and below 1e12");
  if (!is_time(forward) || !is_time(backward))
    fail<ConfigError>("work: forward takes ", forward, " and backward ", backward,
                      " seconds, expected at least 0 and below 1e9");
  double before = 0;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Bucket& bucket = buckets[b];
    if (bucket.bytes < 0 || bucket.bytes > std::int64_t{1} << 46)
      fail<ConfigError>("work: bucket ", b, " has ", bucket.bytes, " bytes, expected 0 to 2^46");
    if (!is_time(bucket.update))
      fail<ConfigError>("work: the update of bucket ", b, " takes ", bucket.update,
                        " seconds, expected at least 0 and below 1e9");
    std::int64_t elements = 0;
    for (const Matrix& m : bucket.matrices) {
      if (m.rows < 1 || m.columns < 1 || m.rows > bucket.bytes || m.columns > bucket.bytes / m.rows)
        fail<ConfigError>("work: bucket ", b, " of ", bucket.bytes, " bytes has a matrix of ", m.rows,
                          " rows and ", m.columns, " columns, which is empty or does not fit");
      elements += m.rows * m.columns;
    }
    std::int64_t end = 0;
    for (const Range& whole : bucket.whole) {
      if (whole.empty() || whole.begin < end || whole.end > bucket.bytes / 4 ||
          whole.begin % schedule::shard_grain != 0)
        fail<ConfigError>("work: bucket ", b, " of ", bucket.bytes, " bytes keeps the elements from ",
                          whole.begin, " to ", whole.end,
                          " whole; such ranges must ascend within the bucket and begin at multiples of ",
                          schedule::shard_grain);
      end = whole.end;
    }
    if (elements > bucket.bytes / 4)
      fail<ConfigError>("work: bucket ", b, " of ", bucket.bytes, " bytes has matrices of ", elements,
                        " elements, expected at most ", bucket.bytes / 4);
    if (!(bucket.ready >= before) || !(bucket.ready <= backward))
      fail<ConfigError>("work: bucket ", b, " is ready ", bucket.ready,
                        " seconds after backward's beginning; it must be from ", before,
                        ", when the bucket before is, to ", backward);
    before = bucket.ready;
  }
}
#endif

}  // namespace convoy::sim
