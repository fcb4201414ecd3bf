// Steps: what all ranks do in one exchange, by the schedules, with each send matched to its receive.
//
// If all units are identical, and the ranks of every unit do the same as those of the first unit, with peers
// at the same distance, then the times of all units are the same: a message that a rank of the first unit
// sends d units ahead arrives when the message from d units behind arrives in the first unit. One unit then
// stands for all. The condition is checked step by step for all ranks, not assumed. The chunks that a message
// carries differ between units, so that this holds for chunks of equal size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/view.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy::sim {

enum class Act : unsigned char {
  send,
  receive,
  receive_reduce,
  load,     ///< from a peer's memory
  store,    ///< to it
  barrier,  ///< of the ranks that share memory
};

/// One step of a rank. Ranks are numbered within the places (places.hpp).
struct Instruction {
  Act act{};
  int peer = 0;
  int apart = 0;  ///< the peer's distance in units
  int chunk = 0, count = 1;
  int slot = 0;  ///< of a send, the peer's receive that it matches; of a receive, its own number
};

/// The steps of a rank of the whole cluster, with peers numbered in the whole cluster.
using Script = std::function<void(int rank, const schedule::Sink<Instruction>& sink)>;

class Steps {
 public:
  /// The steps of `units` units of `ranks` ranks each. Throws Error for a send or receive without a match.
  Steps(const Script& script, int ranks, int units);

  /// Whether all units do the same as the first; true if there is only one.
  bool alike() const { return alike_; }

  const Instruction* begin(int rank) const { return all_.data() + first_[static_cast<std::size_t>(rank)]; }
  int count(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return static_cast<int>(first_[r + 1] - first_[r]);
  }
  /// The number of receives of the ranks before this one.
  std::int64_t slots_before(int rank) const { return slots_[static_cast<std::size_t>(rank)]; }
  /// The number of receives of all ranks.
  std::int64_t slots() const { return slots_.back(); }

 private:
  void match(int ranks, int units);

  std::vector<Instruction> all_;
  std::vector<std::size_t> first_;
  std::vector<std::int64_t> slots_;
  bool alike_ = true;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Steps::Steps(const Script& script, int ranks, int units) {
  const auto local = [&](Instruction step, int rank) {
    step.apart = (step.peer / ranks - rank / ranks + units) % units;
    step.peer %= ranks;
    return step;
  };
  first_.push_back(0);
  slots_.push_back(0);
  for (int rank = 0; rank < ranks; ++rank) {
    int receives = 0;
    script(rank, [&](const Instruction& step) {
      all_.push_back(local(step, rank));
      if (step.act == Act::receive || step.act == Act::receive_reduce) all_.back().slot = receives++;
    });
    first_.push_back(all_.size());
    slots_.push_back(slots_.back() + receives);
  }
  for (int rank = ranks; rank < ranks * units && alike_; ++rank) {
    const Instruction *same = begin(rank % ranks), *end = same + count(rank % ranks);
    script(rank, [&](const Instruction& given) {
      if (!alike_) return;
      const Instruction step = local(given, rank);
      alike_ = same != end && step.act == same->act && step.peer == same->peer && step.apart == same->apart &&
               step.count == same->count;
      ++same;
    });
    alike_ = alike_ && same == end;
  }
  if (alike_) match(ranks, units);
}

CONVOY_FUNCTION void Steps::match(int ranks, int units) {
  // The receives or the sends of a rank, sorted by peer; those of one peer stay in order.
  const auto by_peer = [&](int rank, auto&& wanted) {
    std::vector<int> found;
    for (int i = 0; i < count(rank); ++i)
      if (wanted(begin(rank)[i].act)) found.push_back(i);
    const auto key = [&](int i) { return std::pair(begin(rank)[i].peer, begin(rank)[i].apart); };
    const auto less = [&](int a, int b) { return key(a) < key(b); };
    if (!std::is_sorted(found.begin(), found.end(), less)) std::stable_sort(found.begin(), found.end(), less);
    return found;
  };
  std::vector<std::vector<int>> receives;
  for (int rank = 0; rank < ranks; ++rank)
    receives.push_back(
        by_peer(rank, [](Act act) { return act == Act::receive || act == Act::receive_reduce; }));
  std::size_t met = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<int> sends = by_peer(rank, [](Act act) { return act == Act::send; });
    for (std::size_t i = 0; i < sends.size();) {
      const Instruction first = begin(rank)[sends[i]];
      const Instruction* theirs = begin(first.peer);
      const std::vector<int>& to = receives[static_cast<std::size_t>(first.peer)];
      const std::pair from(rank, (units - first.apart) % units);
      auto at =
          std::lower_bound(to.begin(), to.end(), from, [&](int receive, const std::pair<int, int>& key) {
            return std::pair(theirs[receive].peer, theirs[receive].apart) < key;
          });
      for (; i < sends.size(); ++i, ++at, ++met) {
        Instruction& send = all_[first_[static_cast<std::size_t>(rank)] + static_cast<std::size_t>(sends[i])];
        if (send.peer != first.peer || send.apart != first.apart) break;
        if (at == to.end() || std::pair(theirs[*at].peer, theirs[*at].apart) != from)
          fail("schedule: rank ", rank, " sends rank ", first.peer, " more than that rank receives");
        send.slot = theirs[*at].slot;
      }
    }
  }
  if (met != static_cast<std::size_t>(slots())) fail("schedule: ", slots(), " receives meet ", met, " sends");
}
#endif

}  // namespace convoy::sim
