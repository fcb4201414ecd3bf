// Reports: what Trainer passes to callbacks and returns from fit, evaluate and predict.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/train/keeper.hpp>

namespace convoy::train {

/// Report of one optimizer step over all ranks. Losses and accuracies are the same on every rank; times are
/// this rank's. With asynchronous or stale servers, workers do not wait for each other, so `loss`, `accuracy`
/// and `labels` are this worker's own, and a worker's gradient is that of the mean over its own rows or
/// labels.
struct StepReport {
  std::int64_t step = 0;  ///< from 0 over the whole fit, resumed steps included; in a loop of the user's own,
                          ///< over the trainer's steps
  int epoch = 0;          ///< from 0; in a loop of the user's own this field and the next two are 0
  std::int64_t step_in_epoch = 0, steps_per_epoch = 0;
  std::int64_t rows = 0;  ///< of all ranks
  double loss = 0;        ///< mean over these rows
  /// The fraction of counted labels whose logit is the largest, at the model's first cross-entropy. None if
  /// no label counts, for example if the model has no cross-entropy.
  std::optional<double> accuracy = {};
  std::int64_t labels = 0;  ///< counted labels there, over all ranks
  float lr = 0;             ///< the rate of the step after the schedule, before the factors of groups
  /// The norm of the whole gradient before clipping. None if nothing needs it (see optim::Guard::measure), or
  /// if only servers compute it.
  std::optional<double> gradient_norm = {};
  double seconds = 0;  ///< of this rank, including waiting for data; in a loop of the user's own from the
                       ///< step's first forward on
  /// Of this rank: in backward of the micro-step that overlaps with the exchange, in the optimizer, and in
  /// the exchange without computation, waiting included. On GPUs, where only a timeline measures them, else
  /// none.
  std::optional<double> backward_seconds = {}, update_seconds = {}, exposed_comm_seconds = {};
  double samples_per_sec = 0;  ///< of all ranks, the mean since the start of the fit, evaluation excluded; 0
                               ///< in a loop of the user's own. That of the step alone is rows / seconds
};

/// The value of one of the model's metrics.
struct MetricValue {
  Name name;
  double value = 0;
};

/// The accuracy from the numbers of correct and of counted labels; none if no label counts.
constexpr std::optional<double> accuracy_of(double correct, double labels) {
  return labels > 0 ? std::optional(correct / labels) : std::nullopt;
}

/// Means over a data set; the same on every rank but for `seconds`.
struct Evaluation {
  double loss = 0;
  std::optional<double> accuracy = {};  ///< as in StepReport
  std::vector<MetricValue> metrics;     ///< in the order of the plan
  std::int64_t rows = 0;                ///< samples of the set
  double seconds = 0;                   ///< of this rank

  /// Throws ConfigError for a metric that the model does not have.
  double metric(std::string_view name) const {
    for (const MetricValue& metric : metrics)
      if (metric.name.view() == name) return metric.value;
    fail<ConfigError>("evaluation: the model has no metric \"", name, "\"");
  }
};

/// Report of one epoch over all workers.
struct EpochReport {
  int epoch = 0;                        ///< from 0
  double loss = 0;                      ///< mean over the rows of steps not skipped; NaN without any
  std::optional<double> accuracy = {};  ///< as in StepReport, over the epoch's labels
  double seconds = 0;                   ///< of training, on this rank; from where a resumed fit continues
  Evaluation test;                      ///< rows == 0 without a validation set
};

/// Why a fit ended.
enum class StopReason : unsigned char {
  finished,       ///< FitOptions::epochs are done
  steps_reached,  ///< FitOptions::steps are done
  early_stop,     ///< FitOptions::early_stop
  callback,       ///< a callback of any rank returned Control::stop
};

/// Report of a fit: of the steps that this call of `fit` made, not of those before a resume.
struct FitReport {
  std::vector<EpochReport> epochs;   ///< one for each epoch of this fit; the last may have stopped early,
                                     ///< and a resumed fit may only have evaluated the first
  std::vector<double> step_seconds;  ///< of this rank, one for each step
  std::int64_t steps = 0;            ///< optimizer steps
  std::int64_t samples = 0;          ///< rows of all ranks in these steps
  double loss = 0;                   ///< of the last step
  double samples_per_sec = 0;        ///< of all ranks; excludes the first 20 steps if there are more than 40
  bool warm_up_left_out = false;     ///< whether these steps were excluded
  /// Of this rank, medians over the steps; none if the steps were not measured (see StepReport).
  std::optional<double> backward_ms = {}, exposed_comm_ms = {};
  StopReason stopped = StopReason::finished;
};

/// An output of the model for every sample of a data set, in the order of the set.
struct Prediction {
  Shape shape;                ///< of one row
  std::vector<float> values;  ///< rows times shape.size()
};

/// Whether to go on. If any rank asks to stop, all ranks stop after the next step or, if results are late,
/// after the steps already begun. Workers that do not wait for each other, as with asynchronous servers, stop
/// at the end of the epoch.
enum class Control : bool { go_on, stop };

/// Stops when `patience` epochs in a row did not lower the test loss by more than `min_delta`, or when the
/// test accuracy reaches `target_accuracy`, which needs a model that classifies. Both refer to the validation
/// set of `fit`.
struct EarlyStop {
  int patience = 0;      ///< epochs; 0: never
  double min_delta = 0;  ///< a loss lower by more than this is better; needs a patience above 0
  std::optional<double> target_accuracy = {};  ///< from 0 to 1

  static constexpr void fields(auto& self, auto&& field) {
    field("patience", self.patience);
    field("min_delta", self.min_delta);
    field("target_accuracy", self.target_accuracy);
  }
};

/// Applies an EarlyStop over the epochs.
class Patience {
 public:
  explicit Patience(const EarlyStop& rule) : rule_(rule) {}

  /// Notes in `at` the accuracy, the best loss and the epochs since. Returns whether training ends there.
  bool exhausted(const Evaluation& test, FitPosition& at) const {
    at.accuracy = test.accuracy.value_or(-1);
    ++at.waited;
    if (test.loss < at.best - rule_.min_delta) {
      at.best = test.loss;
      at.waited = 0;
    }
    return ends(at);
  }
  /// Whether training ends at this position.
  bool ends(const FitPosition& at) const {
    return (rule_.target_accuracy && at.accuracy >= *rule_.target_accuracy) ||
           (rule_.patience > 0 && at.waited >= rule_.patience);
  }

 private:
  EarlyStop rule_;
};

/// The median of the values (the upper one of two); 0 if there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The fraction of the hideable communication that backward did hide, from 0 to 1. An exchange that takes
/// `exchange` seconds without computation can overlap with backward for up to min(backward, exchange)
/// seconds; all but `exposed` seconds of it did. `exposed` is the time from the end of backward to the end of
/// the step without the updates: waiting, also for slower ranks, and the exchange's own work. 0 if there is
/// nothing to hide.
constexpr double hidden(double exchange, double backward, double exposed) {
  const double possible = std::min(backward, exchange);
  return possible > 0 ? std::clamp((exchange - exposed) / possible, 0.0, 1.0) : 0;
}

/// What a fit records of each step.
struct StepTimes {
  std::vector<std::int64_t> rows;
  std::vector<double> backward, exposed;  ///< seconds

  void reserve(std::size_t steps) {
    rows.reserve(steps);
    backward.reserve(steps);
    exposed.reserve(steps);
  }
  void take(const StepReport& step) {
    rows.push_back(step.rows);
    if (step.backward_seconds) backward.push_back(*step.backward_seconds);
    if (step.exposed_comm_seconds) exposed.push_back(*step.exposed_comm_seconds);
  }
};

/// Computes a fit's throughput, backward time and exposed communication.
inline void summarize(FitReport& fit, const StepTimes& steps) {
  const auto& rows = steps.rows;
  constexpr std::size_t warm_up = 20;
  fit.warm_up_left_out = rows.size() > 2 * warm_up;
  double seconds = 0;
  std::int64_t samples = 0;
  for (std::size_t s = fit.warm_up_left_out ? warm_up : 0; s < rows.size(); ++s) {
    seconds += fit.step_seconds[s];
    samples += rows[s];
  }
  fit.samples_per_sec = seconds > 0 ? static_cast<double>(samples) / seconds : 0;
  if (!steps.backward.empty()) fit.backward_ms = median(steps.backward) * 1e3;
  if (!steps.exposed.empty()) fit.exposed_comm_ms = median(steps.exposed) * 1e3;
}

using StepCallback = std::function<Control(const StepReport&)>;
using EpochCallback = std::function<Control(const EpochReport&)>;

}  // namespace convoy::train
