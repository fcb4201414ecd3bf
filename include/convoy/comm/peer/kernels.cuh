// The kernels that exchange over peer memory: each rank's kernel reads the memory of the others.
//
// The ranks meet block by block: block b of a rank waits for block b of every other rank, by words in the
// memory of the waiting rank. The elements of a block depend on its number alone and are the same on all
// ranks, so that nothing waits for a whole grid. The meetings of a block are counted in device memory,
// because a captured graph replays its arguments. Every wait ends: a block that waits too long, or for a rank
// that has left, tells the host, and this kernel and all that follow it return at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/comm/peer/signal.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::comm::peer {

inline constexpr int most_ranks = 16;
inline constexpr int most_blocks = 32;
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

/// Calls `f(at)` for each of this thread's vectors out of `count` elements; `at` is the vector's first
/// element.
template <class T, class F>
__device__ void for_vectors(std::int64_t count, F&& f) {
  const std::int64_t step = std::int64_t{gridDim.x} * threads * device::lanes<T>;
  for (std::int64_t at = (std::int64_t{blockIdx.x} * threads + threadIdx.x) * device::lanes<T>; at < count;
       at += step)
    f(at);
}

/// Copies the vector at `at`, or as many of its elements as there are.
template <class T>
__device__ void copy_vector(T* to, const T* from, std::int64_t at, std::int64_t count, bool aligned) {
  constexpr int lanes = device::lanes<T>;
  if (aligned && at + lanes <= count)
    device::store_lanes(to + at, device::load_lanes(from + at));
  else
    for (std::int64_t i = at; i < at + lanes && i < count; ++i) to[i] = from[i];
}

/// The sums of the vector at `at`, in the order of ranks, rounded once: `source(r)` is rank r's array.
template <class T, class Source>
__device__ void sum_vector(T* to, Source&& source, int size, std::int64_t at, std::int64_t count,
                           bool aligned) {
  constexpr int lanes = device::lanes<T>;
  constexpr int ahead = 4;  // ranks whose loads are in flight together
  if (aligned && at + lanes <= count) {
    Wide<T> sum[lanes] = {};
    for (int first = 0; first < size; first += ahead) {
      device::Lanes<T> next[ahead];
      for (int k = 0; k < ahead; ++k)
        if (first + k < size) next[k] = device::load_lanes(source(first + k) + at);
      for (int k = 0; k < ahead; ++k) {
        if (first + k >= size) continue;
        for (int l = 0; l < lanes; ++l) {
          const Wide<T> x = detail::widen<T>(next[k].lane[l]);
          sum[l] = first + k == 0 ? x : sum[l] + x;
        }
      }
    }
    device::Lanes<T> result;
    for (int l = 0; l < lanes; ++l) result.lane[l] = detail::narrow<T>(sum[l]);
    device::store_lanes(to + at, result);
    return;
  }
  for (std::int64_t i = at; i < at + lanes && i < count; ++i) {
    Wide<T> sum = detail::widen<T>(source(0)[i]);
    for (int r = 1; r < size; ++r) sum += detail::widen<T>(source(r)[i]);
    to[i] = detail::narrow<T>(sum);
  }
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
  detail::for_vectors<T>(
      count, [&](std::int64_t at) { detail::copy_vector(in_slot(team.rank), data, at, count, aligned); });
  if (!meeting.meet()) return;
  detail::for_vectors<T>(
      count, [&](std::int64_t at) { detail::sum_vector(data, in_slot, team.size, at, count, aligned); });
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
    detail::for_vectors<T>(size, [&](std::int64_t at) {
      detail::sum_vector(mine + begin, source, team.size, at, size, aligned);
    });
    if (!meeting.meet()) return;
  }
  if constexpr (gathers) {
    // From the next rank on, so that not all read the same one first.
    for (int k = 1; k < team.size; ++k) {
      const int rank = (team.rank + k) % team.size;
      const std::int64_t begin = cuts.at[rank], size = cuts.at[rank + 1] - begin;
      detail::for_vectors<T>(size, [&](std::int64_t at) {
        detail::copy_vector(mine + begin, data.on[rank] + begin, at, size, aligned);
      });
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
  if (team.rank != root)
    detail::for_vectors<T>(count, [&](std::int64_t at) {
      detail::copy_vector(data.on[team.rank], data.on[root], at, count, aligned);
    });
  if (!meeting.meet()) return;
  meeting.end();
}

}  // namespace convoy::comm::peer
