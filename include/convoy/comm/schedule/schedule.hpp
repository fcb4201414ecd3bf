// A schedule: what a collective does, as data. A pure constexpr function from (rank, size) to steps over
// chunks; the same steps are proved (verify.hpp), priced (price.hpp) and executed (engine/engine.hpp).
//
// A buffer of M elements is cut into `blocks` parts, equal ones unless whoever executes it says otherwise,
// and each block into `segments` chunks; chunk block * segments + segment is the least that a message
// carries; it may carry several consecutive ones. Which rank's value is added when depends on the block
// alone, so the number of segments never changes a bit of the result. Chunks may be empty: no message goes
// for these, and as the ranks agree on the cuts, nobody waits for one.
#pragma once

#include <algorithm>
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
  int count = 1;  ///< this and the chunks after it, all in one message
};

/// What a schedule achieves, and from where it starts.
enum class Goal : unsigned char {
  all_reduce,      ///< every rank ends with every chunk combined over all ranks
  reduce_scatter,  ///< the owner of each block does
  all_gather,      ///< starting where reduce_scatter ends, every rank ends with every chunk
  broadcast,       ///< every rank ends with the root's chunks
  all_to_all,      ///< rank j ends with block i * n + j of each rank i
};

namespace detail {
/// What takes any step or access. No lambda: within a requires-expression nvcc refuses those.
struct Ignore {
  template <class T>
  constexpr void operator()(const T&) const {}
};
}  // namespace detail

/// A schedule is a value: two that compare equal have the same steps. `steps(rank, size, emit)` calls
/// `emit(Step)` for each step of one rank in order; the k-th send from a to b meets the k-th receive of b
/// from a. `owner(block, size)` says who holds a block between reduce-scatter and all-gather (the root, for a
/// broadcast).
template <class S>
concept Schedule = std::equality_comparable<S> && requires(const S& s, int n) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::goal } -> std::convertible_to<Goal>;
  { s.segments } -> std::convertible_to<int>;
  { s.blocks(n) } -> std::same_as<int>;
  { s.owner(n, n) } -> std::same_as<int>;
  s.steps(n, n, detail::Ignore{});
};

/// An all-reduce that names its two halves: a reduce-scatter and an all-gather that starts where that ends.
template <class S>
concept TwoHalves =
    Schedule<S> &&
    S::goal == Goal::all_reduce&& Schedule<typename S::ReduceScatter>&& S::ReduceScatter::goal ==
    Goal::reduce_scatter&& Schedule<typename S::AllGather>&& S::AllGather::goal == Goal::all_gather;

template <Schedule S>
constexpr int chunks(const S& s, int size) {
  return s.blocks(size) * s.segments;
}

/// The part [i/parts, (i+1)/parts) of `count` elements, cut at multiples of `grain`. Late parts may be empty.
constexpr Range part(std::int64_t count, std::int64_t i, std::int64_t parts, std::int64_t grain) {
  const std::int64_t grains = (count + grain - 1) / grain;
  return {std::min(count, grains * i / parts * grain), std::min(count, grains * (i + 1) / parts * grain)};
}

/// How a buffer of `count` elements is cut into blocks.
struct Blocks {
  std::int64_t count = 0;
  int blocks = 1;
  std::int64_t grain = 1;
  std::span<const std::int64_t> cuts =
      {};  ///< where each begins, and where the last ends; none: all are equal

  constexpr Range operator[](int block) const {
    if (cuts.empty()) return part(count, block, blocks, grain);
    const auto b = static_cast<std::size_t>(block);
    return {cuts[b], cuts[b + 1]};
  }
};

/// The elements of one chunk of a buffer.
constexpr Range range_of(int chunk, const Blocks& buffer, int segments) {
  const Range block = buffer[chunk / segments];
  const Range within = part(block.size(), chunk % segments, segments, buffer.grain);
  return {block.begin + within.begin, block.begin + within.end};
}

/// The elements of `chunks` consecutive chunks.
constexpr Range range_of(int chunk, int chunks, const Blocks& buffer, int segments) {
  const Range first = range_of(chunk, buffer, segments);
  if (chunks == 1) return first;
  return {first.begin, range_of(chunk + chunks - 1, buffer, segments).end};
}

/// The same of a buffer that is cut into equal blocks.
constexpr Range range_of(int chunk, std::int64_t count, int blocks, int segments, std::int64_t grain) {
  return range_of(chunk, {count, blocks, grain}, segments);
}
constexpr Range range_of(int chunk, int chunks, std::int64_t count, int blocks, int segments,
                         std::int64_t grain) {
  return range_of(chunk, chunks, {count, blocks, grain}, segments);
}

}  // namespace convoy::schedule
