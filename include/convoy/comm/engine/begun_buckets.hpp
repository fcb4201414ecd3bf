// Begun buckets: which buckets of a step were begun, each at most once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

namespace detail {

[[noreturn, gnu::cold]] void refuse_bucket(int bucket, std::size_t count);
[[noreturn, gnu::cold]] void refuse_second_begin(int bucket);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void refuse_bucket(int bucket, std::size_t count) {
  fail("there is no bucket ", bucket, "; ", count, " were opened");
}
CONVOY_FUNCTION void refuse_second_begin(int bucket) {
  fail("bucket ", bucket, " was begun twice in one step");
}
#endif

}  // namespace detail

/// The buckets of an exchange. `begin` is called once a step for each of them.
class BegunBuckets {
 public:
  /// Sets the number of buckets; none is begun.
  void resize(std::size_t count) { begun_.assign(count, false); }
  std::size_t size() const { return begun_.size(); }
  /// Returns the bucket's index. Throws Error if there is no such bucket, or if it was already begun in this
  /// step.
  std::size_t begin(int bucket) {
    if (bucket < 0 || static_cast<std::size_t>(bucket) >= begun_.size())
      detail::refuse_bucket(bucket, begun_.size());
    const auto b = static_cast<std::size_t>(bucket);
    if (begun_[b]) detail::refuse_second_begin(bucket);
    begun_[b] = true;
    return b;
  }
  bool operator[](std::size_t bucket) const { return begun_[bucket]; }
  bool none() const { return std::find(begun_.begin(), begun_.end(), true) == begun_.end(); }
  /// Starts the next step: all buckets may be begun again.
  void reset() { begun_.assign(begun_.size(), false); }

 private:
  std::vector<bool> begun_;
};

}  // namespace convoy::comm
