// Direct: collectives over shared memory. Between an entry barrier and an exit barrier, each rank combines
// its own part of all buffers and stores the result to the buffers that need it. No message is sent, and each
// value is read once and written once: 2nM bytes of memory traffic for n buffers of M bytes.
//
// Contributions are combined in the order of ranks, so that the bits of the result depend neither on the
// number of parts nor on which rank does the work.
#pragma once

#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/shared_schedule.hpp>

namespace convoy::schedule {

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

}  // namespace convoy::schedule
