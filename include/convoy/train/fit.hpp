// Fit: the options of `fit` and the state of a fit in progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string_view>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/feed.hpp>
#include <convoy/train/report.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>

#include <convoy/core/error.hpp>
#include <convoy/exec/counts.hpp>
#endif

namespace convoy::train {

/// The options of `fit`. All ranks must pass the same `epochs`, `steps` and `early_stop`, data sets of the
/// same sizes, and a keeper or none; ranks compare these. The other options may differ.
struct FitOptions {
  int epochs = 1;                  ///< of the whole fit; those before a resume count. Another fit of the same
                                   ///< trainer goes on with other random orders and draws
  std::int64_t steps = 0;          ///< stop after this many optimizer steps; those before a resume count; 0:
                                   ///< no limit but `epochs`
  data::DatasetRef validate = {};  ///< evaluated after each epoch: `.validate = &mnist.test`
  EarlyStop early_stop = {};
  StepCallback on_step = {};
  EpochCallback on_epoch = {};
  std::ostream* log = &std::cout;  ///< where rank 0 prints the log lines; null: nowhere
  int log_every = 200;             ///< steps between throughput lines
  double per_row = 0;  ///< how many of `unit` a row holds, on average, for these lines; 0: unknown
  std::string_view unit = "tokens";
  int readers = 1;        ///< threads that read batches ahead; the batches do not depend on their number
  bool resident = false;  ///< holds the training set in GPU memory and makes the batches there. The batches
                          ///< are those of a loader. The validation set is held too, if possible. For
                          ///< exec::Cuda and sets whose rows depend on their index alone, or sets with
                          ///< stored_images(), such as data::Cropped. Reports come several at a time
                          ///< (CudaOptions::steps_at_once)
  Keeper* keeper = nullptr;  ///< keeps the state of this trainer's fit and resumes from it, such as
                             ///< train::Checkpoints

  static constexpr void fields(auto& self, auto&& field) {
    field("epochs", self.epochs);
    field("steps", self.steps);
    field("validate", self.validate, fields::local);  // servers need not have it; workers compare its rows
    field("early_stop", self.early_stop);
    field("on_step", self.on_step, fields::local);
    field("on_epoch", self.on_epoch, fields::local);
    field("log", self.log, fields::local);
    field("log_every", self.log_every, fields::local);
    field("per_row", self.per_row, fields::local);
    field("unit", self.unit, fields::local);
    field("readers", self.readers, fields::local);
    field("resident", self.resident, fields::local);
    field("keeper", self.keeper);  // whether there is one
  }

  /// Throws ConfigError for options that are invalid for the plan's model.
  void check(const Plan& plan) const;
};

/// The state of a fit in progress on one rank.
struct FitRun {
  const FitOptions& options;
  Feed& feed;
  Feed* validation;  ///< if the validation set is resident; else null
  data::BatchPlan batches;
  int accumulate;
  std::int64_t steps_per_epoch;
  std::int64_t earlier_epochs;  ///< of earlier fits, which the epochs of this fit follow in random orders
  bool counts_by_value;         ///< whether the count of a loss depends on label values
  Patience patience;
  std::vector<double> counts{};
  FitReport fit{};
  StepTimes times{};
  Stopwatch watch{};
  double reported_seconds = 0;    ///< of all reported steps
  double unreported_seconds = 0;  ///< time not yet assigned to a reported step
  FitPosition at = {};          ///< behind the steps begun; its `rows` to `labels` cover reported steps only
  std::int64_t next_step = 0;   ///< in the epoch
  std::int64_t resumed_at = 0;  ///< steps made before this fit resumed
  bool stop_asked = false;

  /// Sets the position of the fit, which may be one at which the fit has nothing left to do.
  void go_on_from(const FitPosition& position);
  /// Whether the fit has epochs left to train on.
  bool goes_on() const { return at.epoch < options.epochs && fit.stopped == StopReason::finished; }
  /// The number of micro-steps in a step of an epoch; the last step may have fewer.
  std::int64_t micros_of(std::int64_t step) const;
  /// Goes on to the next step.
  void advance();
  /// The first row of step `step` in an epoch, as FitPosition::next_row counts.
  std::int64_t first_row(std::int64_t step) const;
  /// Records the report of a step, and fills in the fields known only to the fit.
  void complete(StepReport& report, double seconds);
};

/// The number of steps in an epoch.
inline std::int64_t steps_of(const data::BatchPlan& batches, int accumulate) {
  return (batches.steps() + accumulate - 1) / accumulate;
}

/// The step of an epoch at which a fit resumes that has come to `row`. If the step size has changed (a world
/// of another size), the step that contains the row.
std::int64_t step_of_row(const data::BatchPlan& batches, int accumulate, std::int64_t row);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void FitOptions::check(const Plan& plan) const {
  if (epochs < 1) fail<ConfigError>("fit: epochs must be at least 1, not ", epochs);
  if (steps < 0) fail<ConfigError>("fit: steps must not be negative, as ", steps, " is");
  if (validate && validate.size() == 0) fail<ConfigError>("fit: the validation set has no samples");
  if (early_stop.patience < 0)
    fail<ConfigError>("fit: the patience of early_stop must not be negative, as ", early_stop.patience,
                      " is");
  if (!(early_stop.min_delta >= 0))
    fail<ConfigError>("fit: the min_delta of early_stop must not be negative, as ", early_stop.min_delta,
                      " is");
  if (early_stop.min_delta > 0 && early_stop.patience == 0)
    fail<ConfigError>("fit: early_stop has a min_delta of ", early_stop.min_delta,
                      ", which needs a patience above 0");
  const auto& target = early_stop.target_accuracy;
  if ((target || early_stop.patience > 0) && !validate)
    fail<ConfigError>("fit: early_stop needs a validation set; set FitOptions::validate");
  if (target && !exec::classifies(plan))
    fail<ConfigError>("fit: a target accuracy needs a model with a cross-entropy, and this model has none");
  if (target && !(*target >= 0 && *target <= 1))
    fail<ConfigError>("fit: the target accuracy must be from 0 to 1, not ", *target);
}

CONVOY_FUNCTION void FitRun::go_on_from(const FitPosition& position) {
  at = position;
  next_step = step_of_row(batches, accumulate, at.next_row);
  resumed_at = at.steps = at.epoch * steps_per_epoch + next_step;
  const std::int64_t all_steps = steps_per_epoch * options.epochs;
  const std::int64_t last_step = options.steps > 0 ? std::min(options.steps, all_steps) : all_steps;
  // `epochs` may be a limit that is never reached.
  const auto expected = std::min<std::size_t>(static_cast<std::size_t>(last_step), 1 << 20);
  fit.step_seconds.reserve(expected);
  times.reserve(expected);
  if (options.steps > 0 && at.steps >= options.steps)
    fit.stopped = StopReason::steps_reached;
  else if (patience.ends(at))
    fit.stopped = StopReason::early_stop;
}

CONVOY_FUNCTION std::int64_t FitRun::micros_of(std::int64_t step) const {
  return std::min<std::int64_t>(accumulate, batches.steps() - step * accumulate);
}

CONVOY_FUNCTION void FitRun::advance() {
  at.next_row = first_row(++next_step);
  ++at.steps;
}

CONVOY_FUNCTION std::int64_t FitRun::first_row(std::int64_t step) const {
  return batches.first_sample(step * accumulate);
}

CONVOY_FUNCTION std::int64_t step_of_row(const data::BatchPlan& batches, int accumulate, std::int64_t row) {
  std::int64_t step = 0;
  while (step * accumulate < batches.steps() && batches.first_sample((step + 1) * accumulate) <= row) ++step;
  return step;
}

CONVOY_FUNCTION void FitRun::complete(StepReport& report, double seconds) {
  report.epoch = static_cast<int>(at.epoch);
  report.seconds = seconds;
  reported_seconds += seconds;
  times.take(report);
  fit.step_seconds.push_back(seconds);
  fit.samples += report.rows;
  fit.loss = report.loss;
  report.step = resumed_at + fit.steps++;
  report.step_in_epoch = report.step - at.epoch * steps_per_epoch;
  report.steps_per_epoch = steps_per_epoch;
  report.samples_per_sec = static_cast<double>(fit.samples) / reported_seconds;
}
#endif

}  // namespace convoy::train
