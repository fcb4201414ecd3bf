// The proof of a schedule over shared memory, by epochs. Between the barriers nothing orders two ranks, so no
// rank may access a chunk of a buffer that another rank stores to. Every element must end as the combination
// of all ranks' values, each exactly once. If copies are loaded, a rank may store to its own buffer at any
// time but never to another's.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/comm/schedule/network.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/shared_schedule.hpp>
#include <convoy/comm/schedule/verify.hpp>

namespace convoy::schedule {

namespace detail {

// Each chunk of each rank's buffer is a cell.
template <SharedSchedule S>
class SharedProver {
 public:
  constexpr SharedProver(const S& schedule, int size)
      : schedule_(schedule),
        size_(size),
        chunks_(schedule.blocks(size)),
        words_((size + 31) / 32),
        before_(cells() * static_cast<std::size_t>(words_)),
        after_(cells() * static_cast<std::size_t>(words_)),
        sum_(static_cast<std::size_t>(words_)),
        writer_(cells()),
        reader_(cells()) {
    contribute();
  }

  /// Follows the accesses of one rank in order.
  constexpr Diagnosis replay(int rank) {
    Diagnosis diagnosis{};
    int step = -1, chunk = -1;
    bool storing = false;
    schedule_.accesses(rank, size_, [&](Access a) {
      ++step;
      if (!diagnosis) return;
      const auto found = [&](Fault fault, int peer) { diagnosis = {fault, rank, step, a.chunk, peer}; };
      if (a.peer < 0 || a.peer >= size_ || a.chunk < 0 || a.chunk >= chunks_)
        return found(Fault::bad_step, a.peer);
      if (a.kind == Access::load && (storing || a.chunk != chunk)) {
        storing = false;
        chunk = a.chunk;
        for (int w = 0; w < words_; ++w) sum_.data[w] = 0;
      }
      if (a.chunk != chunk) return found(Fault::mismatched_chunk, a.peer);  // stored, but not loaded
      const std::int64_t cell = cell_of(a.peer, a.chunk);
      if (a.kind == Access::load) {
        for (int w = 0; w < words_; ++w) {
          if ((sum_.data[w] & before_.data[cell * words_ + w]) != 0) found(Fault::double_count, a.peer);
          sum_.data[w] |= before_.data[cell * words_ + w];
        }
        int& seen = reader_.data[cell];
        seen = seen == 0 || seen == rank + 1 ? rank + 1 : size_ + 1;
      } else {
        storing = true;
        int& seen = writer_.data[cell];
        if (seen != 0) found(Fault::overwritten, seen - 1);
        if (copied<S>() && a.peer != rank) found(Fault::overwritten, a.peer);
        seen = rank + 1;
        for (int w = 0; w < words_; ++w) after_.data[cell * words_ + w] = sum_.data[w];
      }
    });
    return diagnosis;
  }

  /// Looks for races between the replayed ranks, and for chunks that end without some rank's value.
  constexpr Diagnosis finish() const {
    for (int r = 0; r < size_; ++r)
      for (int c = 0; c < chunks_; ++c) {
        const std::int64_t cell = cell_of(r, c);
        const int wrote = writer_.data[cell], read = reader_.data[cell];
        if (!copied<S>() && wrote != 0 && read != 0 && wrote != read)
          return {Fault::overwritten, wrote - 1, -1, c, read <= size_ ? read - 1 : r};
        if (S::goal == Goal::reduce_scatter && schedule_.owner(c, size_) != r) continue;
        for (int q = 0; q < size_; ++q)
          if ((after_.data[cell * words_ + q / 32] >> (q % 32) & 1u) == 0)
            return {Fault::incomplete, r, -1, c, -1};
      }
    return {};
  }

 private:
  constexpr std::size_t cells() const {
    return static_cast<std::size_t>(size_) * static_cast<std::size_t>(chunks_);
  }
  constexpr std::int64_t cell_of(int rank, int chunk) const { return std::int64_t{rank} * chunks_ + chunk; }

  // Marks in each cell the ranks whose values it holds at the start.
  constexpr void contribute() {
    constexpr bool reduces = S::goal == Goal::all_reduce || S::goal == Goal::reduce_scatter;
    for (int r = 0; r < size_; ++r)
      for (int c = 0; c < chunks_; ++c) {
        const std::int64_t cell = cell_of(r, c) * words_;
        for (int q = 0; q < size_; ++q)
          if (reduces ? q == r : schedule_.owner(c, size_) == r)
            before_.data[cell + q / 32] |= 1u << (q % 32);
        for (int w = 0; w < words_; ++w) after_.data[cell + w] = before_.data[cell + w];
      }
  }

  const S& schedule_;
  int size_, chunks_, words_;
  Table<std::uint32_t> before_, after_;  // the ranks whose values each cell holds at the start and at the end
  Table<std::uint32_t> sum_;             // the ranks whose values the accumulator of the replayed rank holds
  Table<int> writer_, reader_;           // of each cell: the rank plus 1; size + 1: several readers
};

}  // namespace detail

/// Proves a schedule over shared memory: its first fault, or none.
template <SharedSchedule S>
constexpr Diagnosis verify(const S& schedule, int size) {
  detail::SharedProver<S> prover(schedule, size);
  for (int r = 0; r < size; ++r)
    if (const Diagnosis diagnosis = prover.replay(r); !diagnosis) return diagnosis;
  return prover.finish();
}

}  // namespace convoy::schedule
