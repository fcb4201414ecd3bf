// A schedule over shared memory, as data: the loads and stores of each rank between barriers. It is proved
// (verify_shared.hpp), priced (price_shared.hpp) and executed as a schedule of messages is.
#pragma once

#include <concepts>
#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// One access of a rank to a chunk of some rank's buffer. Loads of a chunk combine it into an accumulator;
/// the stores that follow write the accumulator to the same chunk of one or more buffers.
struct Access {
  enum Kind : unsigned char { load, store };
  Kind kind{};
  int peer = 0;  ///< the rank whose buffer is accessed; may be the accessing rank
  int chunk = 0;
};

/// A schedule over shared memory: `accesses(rank, size, emit)` calls `emit(Access)` for each access of one
/// rank in order. All accesses lie between the two barriers. With `copied`, every rank stores a copy of its
/// whole buffer before the first barrier, and the others load that copy, so there is no second barrier.
template <class S>
concept SharedSchedule = std::equality_comparable<S> && requires(const S& s, int n) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::goal } -> std::convertible_to<Goal>;
  { s.blocks(n) } -> std::same_as<int>;
  { s.owner(n, n) } -> std::same_as<int>;
  s.accesses(n, n, detail::Ignore{});
};

namespace detail {

// Whether a schedule says that it loads copies.
template <SharedSchedule S>
constexpr bool copied() {
  if constexpr (requires { S::copied; })
    return S::copied;
  else
    return false;
}

}  // namespace detail

}  // namespace convoy::schedule
