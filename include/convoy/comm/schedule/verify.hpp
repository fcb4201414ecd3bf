// The proof of a schedule: every element ends as the combination of all ranks' values, each exactly once,
// without deadlock, and no chunk is written while a posted send of it may still be read. Constexpr: up to 16
// ranks fit the compilers' default budgets, one evaluation per size; at run time 1,024 ranks take about a
// second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <convoy/comm/schedule/network.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/core/error.hpp>

namespace convoy::schedule {

enum class Fault : unsigned char {
  none,
  no_blocks,         ///< a buffer is cut into no blocks
  bad_step,          ///< a peer or chunk that does not exist, or a rank as its own peer
  incomplete,        ///< a chunk ends without some rank's value
  double_count,      ///< a value is added twice
  overwritten,       ///< a chunk is written while its send may be unread
  deadlock,          ///< ranks wait for each other
  mismatched_peer,   ///< a receive without a send, or a send without a receive
  mismatched_chunk,  ///< the message that arrives carries another chunk
  wrong_mark,  ///< `completes` is set on a step that does not complete the chunk, or missing on one that does
};

/// What the proof of a schedule found: its first fault and where, or true if there is none.
struct Diagnosis {
  Fault fault = Fault::none;
  int rank = -1, step = -1, chunk = -1, peer = -1;
  constexpr explicit operator bool() const { return fault == Fault::none; }
};

/// The diagnosis as a sentence.
inline std::string explain(const Diagnosis& v) {
  const auto at = [&] { return concat("rank ", v.rank, ", step ", v.step, ", chunk ", v.chunk); };
  switch (v.fault) {
    case Fault::none:
      return "the schedule is correct";
    case Fault::no_blocks:
      return "it cuts a buffer into no blocks, where at least one is needed";
    case Fault::bad_step:
      return concat(at(), " names a peer or chunk that does not exist");
    case Fault::incomplete:
      return concat("chunk ", v.chunk, " ends on rank ", v.rank, " without every rank's value");
    case Fault::double_count:
      return concat(at(), " adds a value that is already in the chunk");
    case Fault::overwritten:
      return concat(at(), " writes a chunk that rank ", v.peer, " may not have received yet");
    case Fault::deadlock:
      return concat("rank ", v.rank, " waits for rank ", v.peer, " forever at step ", v.step);
    case Fault::mismatched_peer:
      return concat("rank ", v.rank, " and rank ", v.peer,
                    " do not agree on how many messages they exchange");
    case Fault::mismatched_chunk:
      return concat(at(), " receives another chunk from rank ", v.peer);
    case Fault::wrong_mark:
      return concat(at(), " is marked wrongly as completing its chunk, or not marked");
  }
  return "?";
}

namespace detail {

// Pool of the senders' vector clocks, one for each message in flight. The first entry of a free clock is the
// index of the next free clock plus one.
class Snapshots {
 public:
  constexpr explicit Snapshots(int size) : size_(size) {}
  constexpr ~Snapshots() { delete[] clocks_; }
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  constexpr int* at(int snapshot) { return clocks_ + std::int64_t{snapshot} * size_; }
  constexpr int take() {
    if (free_ == 0) {
      if (used_ == room_) grow();
      return used_++;
    }
    const int taken = free_ - 1;
    free_ = clocks_[std::int64_t{taken} * size_];
    return taken;
  }
  constexpr void free(int snapshot) {
    clocks_[std::int64_t{snapshot} * size_] = free_;
    free_ = snapshot + 1;
  }

 private:
  constexpr void grow() {
    room_ = room_ > 0 ? 2 * room_ : 2 * size_;
    int* larger = new int[static_cast<std::size_t>(room_) * static_cast<std::size_t>(size_)]();
    for (std::int64_t i = 0; i < std::int64_t{used_} * size_; ++i) larger[i] = clocks_[i];
    delete[] clocks_;
    clocks_ = larger;
  }

  int size_, used_ = 0, room_ = 0, free_ = 0;
  int* clocks_ = nullptr;
};

class Prover {
 public:
  // `sends` messages carry `carried` chunks in all.
  constexpr Prover(int ranks, int chunks, int sends, int carried, Goal goal)
      : size(ranks),
        chunk_count(chunks),
        words((ranks + 31) / 32),
        everyone(static_cast<std::size_t>(words)),
        contributor_bits(cells() * static_cast<std::size_t>(words)),
        clock(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)),
        lock_of(cells()),
        held(static_cast<std::size_t>(carried)),
        lock(static_cast<std::size_t>(sends)),
        reduces(goal == Goal::all_reduce || goal == Goal::reduce_scatter),
        snapshots(ranks) {
    for (int r = 0; r < size; ++r) everyone.data[r / 32] |= 1u << (r % 32);
  }

  // One bit for each rank whose value is in this rank's chunk.
  constexpr std::uint32_t* contributors(int rank, int chunk) {
    return contributor_bits.data + (static_cast<std::int64_t>(rank) * chunk_count + chunk) * words;
  }
  constexpr bool full(const std::uint32_t* bits) const {
    for (int w = 0; w < words; ++w)
      if (bits[w] != everyone.data[w]) return false;
    return true;
  }
  constexpr void fill(std::uint32_t* bits) const {
    for (int w = 0; w < words; ++w) bits[w] = everyone.data[w];
  }

  constexpr bool send(int rank, int index, const Step& step, int message) {
    Lock& l = lock.data[message];
    l.chunk = step.chunk;
    l.count = step.count;
    l.receiver = step.peer;
    l.snapshot = snapshots.take();
    int* stamp = snapshots.at(l.snapshot);
    const int* now = clock.data + static_cast<std::int64_t>(rank) * size;
    for (int r = 0; r < size; ++r) stamp[r] = now[r];
    stamp[rank] = index + 1;
    for (int c = step.chunk; c < step.chunk + step.count; ++c) {
      int& list = lock_of.data[static_cast<std::int64_t>(rank) * chunk_count + c];
      held.data[holds] = {list, message};
      list = ++holds;
    }
    return true;
  }

  constexpr bool receive(int rank, int index, const Step& step, int message) {
    Lock& l = lock.data[message];
    if (step.chunk != l.chunk || step.count != l.count)
      return blame(Fault::mismatched_chunk, rank, index, step);
    // Writing is safe if this rank knows, through messages, that each receiver of the chunk is past its
    // receive.
    int* now = clock.data + static_cast<std::int64_t>(rank) * size;
    const int* stamp = snapshots.at(l.snapshot);
    for (int r = 0; r < size; ++r)
      if (stamp[r] > now[r]) now[r] = stamp[r];
    for (int c = step.chunk; c < step.chunk + step.count; ++c) {
      int& list = lock_of.data[static_cast<std::int64_t>(rank) * chunk_count + c];
      for (int h = list; h != 0; h = held.data[h - 1].next) {
        const Lock& mine = lock.data[held.data[h - 1].message];
        if (mine.received_at < 0 || now[mine.receiver] <= mine.received_at) {
          blame(Fault::overwritten, rank, index, step, c);
          diagnosis.peer = mine.receiver;
          return false;
        }
      }
      list = 0;
    }
    now[rank] = index + 1;
    l.received_at = index;
    snapshots.free(l.snapshot);
    return combine(rank, index, step);
  }

  Diagnosis diagnosis{};

 private:
  struct Lock {
    int chunk = 0, count = 0, receiver = 0, received_at = -1, snapshot = 0;
  };
  // A message that holds a chunk until it is received.
  struct Hold {
    int next = 0, message = 0;
  };

  constexpr bool combine(int rank, int index, const Step& step) {
    for (int c = step.chunk; c < step.chunk + step.count; ++c) {
      const std::uint32_t* theirs = contributors(step.peer, c);
      std::uint32_t* ours = contributors(rank, c);
      if (step.action == Action::receive) {
        for (int w = 0; w < words; ++w) ours[w] = theirs[w];
        continue;
      }
      for (int w = 0; w < words; ++w) {
        if ((ours[w] & theirs[w]) != 0) return blame(Fault::double_count, rank, index, step, c);
        ours[w] |= theirs[w];
      }
      if (reduces && full(ours) != step.completes) return blame(Fault::wrong_mark, rank, index, step, c);
    }
    return true;
  }

  constexpr std::size_t cells() const {
    return static_cast<std::size_t>(size) * static_cast<std::size_t>(chunk_count);
  }
  constexpr bool blame(Fault fault, int rank, int index, const Step& step, int chunk) {
    diagnosis = {fault, rank, index, chunk, step.peer};
    return false;
  }
  constexpr bool blame(Fault fault, int rank, int index, const Step& step) {
    return blame(fault, rank, index, step, step.chunk);
  }

  int size, chunk_count, words;
  Table<std::uint32_t> everyone;  // the bits of all ranks
  Table<std::uint32_t> contributor_bits;
  Table<int> clock;    // clock[r][q]: how many steps of q are known to rank r to be over
  Table<int> lock_of;  // per rank and chunk: its posted sends, a list through Hold::next
  Table<Hold> held;
  Table<Lock> lock;  // per message
  bool reduces;
  Snapshots snapshots;
  int holds = 0;
};

/// Whether the peer and the chunks of a step of `rank` exist.
constexpr bool exists(const Step& step, int rank, int size, int chunks) {
  return step.peer >= 0 && step.peer < size && step.peer != rank && step.chunk >= 0 && step.count >= 1 &&
         step.chunk <= chunks - step.count;
}

}  // namespace detail

/// Proves a schedule for `size` ranks whose channels hold `capacity` messages (0: any number).
template <Schedule S>
constexpr Diagnosis verify(const S& schedule, int size, int capacity = 0) {
  const int count = chunks(schedule, size);
  if (count < 1) return {.fault = Fault::no_blocks};
  int sends = 0, carried = 0;
  Diagnosis bad{};
  for (int r = 0; r < size; ++r) {
    int index = 0;
    schedule.steps(r, size, [&](Step step) {
      if (step.action == Action::send) {
        ++sends;
        carried += step.count;
      }
      if (!detail::exists(step, r, size, count)) bad = {Fault::bad_step, r, index, step.chunk, step.peer};
      ++index;
    });
  }
  if (!bad) return bad;
  detail::Prover prover(size, count, sends, carried, S::goal);
  const int blocks = schedule.blocks(size);
  Table<int> owner(static_cast<std::size_t>(blocks));
  if (S::goal != Goal::all_reduce)
    for (int b = 0; b < blocks; ++b) owner.data[b] = schedule.owner(b, size);
  for (int r = 0; r < size; ++r)
    for (int c = 0; c < count; ++c) {
      if (S::goal == Goal::all_reduce || S::goal == Goal::reduce_scatter)
        prover.contributors(r, c)[r / 32] |= 1u << (r % 32);
      else if (owner.data[c / schedule.segments] == r)
        prover.fill(prover.contributors(r, c));
    }
  const Outcome outcome = execute(schedule, size, capacity, prover);
  if (!prover.diagnosis) return prover.diagnosis;
  if (outcome.stuck)
    return {outcome.peer_done ? Fault::mismatched_peer : Fault::deadlock, outcome.rank, outcome.step, -1,
            outcome.peer};
  if (outcome.left) return {Fault::mismatched_peer, outcome.rank, -1, -1, outcome.peer};
  for (int r = 0; r < size; ++r)
    for (int c = 0; c < count; ++c) {
      const int block = c / schedule.segments;
      if (S::goal == Goal::reduce_scatter && owner.data[block] != r) continue;
      if (S::goal == Goal::all_to_all && block % size != r) continue;
      if (!prover.full(prover.contributors(r, c))) return {Fault::incomplete, r, -1, c, -1};
    }
  return {};
}

}  // namespace convoy::schedule
