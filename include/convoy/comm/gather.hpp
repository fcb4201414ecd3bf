// Gathering by a sum: each rank fills in its own values and zeros elsewhere. Bits are summed as integers, so
// that values of any type keep theirs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <convoy/core/call.hpp>
#include <convoy/core/dtype.hpp>

namespace convoy::comm {

/// Sums numbers over the ranks, in place.
using AddUp = Call<void(std::span<i32>)>;

/// Gives all ranks the values of which each rank has a part. Each value is present on one rank, and all its
/// bits are zero on the others.
template <class T>
void merge_disjoint(std::span<T> values, AddUp add_up) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);
  std::vector<i32> bits(values.size_bytes() / sizeof(i32));
  if (bits.empty()) return add_up(bits);
  std::memcpy(bits.data(), values.data(), values.size_bytes());
  add_up(bits);
  std::memcpy(static_cast<void*>(values.data()), bits.data(), values.size_bytes());
}

/// Every rank's `mine`, all of one length, in the order of ranks: rank r's is at r * mine.size().
template <class T>
std::vector<T> gathered(int rank, int ranks, std::span<const T> mine, AddUp add_up) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(ranks));
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(mine.size()) * rank);
  merge_disjoint(std::span<T>(all), add_up);
  return all;
}

}  // namespace convoy::comm
