// ServerState: what a parameter server does when. A state machine on numbers only, without messages or
// memory, so that tests can try every order in which messages can arrive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace convoy::comm {

/// How far apart workers may be, in steps. Sync: not at all; the gradients of a step are added up before they
/// are applied. Otherwise each worker's gradients are applied when they come, and a worker is held back while
/// it is more than `bound` steps ahead of the slowest (stale synchronous parallel, Ho et al. 2013).
struct Consistency {
  static constexpr int unbounded = std::numeric_limits<int>::max();
  bool sync = true;
  int bound = 0;

  static constexpr void fields(auto& self, auto&& field) {
    field("sync", self.sync);
    field("bound", self.bound);
  }
};

namespace detail {

/// One server. The server's shard is cut into parts, each within one bucket.
class ServerState {
 public:
  struct Action {
    enum Kind : unsigned char {
      keep,    ///< the worker's gradients begin the sum of the part
      add,     ///< the worker's gradients are added to the sum
      arrive,  ///< the sum of the part is complete, and a rule will decide over all parts
      decide,  ///< the sums of all parts are complete; `decided` is called when the rule has decided
      apply,   ///< the sum (sync) or the worker's gradients (otherwise) update the part
      reply,   ///< the worker gets the part's parameters
    };
    Kind kind{};
    int worker = 0, part = 0;
    std::int64_t step = 0, count = 0;  ///< count: the part's updates with this one, of an arrive or apply
  };

  ServerState(int workers, int parts, Consistency consistency)
      : workers_(workers),
        consistency_(consistency),
        pushed_(static_cast<std::size_t>(workers * parts), 0),
        applied_(static_cast<std::size_t>(parts), 0),
        held_(pushed_.size(), false),
        gone_(static_cast<std::size_t>(workers), false) {}

  /// Whether a rule decides over all parts of a step before any part is updated; needs sync.
  void decide_first(bool decides) { decides_ = decides; }

  /// All workers are back and begin with step 0. The counts of updates are kept.
  void start_over() {
    std::fill(pushed_.begin(), pushed_.end(), 0);
    std::fill(gone_.begin(), gone_.end(), false);
    arrived_ = 0;
  }

  /// How often each part has been updated, which an optimizer counts as its steps. The count is the same for
  /// all parts once all workers have left, since each step pushes every part. -1 if there are no parts.
  std::int64_t updates() const { return applied_.empty() ? -1 : applied_.front(); }
  void set_updates(std::int64_t count) { std::fill(applied_.begin(), applied_.end(), count); }

  /// Whether the worker's next message, about `part` or a goodbye, may be taken now. With sync, messages are
  /// taken in the order of workers, so that a sum has the same bits each time.
  bool accepts(int worker, int part) const { return before(worker, part) < 0; }
  /// The worker whose message has to come first, or -1. If there are no parts, goodbyes come in any order.
  int before(int worker, int part) const {
    if (!consistency_.sync || parts() == 0) return -1;
    for (int w = 0; w < worker; ++w)
      if (!gone(w) && pushed(w, part) <= pushed(worker, part)) return w;
    return -1;
  }

  /// With sync, all workers make the same number of steps. If this worker next pushes or, with `leaves`,
  /// leaves: a worker that contradicts, because it has already left or has pushed more; else -1.
  int contradicts(int worker, bool leaves) const {
    if (!consistency_.sync) return -1;
    for (int w = 0; w < workers_; ++w) {
      if (!leaves && gone(w)) return w;
      for (int p = 0; leaves && p < parts(); ++p)
        if (pushed(w, p) > pushed(worker, p)) return w;
    }
    return -1;
  }

  /// A worker's gradients of a part have come; calls `act(Action)` for each thing to do, in order.
  template <class Act>
  void push(int worker, int part, Act&& act) {
    std::int64_t& clock = pushed_[at(worker, part)];
    std::int64_t& applied = applied_[static_cast<std::size_t>(part)];
    const std::int64_t step = clock++;
    if (consistency_.sync) {
      act(Action{worker == 0 ? Action::keep : Action::add, worker, part, step, 0});
      if (worker + 1 < workers_) return;
      if (!decides_) return apply(part, step, act);
      act(Action{Action::arrive, worker, part, step, applied + 1});
      if (++arrived_ == parts()) act(Action{Action::decide, worker, part, step, 0});
      return;
    }
    act(Action{Action::keep, worker, part, step, 0});
    act(Action{Action::apply, worker, part, step, ++applied});
    held(worker, part) = true;
    release(part, act);
  }

  /// The rule has not decided yet: all parts arrive once more.
  template <class Act>
  void arrive_again(Act&& act) {
    for (int p = 0; p < parts(); ++p)
      act(Action{Action::arrive, workers_ - 1, p, pushed(workers_ - 1, p) - 1,
                 applied_[static_cast<std::size_t>(p)] + 1});
  }

  /// The rule has decided: all parts are updated and sent to the workers.
  template <class Act>
  void decided(Act&& act) {
    arrived_ = 0;
    for (int p = 0; p < parts(); ++p) apply(p, pushed(workers_ - 1, p) - 1, act);
  }

  /// A worker makes no more steps, and the others no longer wait for it. Without sync, all workers get the
  /// final parameters once the last worker has left.
  template <class Act>
  void goodbye(int worker, Act&& act) {
    gone_[static_cast<std::size_t>(worker)] = true;
    if (consistency_.sync) return;
    for (int p = 0; p < parts(); ++p) release(p, act);
    if (!over()) return;
    for (int w = 0; w < workers_; ++w)
      for (int p = 0; p < parts(); ++p) act(Action{Action::reply, w, p, pushed(w, p), 0});
  }

  bool gone(int worker) const { return gone_[static_cast<std::size_t>(worker)]; }
  bool over() const { return std::find(gone_.begin(), gone_.end(), false) == gone_.end(); }
  std::int64_t pushed(int worker, int part) const { return pushed_[at(worker, part)]; }
  /// The worker that the others wait for: the first of the slowest. -1: no worker is behind, as between two
  /// steps.
  int awaited() const {
    int slowest = -1;
    std::int64_t least = 0, most = 0;
    for (int w = 0; w < workers_; ++w)
      for (int p = 0; p < parts() && !gone(w); ++p) {
        most = std::max(most, pushed(w, p));
        if (slowest >= 0 && pushed(w, p) >= least) continue;
        slowest = w;
        least = pushed(w, p);
      }
    return least < most ? slowest : -1;
  }

 private:
  int parts() const { return static_cast<int>(applied_.size()); }
  std::size_t at(int worker, int part) const {
    return static_cast<std::size_t>(part) * static_cast<std::size_t>(workers_) +
           static_cast<std::size_t>(worker);
  }
  std::vector<bool>::reference held(int worker, int part) { return held_[at(worker, part)]; }

  // Sync only: updates a part and replies to all workers.
  template <class Act>
  void apply(int part, std::int64_t step, Act& act) {
    act(Action{Action::apply, workers_ - 1, part, step, ++applied_[static_cast<std::size_t>(part)]});
    for (int w = 0; w < workers_; ++w) act(Action{Action::reply, w, part, step, 0});
  }

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
  std::vector<std::int64_t> pushed_;   // by part and worker
  std::vector<std::int64_t> applied_;  // by part
  std::vector<bool> held_;             // by part and worker: a reply is owed
  std::vector<bool> gone_;
  bool decides_ = false;
  int arrived_ = 0;  // parts whose sums are complete but not decided about
};

}  // namespace detail

}  // namespace convoy::comm
