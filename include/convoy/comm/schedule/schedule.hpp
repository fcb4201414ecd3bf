// A schedule: a collective as data. It is a pure constexpr function from (rank, size) to steps over chunks;
// the same steps are proved (verify.hpp), priced (price.hpp) and executed (engine/engine.hpp).
//
// A buffer of M elements is cut into `blocks` blocks, of equal size unless the executor cuts it otherwise,
// and each block into `segments` chunks. Chunk block * segments + segment is the smallest unit of a message;
// a message may carry several consecutive chunks. The order in which the ranks' values are added depends on
// the block alone, so the number of segments never changes a bit of the result. Chunks may be empty: no
// message is sent for an empty chunk, and because the ranks agree on the cuts, no rank waits for one.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <convoy/core/range.hpp>

namespace convoy::schedule {

enum class Action : unsigned char {
  send,            ///< post the chunks to the peer; they must not be written until the peer has received them
  receive,         ///< wait for the peer's chunks and overwrite mine with them
  receive_reduce,  ///< wait for the peer's chunks and combine them into mine
};

struct Step {
  Action action{};
  bool completes = false;  ///< a receive_reduce after which this rank holds the contributions of all ranks
  int peer = 0;
  int chunk = 0;
  int count = 1;  ///< consecutive chunks from `chunk` on, all in one message
};

/// The result of a schedule, and the state from which it starts.
enum class Goal : unsigned char {
  all_reduce,      ///< every rank ends with every chunk combined over all ranks
  reduce_scatter,  ///< the owner of each block ends with the block combined over all ranks
  all_gather,      ///< starting where reduce_scatter ends, every rank ends with every chunk
  broadcast,       ///< every rank ends with the root's chunks
  all_to_all,      ///< rank j ends with block i * n + j of each rank i
};

namespace detail {
/// Takes any step or access. Not a lambda, because nvcc rejects lambdas in a requires-expression.
struct Ignore {
  template <class T>
  constexpr void operator()(const T&) const {}
};

// Whether a schedule says that it is proved.
template <class S>
constexpr bool proved() {
  if constexpr (requires { S::proved; })
    return S::proved;
  else
    return false;
}
}  // namespace detail

/// A schedule is a value: two that compare equal have the same steps. `steps(rank, size, emit)` calls
/// `emit(Step)` for each step of one rank in order; the k-th send from rank a to rank b matches the k-th
/// receive of b from a. `owner(block, size)` is the rank that holds a block between reduce-scatter and
/// all-gather (for a broadcast, the root). A schedule is proved (verify.hpp) when an exchange first uses it,
/// unless it has a member `static constexpr bool proved = true`, as the schedules of the library have.
template <class S>
concept Schedule = std::equality_comparable<S> && requires(const S& s, int n) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::goal } -> std::convertible_to<Goal>;
  { s.segments } -> std::convertible_to<int>;
  { s.blocks(n) } -> std::same_as<int>;
  { s.owner(n, n) } -> std::same_as<int>;
  s.steps(n, n, detail::Ignore{});
};

/// An all-reduce that names its two halves: a reduce-scatter, and an all-gather that starts from its result.
template <class S>
concept TwoHalves = requires {
  requires Schedule<S> && S::goal == Goal::all_reduce;
  requires Schedule<typename S::ReduceScatter>;
  requires S::ReduceScatter::goal == Goal::reduce_scatter;
  requires Schedule<typename S::AllGather>;
  requires S::AllGather::goal == Goal::all_gather;
};

template <Schedule S>
constexpr int chunks(const S& s, int size) {
  return s.blocks(size) * s.segments;
}

/// A schedule with the given number of segments and, if it has one, the given window.
template <Schedule S>
constexpr S segmented(S s, int segments, int window) {
  s.segments = segments;
  if constexpr (requires { s.window; }) s.window = window;
  return s;
}

/// Chunks are cut at multiples of this many elements, each of `element` bytes: whole cache lines.
constexpr std::int64_t grain_of(std::int64_t element) { return 64 / element; }

/// How a buffer of `count` elements is cut into blocks.
struct Blocks {
  std::int64_t count = 0;
  int blocks = 1;
  std::int64_t grain = 1;
  std::span<const std::int64_t> cuts =
      {};  ///< where each block begins, and where the last ends; empty: equal blocks

  constexpr Range operator[](int block) const {
    if (cuts.empty()) return share(count, block, blocks, grain);
    const auto b = static_cast<std::size_t>(block);
    return {cuts[b], cuts[b + 1]};
  }
};

/// The elements of one chunk of a buffer.
constexpr Range range_of(int chunk, const Blocks& buffer, int segments) {
  const Range block = buffer[chunk / segments];
  const Range within = share(block.size(), chunk % segments, segments, buffer.grain);
  return {block.begin + within.begin, block.begin + within.end};
}

/// The elements of `chunks` consecutive chunks.
constexpr Range range_of(int chunk, int chunks, const Blocks& buffer, int segments) {
  const Range first = range_of(chunk, buffer, segments);
  if (chunks == 1) return first;
  return {first.begin, range_of(chunk + chunks - 1, buffer, segments).end};
}

/// The same for a buffer that is cut into equal blocks.
constexpr Range range_of(int chunk, std::int64_t count, int blocks, int segments, std::int64_t grain) {
  return range_of(chunk, {count, blocks, grain}, segments);
}
constexpr Range range_of(int chunk, int chunks, std::int64_t count, int blocks, int segments,
                         std::int64_t grain) {
  return range_of(chunk, chunks, {count, blocks, grain}, segments);
}

}  // namespace convoy::schedule
