// PhaseTimes: how long the phases of steps take on the stream that does their work.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy::train {

/// The phases of a step: in `exchange` a rank waits for sums of gradients, or adds them up itself; in `norm`
/// a rule looks at sums that have arrived, before it decides.
enum class Phase : unsigned char { other, forward, backward, exchange, norm, update };

/// Seconds of a rank in one step.
struct PhaseSeconds {
  double backward = 0;  ///< of the last micro-step, which overlaps with the exchange
  double update = 0;    ///< with the norm
  double exchange = 0;
};

/// Measures steps in laps: each ends a phase, and the next phase begins. A lap is over when the space has
/// done the work enqueued so far, so that a space whose work runs late is timed only with a timeline: there
/// each lap costs the stream a timestamp.
template <memory::Space S>
class PhaseTimes {
 public:
  /// Records what is computed in `timeline`, unless it is null.
  PhaseTimes(S& space, Timeline* timeline) : space_(space), timeline_(timeline) {}

  /// Ends a phase.
  void lap(Phase phase) {
    if constexpr (S::addressable)
      end(phase, space_.timestamp());
    else if (timeline_ != nullptr)
      laps_.push_back({phase, space_.timestamp()});
  }
  void end_step() {
    if constexpr (S::addressable)
      done_.push_back(std::exchange(now_, {}));
    else if (timeline_ != nullptr)
      laps_.back().ends_step = true;
  }

  /// The seconds of the oldest step that ended and was not taken. Waits until its work is done. None if
  /// nothing is timed.
  std::optional<PhaseSeconds> take() {
    if constexpr (S::addressable) {
      const PhaseSeconds seconds = done_.front();
      done_.erase(done_.begin());
      return seconds;
    } else {
      if (timeline_ == nullptr) return std::nullopt;
      for (bool more = true; more; laps_.pop_front()) {
        more = !laps_.front().ends_step;
        end(laps_.front().phase, space_.time_of(std::move(laps_.front().at)));
      }
      return std::exchange(now_, {});
    }
  }

  /// Forgets all steps.
  void drop() {
    laps_.clear();
    done_.clear();
    now_ = {};
  }

 private:
  struct Lap {
    Phase phase;
    typename S::Timestamp at;
    bool ends_step = false;
  };

  void end(Phase phase, Clock::time_point at) {
    const auto from = std::exchange(last_, at);
    const double seconds = Seconds(at - from).count();
    switch (phase) {
      case Phase::other:
        return;
      case Phase::forward:
        return record("forward", Track::compute, from, at);
      case Phase::backward:
        now_.backward = seconds;
        return record("backward", Track::compute, from, at);
      case Phase::exchange:
        now_.exchange += seconds;
        return;
      case Phase::norm:
        now_.update += seconds;
        return record("norm", Track::optimizer, from, at);
      case Phase::update:
        now_.update += seconds;
        return record("update", Track::optimizer, from, at);
    }
  }
  void record(const char* name, Track track, Clock::time_point from, Clock::time_point to) {
    if (timeline_ != nullptr) timeline_->record(name, -1, track, from, to);
  }

  S& space_;
  Timeline* timeline_;
  Clock::time_point last_;
  PhaseSeconds now_;
  std::vector<PhaseSeconds> done_;  // steps, of a space whose calls are synchronous
  std::deque<Lap> laps_;            // of any other
};

}  // namespace convoy::train
