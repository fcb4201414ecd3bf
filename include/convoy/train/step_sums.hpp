// What ranks exchange about a step: its losses, the counts of the next step, errors, and requests to stop.
// One small all-reduce carries all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/train/report.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <limits>

#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
#endif

namespace convoy::train {

/// The data of a step that are known before its results.
struct UnreportedStep {
  std::int64_t step = 0;
  std::int64_t rows = 0;         ///< of this rank's batches
  std::int64_t global_rows = 0;  ///< of all ranks
  int results = 0;               ///< the number of forward passes
  int batches = 1;               ///< batches, whose losses are averaged
  std::vector<double> divisors;  ///< of each loss in each result; empty: all 1
  float lr = 0;
  std::optional<double> gradient_norm = {};
  bool norm_follows = false;  ///< the norm is still on the device
  bool stop = false;          ///< this rank asks to stop

  std::span<const double> divisors_of(int result, std::size_t losses) const {
    return divisors.empty() ? std::span<const double>()
                            : std::span(divisors).subspan(static_cast<std::size_t>(result) * losses, losses);
  }
};

class StepSums {
 public:
  /// For a model with `losses` losses, of which up to `unreported` steps may be under way. `skips`: a step
  /// whose loss is not finite does not end the training.
  StepSums(std::size_t losses, int unreported, bool skips);

  /// The losses' counts of a step, kept until the step is reported: over all ranks or, if workers do not run
  /// in lockstep, this rank's times the number of workers.
  double* counts_of(std::int64_t step);
  /// The losses' counts of the next step: written before a step is reported, summed over ranks afterwards.
  std::span<double> next_counts() { return next_counts_; }

  void start();
  /// A loss whose divisor is 0 has no labels, and counts as 0. No divisors: all are 1.
  void add(const exec::Result& result, std::span<const double> divisors);
  /// The numbers to sum over ranks, once all results of a step are added.
  std::span<double> of(const UnreportedStep& step, int rank);
  /// The report, from the sums over `workers` ranks or, if not `together`, from this rank's own numbers.
  /// If a loss is not finite, the report's loss is NaN where such steps are skipped; else throws ExecError.
  /// Throws ConfigError if the ranks' batches do not have as many rows together as this rank said.
  StepReport report(const UnreportedStep& step, bool together, int workers);

  /// Whether any rank asked to stop in the step reported last.
  bool told_to_stop() const { return told_to_stop_; }

 private:
  // The sums that follow the losses and the counts.
  enum Sum : std::size_t { correct, labels, rows, unsound, culprit, stops, fixed_sums };

  double* rest() { return sums_.data() + losses_ + next_counts_.size(); }

  std::size_t losses_;
  std::int64_t kept_;  // the number of steps whose counts are kept
  bool skips_;
  std::vector<double> sums_, next_counts_, counts_;
  bool told_to_stop_ = false;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION StepSums::StepSums(std::size_t losses, int unreported, bool skips)
    : losses_(losses),
      kept_(unreported),
      skips_(skips),
      sums_(2 * losses + fixed_sums),
      next_counts_(losses),
      counts_(losses * static_cast<std::size_t>(kept_)) {}

CONVOY_FUNCTION double* StepSums::counts_of(std::int64_t step) {
  return counts_.data() + step % kept_ * static_cast<std::int64_t>(losses_);
}

CONVOY_FUNCTION void StepSums::start() { std::fill(sums_.begin(), sums_.end(), 0.0); }

CONVOY_FUNCTION void StepSums::add(const exec::Result& result, std::span<const double> divisors) {
  for (std::size_t l = 0; l < losses_; ++l) {
    const double divisor = divisors.empty() ? 1 : divisors[l];
    if (divisor > 0) sums_[l] += result.losses[l] / divisor;
  }
  rest()[correct] += static_cast<double>(result.correct);
  rest()[labels] += static_cast<double>(result.labels);
}

CONVOY_FUNCTION std::span<double> StepSums::of(const UnreportedStep& step, int rank) {
  const auto losses = std::span<double>(sums_).first(losses_);
  if (!std::all_of(losses.begin(), losses.end(), [](double loss) { return is_finite(loss); })) {
    std::fill(losses.begin(), losses.end(), 0.0);
    rest()[unsound] = 1;
    rest()[culprit] = rank + 1.0;
  }
  rest()[rows] = static_cast<double>(step.rows);
  rest()[stops] = step.stop ? 1 : 0;
  std::copy(next_counts_.begin(), next_counts_.end(), sums_.begin() + static_cast<std::ptrdiff_t>(losses_));
  return sums_;
}

CONVOY_FUNCTION StepReport StepSums::report(const UnreportedStep& step, bool together, int workers) {
  std::copy_n(sums_.begin() + static_cast<std::ptrdiff_t>(losses_), losses_, next_counts_.begin());
  const double* const others = rest();
  // Gradients and losses were divided by the rows that were said.
  if (together && others[rows] != static_cast<double>(step.global_rows))
    fail<ConfigError>("trainer: step ", step.step, " was taken to have ", step.global_rows,
                      " rows on all ranks, but their batches have ", static_cast<std::int64_t>(others[rows]),
                      ": give each rank's Loader its shard, and pass the rows of all ranks as global_rows");
  if (others[unsound] == 1 && !skips_)
    fail<ExecError>("rank ", static_cast<int>(others[culprit]) - 1, ": the loss of step ", step.step,
                    " is not finite, so training stops", together ? " on all ranks" : "", " (learning rate ",
                    step.lr, ")");
  if (others[unsound] > 1 && !skips_)
    fail<ExecError>("the loss of step ", step.step, " is not finite on ", static_cast<int>(others[unsound]),
                    " of ", workers, " ranks, so training stops (learning rate ", step.lr, ")");
  told_to_stop_ = together && others[stops] > 0;

  StepReport report;
  report.step = step.step;
  report.rows = step.global_rows;
  const double* counts = counts_of(step.step);
  for (std::size_t l = 0; l < losses_; ++l)
    if (counts[l] > 0) report.loss += sums_[l] / (counts[l] * step.batches);
  if (!together) report.loss *= workers;  // which the counts have as a factor
  if (others[unsound] > 0) report.loss = std::numeric_limits<double>::quiet_NaN();
  report.accuracy = accuracy_of(others[correct], others[labels]);
  report.labels = static_cast<std::int64_t>(others[labels]);
  report.lr = step.lr;
  report.gradient_norm = step.gradient_norm;
  return report;
}
#endif

}  // namespace convoy::train
