// Direct: collectives over shared memory, as data. Between an entry barrier and an exit barrier, each rank
// combines its own part of all buffers and stores the result to the buffers that need it. No message is sent,
// and each value is read once and written once: 2nM bytes of memory traffic for n buffers of M bytes.
//
// Contributions are combined in the order of ranks, so that the bits of the result depend neither on the
// number of parts nor on which rank does the work.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <convoy/comm/schedule/network.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/verify.hpp>

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

// Blocks [rank * blocks / size, (rank + 1) * blocks / size) belong to a rank.
constexpr int first_block(int rank, int size, int blocks) { return rank * blocks / size; }
constexpr int block_owner(int block, int size, int blocks) { return ((block + 1) * size - 1) / blocks; }

}  // namespace detail

/// Every rank combines its own blocks into its own buffer. `parts`: blocks in all; 0: one per rank.
struct DirectReduceScatter {
  static constexpr std::string_view name = "direct reduce-scatter";
  static constexpr Goal goal = Goal::reduce_scatter;
  static constexpr bool proved = true;
  int parts = 0;
  friend constexpr bool operator==(const DirectReduceScatter&, const DirectReduceScatter&) = default;

  constexpr int blocks(int size) const { return parts > 0 ? parts : size; }
  constexpr int owner(int block, int size) const { return detail::block_owner(block, size, blocks(size)); }
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    const int end = detail::first_block(rank + 1, size, blocks(size));
    for (int b = detail::first_block(rank, size, blocks(size)); b < end; ++b) {
      for (int p = 0; p < size; ++p) emit(Access{Access::load, p, b});
      emit(Access{Access::store, rank, b});
    }
  }
};

/// Every rank stores its own blocks to all others.
struct DirectAllGather {
  static constexpr std::string_view name = "direct all-gather";
  static constexpr Goal goal = Goal::all_gather;
  static constexpr bool proved = true;
  int parts = 0;
  friend constexpr bool operator==(const DirectAllGather&, const DirectAllGather&) = default;

  constexpr int blocks(int size) const { return parts > 0 ? parts : size; }
  constexpr int owner(int block, int size) const { return detail::block_owner(block, size, blocks(size)); }
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    const int end = detail::first_block(rank + 1, size, blocks(size));
    for (int b = detail::first_block(rank, size, blocks(size)); b < end; ++b) {
      emit(Access{Access::load, rank, b});
      for (int k = 1; k < size; ++k) emit(Access{Access::store, (rank + k) % size, b});
    }
  }
};

/// Every rank combines its own block and stores the result to all.
struct Direct {
  static constexpr std::string_view name = "direct";
  static constexpr Goal goal = Goal::all_reduce;
  static constexpr bool proved = true;
  using ReduceScatter = DirectReduceScatter;
  using AllGather = DirectAllGather;
  friend constexpr bool operator==(const Direct&, const Direct&) = default;

  constexpr int blocks(int size) const { return size; }
  constexpr int owner(int block, int) const { return block; }
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    for (int p = 0; p < size; ++p) emit(Access{Access::load, p, rank});
    for (int k = 0; k < size; ++k) emit(Access{Access::store, (rank + k) % size, rank});
  }
};

/// For a few bytes, where barriers cost more than memory traffic: every rank combines the whole buffer from
/// the copies that the others have stored.
struct Eager {
  static constexpr std::string_view name = "eager";
  static constexpr Goal goal = Goal::all_reduce;
  static constexpr bool proved = true;
  static constexpr bool copied = true;
  friend constexpr bool operator==(const Eager&, const Eager&) = default;

  constexpr int blocks(int) const { return 1; }
  constexpr int owner(int, int) const { return 0; }
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    for (int p = 0; p < size; ++p) emit(Access{Access::load, p, 0});
    emit(Access{Access::store, rank, 0});
  }
};

namespace detail {

template <SharedSchedule S>
constexpr bool copied() {
  if constexpr (requires { S::copied; })
    return S::copied;
  else
    return false;
}

}  // namespace detail

/// Proves a schedule over shared memory by epochs. Between the barriers nothing orders two ranks, so no rank
/// may access a chunk of a buffer that another rank stores to. Every element must end as the combination of
/// all ranks' values, each exactly once. If copies are loaded, a rank may store to its own buffer at any time
/// but never to another's.
template <SharedSchedule S>
constexpr Diagnosis verify(const S& schedule, int size) {
  const int count = schedule.blocks(size), words = (size + 31) / 32;
  const auto cells = static_cast<std::size_t>(size) * static_cast<std::size_t>(count);
  const auto word_count = static_cast<std::size_t>(words);
  // The ranks whose values each chunk holds before and after, and the ranks that access the chunk.
  Table<std::uint32_t> before(cells * word_count), after(cells * word_count), sum(word_count);
  Table<int> writer(cells), reader(cells);  // the rank plus 1; size + 1: several readers
  const bool reduces = S::goal == Goal::all_reduce || S::goal == Goal::reduce_scatter;
  for (int r = 0; r < size; ++r)
    for (int c = 0; c < count; ++c) {
      const std::int64_t cell = (std::int64_t{r} * count + c) * words;
      for (int q = 0; q < size; ++q)
        if (reduces ? q == r : schedule.owner(c, size) == r) before.data[cell + q / 32] |= 1u << (q % 32);
      for (int w = 0; w < words; ++w) after.data[cell + w] = before.data[cell + w];
    }
  Diagnosis diagnosis{};
  for (int r = 0; r < size && diagnosis; ++r) {
    int index = 0, chunk = -1;
    bool storing = false;
    schedule.accesses(r, size, [&](Access a) {
      const int step = index++;
      if (!diagnosis) return;
      if (a.peer < 0 || a.peer >= size || a.chunk < 0 || a.chunk >= count) {
        diagnosis = {Fault::bad_step, r, step, a.chunk, a.peer};
        return;
      }
      if (a.kind == Access::load && (storing || a.chunk != chunk)) {
        storing = false;
        chunk = a.chunk;
        for (int w = 0; w < words; ++w) sum.data[w] = 0;
      }
      if (a.chunk != chunk) {  // a store of a chunk that was not loaded
        diagnosis = {Fault::mismatched_chunk, r, step, a.chunk, a.peer};
        return;
      }
      const std::int64_t at = std::int64_t{a.peer} * count + a.chunk, cell = at * words;
      if (a.kind == Access::load) {
        for (int w = 0; w < words; ++w) {
          if ((sum.data[w] & before.data[cell + w]) != 0)
            diagnosis = {Fault::double_count, r, step, a.chunk, a.peer};
          sum.data[w] |= before.data[cell + w];
        }
        int& seen = reader.data[at];
        seen = seen == 0 || seen == r + 1 ? r + 1 : size + 1;
      } else {
        storing = true;
        int& seen = writer.data[at];
        if (seen != 0) diagnosis = {Fault::overwritten, r, step, a.chunk, seen - 1};
        if (detail::copied<S>() && a.peer != r) diagnosis = {Fault::overwritten, r, step, a.chunk, a.peer};
        seen = r + 1;
        for (int w = 0; w < words; ++w) after.data[cell + w] = sum.data[w];
      }
    });
  }
  if (!diagnosis) return diagnosis;
  for (int r = 0; r < size; ++r)
    for (int c = 0; c < count; ++c) {
      const std::int64_t at = std::int64_t{r} * count + c;
      const int wrote = writer.data[at], read = reader.data[at];
      if (!detail::copied<S>() && wrote != 0 && read != 0 && wrote != read)
        return {Fault::overwritten, wrote - 1, -1, c, read <= size ? read - 1 : r};
      if (S::goal == Goal::reduce_scatter && schedule.owner(c, size) != r) continue;
      for (int q = 0; q < size; ++q)
        if ((after.data[at * words + q / 32] >> (q % 32) & 1u) == 0) return {Fault::incomplete, r, -1, c, -1};
    }
  return {};
}

/// The price of a schedule over shared memory. `messages` counts the notifications of the barriers, `bytes`
/// all loads and stores except those of copies. `beta` is the seconds per byte of one rank's loads and
/// stores.
template <SharedSchedule S>
constexpr Price price(const S& schedule, int size, std::int64_t count, std::int64_t element,
                      CostModel model = {}) {
  Price total;
  for (int r = 0; r < size; ++r) {
    std::int64_t bytes = 0;
    schedule.accesses(r, size, [&](Access a) {
      bytes += range_of(a.chunk, count, schedule.blocks(size), 1, grain_of(element)).size() * element;
    });
    const std::int64_t messages = count > 0 ? size - 1 : 0;
    const int barriers = size == 1 ? 0 : detail::copied<S>() ? 1 : 2;
    const double seconds = barriers * model.alpha + model.beta * static_cast<double>(bytes);
    total.bytes += bytes;
    total.messages += messages;
    if (bytes > total.most_bytes) total.most_bytes = bytes;
    if (messages > total.most_messages) total.most_messages = messages;
    if (seconds > total.seconds) total.seconds = seconds;
  }
  return total;
}

}  // namespace convoy::schedule
