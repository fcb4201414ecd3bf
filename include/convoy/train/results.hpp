// Results: the results of an Exec's unreported passes, in the order of the passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/exec/exec.hpp>

namespace convoy::train {

/// Takes results from an Exec: those of training steps late, those of other passes in between.
class Results {
 public:
  /// A pass was enqueued whose result will be taken.
  void expect() { ++waiting_; }
  /// The number of results not yet taken from the Exec.
  int waiting() const { return waiting_; }

  /// The oldest result not yet taken. Valid until the next pass or result.
  template <class Exec>
  exec::Result take(Exec& exec) {
    if (kept_.empty()) {
      --waiting_;
      return exec.result();
    }
    taken_ = std::move(kept_.front());
    kept_.pop_front();
    return {taken_->losses, {}, taken_->correct, taken_->labels, taken_->along};
  }

  /// Waits for all passes so far and stores their results, so that the Exec's next result is that of the next
  /// pass.
  template <class Exec>
  void keep(Exec& exec) {
    for (; waiting_ > 0; --waiting_) kept_.push_back(Kept(exec.result()));
  }

  /// Discards the results of the passes so far, errors included.
  template <class Exec>
  void drop(Exec& exec) {
    for (; waiting_ > 0; --waiting_) {
      try {
        exec.result();
      } catch (const Error&) {
      }
    }
    kept_.clear();
  }

 private:
  struct Kept {
    explicit Kept(const exec::Result& result)
        : losses(result.losses.begin(), result.losses.end()),
          along(result.along.begin(), result.along.end()),
          correct(result.correct),
          labels(result.labels) {}
    std::vector<double> losses;
    std::vector<std::byte> along;
    std::int64_t correct, labels;
  };

  int waiting_ = 0;  // results not yet taken from the Exec
  std::deque<Kept> kept_;
  std::optional<Kept> taken_;
};

}  // namespace convoy::train
