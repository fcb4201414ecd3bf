// LateReports: the reports of finished steps, which come as late as the Exec's results.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/memory/late.hpp>
#include <convoy/optim/guard.hpp>
#include <convoy/train/phase_times.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/results.hpp>
#include <convoy/train/step_sums.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy::train {

/// The finished steps that are not reported, and what their reports wait for: the results of their passes and
/// the norms of their gradients.
template <class Comm, class Exec>
class LateReports {
 public:
  using Space = typename Exec::Space;

  /// For a model with `losses` losses, of which up to `most` steps may be under way. `skips`: a step whose
  /// loss is not finite does not end the training.
  LateReports(Comm& comm, Space& space, Timeline* timeline, std::size_t losses, int most, bool skips)
      : comm_(comm),
        losses_(losses),
        times_(space, timeline),
        sums_(losses, most, skips),
        norms_(space, static_cast<std::size_t>(most)) {
    steps_.reserve(static_cast<std::size_t>(most));
  }

  /// The number of steps that are not reported.
  int unreported() const { return static_cast<int>(steps_.size()); }
  /// The number of reports that can be taken without waiting for the device: reports of steps older than the
  /// Exec's latency, in groups of those whose results arrive together.
  int due() const {
    const int late = unreported() - (together_ > 1 ? std::max(Exec::latency, together_) : Exec::latency);
    return late >= together_ ? late : 0;
  }
  /// Sets the number of results that arrive together.
  void set_together(int results) { together_ = results; }

  /// The losses' counts of a step, kept until the step is reported; see StepSums.
  double* counts_of(std::int64_t step) { return sums_.counts_of(step); }
  /// The losses' counts of the next step on this rank, which are summed over ranks with the report of this
  /// step.
  std::span<double> next_counts() { return sums_.next_counts(); }
  /// Whether any rank asked to stop in the step reported last.
  bool told_to_stop() const { return sums_.told_to_stop(); }

  /// How long the phases of these steps and of the one under way take.
  PhaseTimes<Space>& times() { return times_; }

  /// A pass was enqueued whose result belongs to the report of its step.
  void expect_result() { results_.expect(); }
  /// Reads the norm of the step's gradient from `verdict`, which the device writes.
  void expect_norm(const optim::Verdict* verdict) { norms_.send(verdict); }
  /// Adds a finished step.
  void add(UnreportedStep&& step) { steps_.push_back(std::move(step)); }
  /// The report of the oldest unreported step, summed over all ranks if they run in lockstep. Nothing if all
  /// steps are reported.
  std::optional<StepReport> take(Exec& exec);

  /// Stores the results of the steps under way, so that the Exec's next result is that of the next pass.
  void keep_results(Exec& exec) { results_.keep(exec); }
  /// Discards all steps, with their results.
  void discard(Exec& exec) {
    results_.drop(exec);
    for (const UnreportedStep& step : steps_)
      if (step.norm_follows) norms_.take();
    steps_.clear();
    times_.drop();
  }

 private:
  /// Adds the results of a step up, and notes the norm of its gradient, which may come along with a result.
  void add_results(UnreportedStep& step, Exec& exec);

  Comm& comm_;
  std::size_t losses_;
  PhaseTimes<Space> times_;
  StepSums sums_;
  memory::Late<optim::Verdict, Space> norms_;  // of the steps whose norms are still on the device
  std::vector<UnreportedStep> steps_;
  Results results_;     // of these steps and the one under way
  int together_ = 1;    // the number of results that arrive together
  double summing_ = 0;  // seconds in sums over ranks that no report has yet
};

template <class Comm, class Exec>
std::optional<StepReport> LateReports<Comm, Exec>::take(Exec& exec) {
  if (steps_.empty()) return std::nullopt;
  UnreportedStep step = steps_.front();
  steps_.erase(steps_.begin());
  add_results(step, exec);
  const std::span<double> numbers = sums_.of(step, comm_.rank());
  // Without lockstep, each worker only knows its own numbers.
  const bool together = comm_.lockstep();
  if (together) {
    const auto from = Clock::now();
    comm_.all_reduce(numbers, comm::sum);
    summing_ += Seconds(Clock::now() - from).count();
  }
  StepReport report = sums_.report(step, together, comm_.workers());
  if (const auto seconds = times_.take()) {
    report.backward_seconds = seconds->backward;
    report.update_seconds = seconds->update;
    report.exposed_comm_seconds = seconds->exchange + std::exchange(summing_, 0.0);
  }
  return report;
}

template <class Comm, class Exec>
void LateReports<Comm, Exec>::add_results(UnreportedStep& step, Exec& exec) {
  if (step.norm_follows) step.gradient_norm = norms_.take().norm;
  sums_.start();
  for (int i = 0; i < step.results; ++i) {
    const exec::Result result = results_.take(exec);
    sums_.add(result, step.divisors_of(i, losses_));
    if (optim::Verdict verdict; result.along.size() == sizeof verdict) {
      std::memcpy(&verdict, result.along.data(), sizeof verdict);
      step.gradient_norm = verdict.norm;
    }
  }
}

}  // namespace convoy::train
