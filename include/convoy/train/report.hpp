// Reports: what Trainer hands to callbacks and returns from fit, evaluate and predict. The same on every
// rank.
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

/// One optimizer step of all ranks.
struct StepReport {
  std::int64_t step = 0;  ///< counting from 0 over the whole fit
  int epoch = 0;
  std::int64_t step_in_epoch = 0, steps_per_epoch = 0;
  std::int64_t rows = 0;  ///< of all ranks
  double loss = 0;        ///< mean over these rows
  /// Share of the labels that count whose logit is the largest, at the model's first cross-entropy; none
  /// where no label counts, as where the model classifies nothing.
  std::optional<double> accuracy = {};
  std::int64_t labels = 0;  ///< that count there, of all ranks
  float lr = 0;
  /// Of the whole gradient before clipping; none where nothing looked at it (optim::Guard::measure), or where
  /// only servers did.
  std::optional<double> gradient_norm = {};
  double seconds = 0;               ///< of this rank, data wait included
  double backward_seconds = 0;      ///< of this rank, of the micro-step beside which gradients are exchanged
  double update_seconds = 0;        ///< of this rank, in the optimizer's rule
  double exposed_comm_seconds = 0;  ///< spent in the exchange while nothing was computed, waiting included
  double samples_per_sec = 0;       ///< of all ranks, cumulative since step 0, evaluation excluded
};

/// A metric of the model's, by its name there.
struct MetricValue {
  Name name;
  double value = 0;
};

/// The accuracy where so many of so many labels are right; none where no label counts.
constexpr std::optional<double> accuracy_of(double correct, double labels) {
  return labels > 0 ? std::optional(correct / labels) : std::nullopt;
}

/// Means over a data set.
struct Evaluation {
  double loss = 0;
  std::optional<double> accuracy = {};  ///< as in StepReport
  std::vector<MetricValue> metrics;     ///< in the order of the plan's
  std::int64_t rows = 0;
  double seconds = 0;

  /// Throws ConfigError for a metric that the model does not have.
  double metric(std::string_view name) const {
    for (const MetricValue& metric : metrics)
      if (metric.name.view() == name) return metric.value;
    fail<ConfigError>("evaluation: the model has no metric \"", name, "\"");
  }
};

struct EpochReport {
  int epoch = 0;
  double loss = 0;                      ///< mean over the epoch's rows, as they were seen
  std::optional<double> accuracy = {};  ///< as in StepReport, of the epoch's labels
  double seconds = 0;                   ///< of training
  Evaluation test;                      ///< rows == 0 without a validation set
};

enum class StopReason : unsigned char { finished, steps_reached, early_stop, callback };

struct FitReport {
  std::vector<EpochReport> epochs;
  std::vector<double> step_seconds;
  std::int64_t steps = 0, samples = 0;
  double loss = 0;                ///< of the last step
  double samples_per_sec = 0;     ///< of all ranks; leaves out the first 20 steps when there are more than 40
  bool warm_up_left_out = false;  ///< whether it did
  double backward_ms = 0;         ///< median of the steps
  double exposed_comm_ms = 0;     ///< likewise
  StopReason stopped = StopReason::finished;
};

/// Outputs of the model for every sample of a data set, in its order.
struct Prediction {
  Shape shape;                ///< of one row
  std::vector<float> values;  ///< rows times shape.size()
};

/// Whether to go on. A stop that any rank asks for stops all of them after the next step, or, where results
/// are some steps late, after those that have begun.
enum class Control : bool { go_on, stop };

/// Stops when `patience` epochs in a row did not improve the test loss by `min_delta`, or once the test
/// accuracy has reached `target_accuracy`, which is for models that classify. Both go by the data set that
/// `fit` validates by.
struct EarlyStop {
  int patience = 0;  ///< epochs; 0: never
  double min_delta = 0;
  std::optional<double> target_accuracy = {};  ///< a share from 0 to 1
};

/// Follows an EarlyStop over the epochs.
class Patience {
 public:
  explicit Patience(const EarlyStop& rule) : rule_(rule) {}

  /// True once the rule says that training ends after this evaluation; `at` holds the best loss so far and
  /// the epochs since.
  bool exhausted(const Evaluation& test, FitPosition& at) const {
    if (rule_.target_accuracy && test.accuracy >= rule_.target_accuracy) return true;
    if (test.loss < at.best - rule_.min_delta) {
      at.best = test.loss;
      at.waited = 0;
      return false;
    }
    return ++at.waited >= rule_.patience && rule_.patience > 0;
  }

 private:
  EarlyStop rule_;
};

/// The middle of the values; 0 for none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// How much of what backward can hide of an exchange it did hide, from 0 to 1. An exchange that takes
/// `exchange` seconds while nothing is computed can disappear behind backward up to min(backward, exchange);
/// all of it did but `exposed`. Exposed is the time from the end of backward to the end of the step less the
/// updates: waiting, for slower ranks too, and the exchange's own work. 0 where there is nothing to hide.
constexpr double hidden(double exchange, double backward, double exposed) {
  const double possible = std::min(backward, exchange);
  return possible > 0 ? std::clamp((exchange - exposed) / possible, 0.0, 1.0) : 0;
}

/// What a fit keeps of each step.
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
    backward.push_back(step.backward_seconds);
    exposed.push_back(step.exposed_comm_seconds);
  }
};

/// Fills in the throughput, backward and the exposed communication of a fit.
inline void summarise(FitReport& fit, const StepTimes& steps) {
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
  fit.backward_ms = median(steps.backward) * 1e3;
  fit.exposed_comm_ms = median(steps.exposed) * 1e3;
}

using StepCallback = std::function<Control(const StepReport&)>;
using EpochCallback = std::function<Control(const EpochReport&)>;

}  // namespace convoy::train
