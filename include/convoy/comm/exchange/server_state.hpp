// What a parameter server does when: a machine of numbers only, without messages or memory, so that all
// orders in which messages can arrive can be tried.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace convoy::comm {

/// How far workers may be apart, in steps. Sync: not at all, and the gradients of a step are added up before
/// they are applied. Otherwise each worker's gradients are applied when they come, and a worker is held back
/// while it is more than `bound` steps ahead of the slowest (stale synchronous parallel, Ho et al. 2013).
struct Consistency {
  static constexpr int unbounded = std::numeric_limits<int>::max();
  bool sync = true;
  int bound = 0;
};

namespace detail {

/// One server. Its shard is cut into parts, one for each bucket that reaches into it.
class ServerState {
 public:
  struct Action {
    enum Kind : unsigned char {
      keep,   ///< the worker's gradients begin the sum of the part
      add,    ///< they are added to it
      apply,  ///< the sum (sync) or the worker's gradients (otherwise) update the part
      reply,  ///< the worker gets the part's parameters
    };
    Kind kind{};
    int worker = 0, part = 0;
    std::int64_t step = 0, count = 0;  ///< of an apply
  };

  ServerState(int workers, int parts, Consistency consistency)
      : workers_(workers),
        consistency_(consistency),
        pushed_(static_cast<std::size_t>(workers * parts), 0),
        applied_(static_cast<std::size_t>(parts), 0),
        held_(pushed_.size(), false),
        gone_(static_cast<std::size_t>(workers), false) {}

  /// All workers are back, and begin with step 0; how often the parts have been updated is kept.
  void start_over() {
    std::fill(pushed_.begin(), pushed_.end(), 0);
    std::fill(gone_.begin(), gone_.end(), false);
  }

  /// Whether the worker's next push of a part may be taken now. With sync they are taken in the order of
  /// workers, so that a sum has the same bits each time.
  bool accepts(int worker, int part) const {
    if (!consistency_.sync) return true;
    for (int w = 0; w < worker; ++w)
      if (pushed(w, part) <= pushed(worker, part)) return false;
    return true;
  }

  /// A worker's gradients of a part have come; `act(Action)` is called for what is to be done, in order.
  template <class Act>
  void push(int worker, int part, Act&& act) {
    std::int64_t& clock = pushed_[at(worker, part)];
    std::int64_t& applied = applied_[static_cast<std::size_t>(part)];
    const std::int64_t step = clock++;
    if (consistency_.sync) {
      act(Action{worker == 0 ? Action::keep : Action::add, worker, part, step, 0});
      if (worker + 1 < workers_) return;
      act(Action{Action::apply, worker, part, step, ++applied});
      for (int w = 0; w < workers_; ++w) act(Action{Action::reply, w, part, step, 0});
      return;
    }
    act(Action{Action::keep, worker, part, step, 0});
    act(Action{Action::apply, worker, part, step, ++applied});
    held(worker, part) = true;
    release(part, act);
  }

  /// A worker makes no more steps; the others no longer wait for it.
  template <class Act>
  void goodbye(int worker, Act&& act) {
    gone_[static_cast<std::size_t>(worker)] = true;
    if (consistency_.sync) return;
    for (int p = 0; p < static_cast<int>(applied_.size()); ++p) release(p, act);
  }

  bool gone(int worker) const { return gone_[static_cast<std::size_t>(worker)]; }
  bool over() const { return std::find(gone_.begin(), gone_.end(), false) == gone_.end(); }
  std::int64_t pushed(int worker, int part) const { return pushed_[at(worker, part)]; }
  /// Whom a part waits for: the first worker that is behind, or -1.
  int awaited(int part) const {
    int slowest = -1;
    for (int w = 0; w < workers_; ++w)
      if (!gone(w) && (slowest < 0 || pushed(w, part) < pushed(slowest, part))) slowest = w;
    return slowest;
  }

 private:
  std::size_t at(int worker, int part) const {
    return static_cast<std::size_t>(part) * static_cast<std::size_t>(workers_) +
           static_cast<std::size_t>(worker);
  }
  std::vector<bool>::reference held(int worker, int part) { return held_[at(worker, part)]; }

  template <class Act>
  void release(int part, Act& act) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int w = 0; w < workers_; ++w)
      if (!gone(w)) least = std::min(least, pushed(w, part));
    for (int w = 0; w < workers_; ++w) {
      if (!held_[at(w, part)] || pushed(w, part) - least > consistency_.bound) continue;
      held(w, part) = false;
      act(Action{Action::reply, w, part, pushed(w, part) - 1, 0});
    }
  }

  int workers_;
  Consistency consistency_;
  std::vector<std::int64_t> pushed_;   // by each worker of each part
  std::vector<std::int64_t> applied_;  // to each part
  std::vector<bool> held_;             // a reply is owed
  std::vector<bool> gone_;
};

}  // namespace detail

}  // namespace convoy::comm
