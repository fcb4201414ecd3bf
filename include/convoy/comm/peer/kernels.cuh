// The kernels that exchange over peer memory: each rank's kernel reads the memory of the others.
//
// The ranks meet block by block: block b of a rank waits for block b of every other rank, by words in the
// memory of the waiting rank. The elements of a block depend on its number alone and are the same on all
// ranks, so that nothing waits for a whole grid. The meetings of a block are counted in device memory,
// because a captured graph replays its arguments. Every wait ends: a block that waits too long, or for a rank
// that has left, tells the host, and this kernel and all that follow it return at once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/comm/peer/signal.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::comm::peer {

inline constexpr int most_ranks = 16;
inline constexpr int most_blocks = 128;
inline constexpr int threads = 512;

/// The words in a rank's device memory by which it meets the others. After a Pad come two slots for small
/// exchanges, and the relay for host numbers.
struct alignas(256) Pad {
  unsigned arrived[most_blocks][most_ranks];  ///< by block and rank: how often the rank's block has arrived
  unsigned met[most_blocks];                  ///< how often a block of this rank has met the others
  unsigned turns[most_blocks];                ///< how often a block of this rank has used a slot
  unsigned left[most_ranks];                  ///< not 0: the rank has left
  unsigned failed;                            ///< not 0: a wait of this rank has failed
};

/// Why a wait has failed.
enum class Reason : unsigned { none, late, left };

/// A kernel's report of a failed wait to the host, in host memory that the GPU writes.
struct FailedWait {
  unsigned code = 0;  ///< 0: none; otherwise the peer's rank plus 1, plus 256 times the reason
  unsigned what = 0;  ///< Team::what
  unsigned meeting = 0;
  unsigned long long bytes = 0;

  int peer() const { return static_cast<int>(code % 256) - 1; }
  Reason reason() const { return static_cast<Reason>(code / 256); }
};

/// The ranks of an exchange, as an argument of one rank's kernel.
struct Team {
  int rank = 0, size = 1;
  unsigned what = 0;  ///< names the exchange for the host
  unsigned long long bytes = 0;
  unsigned long long patience = 0;  ///< nanoseconds that a block waits for another
  FailedWait* failed_wait = nullptr;
  Pad* pads[most_ranks] = {};
};

/// Pointers to the corresponding array of every rank.
template <class T>
struct Everywhere {
  T* on[most_ranks] = {};
};

/// How an array is cut for the ranks: rank r's part is [at[r], at[r + 1]), which may be empty.
struct Cuts {
  std::int64_t at[most_ranks + 1] = {};
};

/// The meetings of one block. All threads of the block make the same calls.
class Meeting {
 public:
  __device__ explicit Meeting(const Team& team) : team_(team), shared_(device::shared_memory<unsigned>()) {
    if (threadIdx.x == 0) {
      shared_[0] = own().met[blockIdx.x];
      shared_[1] = device::load_acquire(&own().failed);
    }
    __syncthreads();
    met_ = shared_[0];
  }
  static constexpr std::size_t shared_bytes = 2 * sizeof(unsigned);

  /// Whether no wait of this rank has failed so far.
  __device__ bool goes_on() const { return shared_[1] == 0; }

  /// Returns true once all ranks' blocks of this number have arrived; their earlier writes are then visible.
  /// Returns false if one does not arrive.
  __device__ bool meet() {
    __syncthreads();
    ++met_;
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < team_.size) device::store_release(&team_.pads[peer]->arrived[blockIdx.x][team_.rank], met_);
    __syncwarp();
    if (peer < team_.size && !came(peer)) shared_[1] = 1;
    __syncthreads();
    return goes_on();
  }

  /// Called after the last meeting of a kernel.
  __device__ void end() {
    if (threadIdx.x == 0) own().met[blockIdx.x] = met_;
  }

 private:
  static constexpr unsigned rounds_a_look = 64;  // polls between two readings of the clock

  __device__ Pad& own() const { return *team_.pads[team_.rank]; }

  __device__ bool came(int peer) {
    const unsigned* arrived = &own().arrived[blockIdx.x][peer];
    unsigned long long since = 0;
    for (unsigned round = 0;; ++round) {
      // The counts may wrap around.
      if (static_cast<int>(device::load_acquire(arrived) - met_) >= 0) return true;
      if (round % rounds_a_look == rounds_a_look - 1) {
        if (device::load_acquire(&own().left[peer]) != 0)  // it may have arrived just before it left
          return static_cast<int>(device::load_acquire(arrived) - met_) >= 0 || failed(peer, Reason::left);
        const unsigned long long now = device::nanoseconds();
        if (since == 0) since = now;
        if (now - since > team_.patience) return failed(peer, Reason::late);
      }
      device::let_others_run();
    }
  }

  // Reports the first failure to the host.
  __device__ bool failed(int peer, Reason reason) {
    if (atomicExch(&own().failed, 1u) == 0) {
      team_.failed_wait->what = team_.what;
      team_.failed_wait->meeting = met_;
      team_.failed_wait->bytes = team_.bytes;
      device::store_release(&team_.failed_wait->code,
                            256 * static_cast<unsigned>(reason) + static_cast<unsigned>(peer) + 1);
    }
    return false;
  }

  const Team& team_;
  unsigned* shared_;  // how often the block has met, and whether a wait has failed
  unsigned met_ = 0;
};

namespace detail {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
__device__ Wide<T> widen(T x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return device::widen(x);
}
template <class T>
__device__ T narrow(Wide<T> x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return device::narrow<T>(x);
}

/// Those of `vectors` vectors of `width` elements that begin before element `end`; the first begins at
/// element `at`, and they are `step` elements apart.
template <int vectors, int width>
struct Piece {
  std::int64_t at, step, end;

  __device__ bool has(int k) const { return at + k * step < end; }
  template <class T, class Vector>
  __device__ void load(Vector (&to)[vectors], const T* from) const {
    static_assert(sizeof(Vector) == width * sizeof(T));
    for (int k = 0; k < vectors; ++k)
      if (has(k)) to[k] = *reinterpret_cast<const Vector*>(from + at + k * step);
  }
  template <class T, class Vector>
  __device__ void store(T* to, const Vector (&values)[vectors]) const {
    for (int k = 0; k < vectors; ++k) {
      if (!has(k)) continue;
      if constexpr (sizeof(Vector) == sizeof(uint4)) {
        const auto words = std::bit_cast<uint4>(values[k]);
        device::store_words(to + at + k * step, words.x, words.y, words.z, words.w);
      } else {
        *reinterpret_cast<Vector*>(to + at + k * step) = values[k];
      }
    }
  }
};

/// Calls `f(piece)` for the pieces that make up this thread's part of `count` elements: `together` vectors in
/// a piece if the arrays are `aligned` for them, and single elements. The vectors of a piece are loaded
/// before the first is stored, so that they wait for memory together. Which thread has an element does not
/// depend on `together`.
template <class T, int together, class F>
__device__ void for_pieces(std::int64_t count, bool aligned, F&& f) {
  constexpr int lanes = device::lanes<T>;
  const std::int64_t step = std::int64_t{gridDim.x} * threads * lanes;
  std::int64_t at = (std::int64_t{blockIdx.x} * threads + threadIdx.x) * lanes;
  const std::int64_t whole = aligned ? count / lanes * lanes : 0;  // elements in vectors
  for (; at < whole; at += together * step) f(Piece<together, lanes>{at, step, whole});
  while (at - step >= whole) at -= step;
  for (; at < count; at += step)
    for (std::int64_t i = at; i < at + lanes && i < count; ++i) f(Piece<1, 1>{i, step, count});
}

/// Copies this thread's part of an array.
template <class T>
__device__ void copy(T* to, const T* from, std::int64_t count, bool aligned) {
  for_pieces<T, 8>(count, aligned, [&]<int vectors, int width>(const Piece<vectors, width>& piece) {
    std::conditional_t<width == 1, T, uint4> values[vectors];
    piece.load(values, from);
    piece.store(to, values);
  });
}

/// The sums of this thread's part of the ranks' arrays, in the order of ranks, rounded once: `source(r)` is
/// rank r's array.
template <class T, class Source>
__device__ void add_up(T* to, Source&& source, int size, std::int64_t count, bool aligned) {
  constexpr int together =
      sizeof(T) == 2 ? 2 : 4;  // the sums of a vector in 16 bits take twice the registers
  constexpr int ahead = 2;     // ranks whose loads are in flight together
  for_pieces<T, together>(count, aligned, [&]<int vectors, int width>(const Piece<vectors, width>& piece) {
    Wide<T> sum[vectors][width] = {};
    device::Lanes<T, width> next[ahead][vectors];
    for (int first = 0; first < size; first += ahead) {
      for (int j = 0; j < ahead; ++j)
        if (first + j < size) piece.load(next[j], source(first + j));
      for (int j = 0; j < ahead; ++j) {
        if (first + j >= size) continue;
        for (int k = 0; k < vectors; ++k)
          for (int l = 0; l < width; ++l) {
            const Wide<T> x = detail::widen<T>(next[j][k].lane[l]);
            sum[k][l] = first + j == 0 ? x : sum[k][l] + x;
          }
      }
    }
    device::Lanes<T, width> result[vectors];
    for (int k = 0; k < vectors; ++k)
      for (int l = 0; l < width; ++l) result[k].lane[l] = detail::narrow<T>(sum[k][l]);
    piece.store(to, result);
  });
}

}  // namespace detail

/// One-shot all-reduce: every rank copies its numbers into a slot, meets the others and sums all slots.
/// `data` is any memory of this GPU, of at most `slot` bytes. A block uses two slots in turn, so that one
/// meeting is enough: before a block uses a slot again, it has met the others. The grid is the same in every
/// launch, so that each element of a slot belongs to one block.
template <class T>
__global__ void __launch_bounds__(threads, 1)
    all_reduce_at_once(const __grid_constant__ Team team, T* data, std::int64_t count, std::int64_t slot,
                       bool aligned) {
  Meeting meeting(team);
  if (!meeting.goes_on()) return;
  unsigned& turns = team.pads[team.rank]->turns[blockIdx.x];
  const unsigned turn = turns;
  const std::int64_t begin = static_cast<std::int64_t>(sizeof(Pad)) + turn % 2 * slot;
  const auto in_slot = [&](int rank) {
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(team.pads[rank]) + begin);
  };
  detail::copy(in_slot(team.rank), data, count, aligned);
  if (!meeting.meet()) return;
  detail::add_up(data, in_slot, team.size, count, aligned);
  if (threadIdx.x == 0) turns = turn + 1;
  meeting.end();
}

/// Reduce-scatter, all-gather, or both in sequence, in place on an array that every rank has. Each rank sums
/// its own part from the arrays of all ranks; then all ranks read each other's parts. When the kernel ends,
/// no rank reads this rank's array any more.
template <class T, bool reduces, bool gathers>
__global__ void __launch_bounds__(threads, 1)
    exchange_parts(const __grid_constant__ Team team, const __grid_constant__ Everywhere<T> data,
                   const __grid_constant__ Cuts cuts, bool aligned) {
  Meeting meeting(team);
  if (!meeting.goes_on() || !meeting.meet()) return;
  T* const mine = data.on[team.rank];
  if constexpr (reduces) {
    const std::int64_t begin = cuts.at[team.rank], size = cuts.at[team.rank + 1] - begin;
    const auto source = [&](int rank) { return data.on[rank] + begin; };
    detail::add_up(mine + begin, source, team.size, size, aligned);
    if (!meeting.meet()) return;
  }
  if constexpr (gathers) {
    // From the next rank on, so that not all read the same one first.
    for (int k = 1; k < team.size; ++k) {
      const int rank = (team.rank + k) % team.size;
      const std::int64_t begin = cuts.at[rank], size = cuts.at[rank + 1] - begin;
      detail::copy(mine + begin, data.on[rank] + begin, size, aligned);
    }
    if (!meeting.meet()) return;
  }
  meeting.end();
}

/// Every rank copies the root's array into its own.
template <class T>
__global__ void __launch_bounds__(threads, 1)
    broadcast_from(const __grid_constant__ Team team, const __grid_constant__ Everywhere<T> data,
                   std::int64_t count, int root, bool aligned) {
  Meeting meeting(team);
  if (!meeting.goes_on() || !meeting.meet()) return;
  if (team.rank != root) detail::copy(data.on[team.rank], data.on[root], count, aligned);
  if (!meeting.meet()) return;
  meeting.end();
}

}  // namespace convoy::comm::peer
