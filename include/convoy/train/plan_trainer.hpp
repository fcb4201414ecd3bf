// PlanTrainer: trains, evaluates and predicts with a plan that is a value, so that it is compiled once for
// all models of a program.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <iostream>
#include <span>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/binding.hpp>
#include <convoy/train/composes.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/log.hpp>
#include <convoy/train/replica.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy::train {

/// What `fit` does beyond one epoch in silence.
struct FitOptions {
  int epochs = 1;
  std::int64_t steps = 0;          ///< stops after so many; 0: only by epochs
  data::DatasetRef validate = {};  ///< evaluated after each epoch: `.validate = &mnist.test`
  EarlyStop early_stop = {};
  StepCallback on_step = {};
  EpochCallback on_epoch = {};
  std::ostream* log = &std::cout;  ///< where rank 0 prints the published lines; null: nowhere
  int log_every = 200;             ///< steps between throughput lines
};

/// What a Trainer is once its model is a plan; see trainer.hpp. A program that chooses its model at run time
/// uses it with the plan chosen, which must outlive it.
template <class Rule, comm::Comm Comm, exec::Exec Exec>
requires optim::Optimizing<Rule>
class PlanTrainer {
 public:
  using Config = train::Config<Rule, Exec>;

  template <class... CommArguments>
  PlanTrainer(const Plan& plan, const Config& config, CommArguments&&... comm_arguments)
      : plan_(plan), replica_(plan, config, std::forward<CommArguments>(comm_arguments)...) {}
  PlanTrainer(const PlanTrainer&) = delete;
  PlanTrainer& operator=(const PlanTrainer&) = delete;

  int rank() const { return replica_.rank(); }
  int world() const { return replica_.comm().size(); }
  /// How many ranks compute gradients.
  int workers() const { return replica_.workers(); }
  Comm& comm() { return replica_.comm(); }
  Exec& exec() { return replica_.exec(); }
  const Config& config() const { return replica_.config(); }
  /// The workers' shares of a global batch, summing to 1; empty: all are equal.
  std::span<const double> shares() const { return replica_.shares(); }
  /// The most rows that a batch of this rank may have: `batch`, unless shares are unequal.
  int most_rows() const { return replica_.most_rows(); }
  std::int64_t steps_done() const { return replica_.steps_done(); }
  std::size_t optimizer_state_bytes() const { return replica_.optimizer_state_bytes(); }

  /// One optimizer step on a batch of this rank's rows, at most `most_rows()`; `global_rows` counts those of
  /// all ranks (0: all have as many).
  StepReport step(const exec::BatchView& batch, std::int64_t global_rows = 0) {
    const Stopwatch watch;
    replica_.begin();
    replica_.compute(batch, global_rows > 0 ? global_rows : std::int64_t{batch.rows} * workers(), 1, true);
    auto report = replica_.finish(false);
    report.seconds = watch.seconds();
    return report;
  }

  /// Trains on a data set, which every rank passes whole and of which each reads its share.
  template <class D>
  FitReport fit(const D& set, const FitOptions& options = {}) {
    return fit_on(reference(set), options);
  }

  /// Loss, accuracy and metrics over a data set, of which each rank reads its share. Running statistics are
  /// averaged over ranks first.
  template <class D>
  Evaluation evaluate(const D& set) {
    return evaluate_on(reference(set));
  }

  /// The model's output number `output` for every sample, computed on this rank alone with its running
  /// statistics.
  template <class D>
  Prediction predict(const D& set, int output = 0) {
    return predict_on(reference(set), output);
  }

  /// Seconds that the exchange of one step takes while nothing is computed: the median of `repetitions` on
  /// the slowest rank; hidden() compares with it. Every worker calls it, after training where a codec
  /// keeps account of what it left out or of its first steps. Throws ConfigError where servers make an update
  /// of all that they get.
  double exchange_seconds(int repetitions = 5) { return replica_.exchange_seconds(repetitions); }

  /// The events of all workers, on rank 0; empty elsewhere.
  std::vector<std::vector<TimelineEvent>> gather_timeline() {
    std::vector<std::vector<TimelineEvent>> all;
    for (int r = 0; r < workers(); ++r) {
      std::vector<TimelineEvent> events;
      if (r == rank() && config().timeline != nullptr) events = config().timeline->events();
      auto count = static_cast<i32>(events.size());
      comm().broadcast(std::span<i32>(&count, 1), r);
      events.resize(static_cast<std::size_t>(count));
      comm().broadcast(std::span<TimelineEvent>(events), r);
      if (rank() == 0) all.push_back(std::move(events));
    }
    return all;
  }

 private:
  template <class D>
  static data::DatasetRef reference(const D& set) {
    if constexpr (std::same_as<D, data::DatasetRef>)
      return set;
    else
      return data::DatasetRef(&set);
  }

  // What a fit carries along.
  struct Run {
    const FitOptions& options;
    Binding binding;
    data::Loader<data::DatasetRef>& loader;
    std::int64_t steps_per_epoch;
    Patience patience;
    FitReport fit{};
    StepTimes times{};
    double seconds = 0;  // of all steps
    bool stop_asked = false;
  };

  FitReport fit_on(const data::DatasetRef& set, const FitOptions& options) {
    if (options.epochs < 1) fail<ConfigError>("fit: epochs must be at least 1, not ", options.epochs);
    if (options.steps < 0) fail<ConfigError>("fit: steps must not be negative, as ", options.steps, " is");
    replica_.serve();
    if (comm().role() == comm::Role::server) return {};  // the workers are done
    data::Loader<data::DatasetRef> loader(
        set, {.batch = config().batch, .shard = replica_.shard(), .seed = config().seed});
    const std::int64_t steps_per_epoch =
        (loader.steps_per_epoch() + config().accumulate - 1) / config().accumulate;
    Run run{options, Binding(plan_, set.fields()), loader, steps_per_epoch, Patience(options.early_stop)};
    const std::int64_t all_steps = steps_per_epoch * options.epochs;
    const auto expected =
        static_cast<std::size_t>(options.steps > 0 ? std::min(options.steps, all_steps) : all_steps);
    run.fit.step_seconds.reserve(expected);
    run.times.reserve(expected);
    for (int epoch = 0; epoch < options.epochs && run.fit.stopped == StopReason::finished; ++epoch)
      end_epoch(run, train_epoch(run, epoch));
    replica_.dismiss();
    summarise(run.fit, run.times);
    return std::move(run.fit);
  }

  EpochReport train_epoch(Run& run, int epoch) {
    const Stopwatch watch;
    EpochReport of_epoch;
    of_epoch.epoch = epoch;
    std::int64_t rows = 0;
    run.loader.start(epoch);
    for (std::int64_t s = 0; s < run.steps_per_epoch; ++s) {
      StepReport report = train_step(run, s);
      report.epoch = epoch;
      rows += report.rows;
      of_epoch.loss += report.loss * static_cast<double>(report.rows);
      of_epoch.accuracy += report.accuracy * static_cast<double>(report.rows);
      const auto& options = run.options;
      if (options.log != nullptr && rank() == 0) log_step(*options.log, report, options.log_every);
      const bool told = replica_.told_to_stop();
      if (options.on_step && options.on_step(report) == Control::stop) run.stop_asked = true;
      if (told)
        run.fit.stopped = StopReason::callback;
      else if (options.steps > 0 && run.fit.steps >= options.steps)
        run.fit.stopped = StopReason::steps_reached;
      if (run.fit.stopped != StopReason::finished) break;
    }
    of_epoch.seconds = watch.seconds();
    of_epoch.loss /= static_cast<double>(rows);
    of_epoch.accuracy /= static_cast<double>(rows);
    return of_epoch;
  }

  StepReport train_step(Run& run, std::int64_t step_in_epoch) {
    const Stopwatch watch;
    replica_.begin();
    const std::int64_t micros = std::min<std::int64_t>(
        config().accumulate, run.loader.steps_per_epoch() - step_in_epoch * config().accumulate);
    for (std::int64_t m = 0; m < micros; ++m) {
      const data::Batch* batch = run.loader.next();
      replica_.compute(run.binding.view(*batch), batch->global_rows, micros, m + 1 == micros);
    }
    StepReport report = replica_.finish(run.stop_asked);
    report.seconds = watch.seconds();
    FitReport& fit = run.fit;
    run.seconds += report.seconds;
    run.times.take(report);
    fit.step_seconds.push_back(report.seconds);
    fit.samples += report.rows;
    fit.loss = report.loss;
    report.step = fit.steps++;
    report.step_in_epoch = step_in_epoch;
    report.steps_per_epoch = run.steps_per_epoch;
    report.samples_per_sec = static_cast<double>(fit.samples) / run.seconds;
    return report;
  }

  void end_epoch(Run& run, EpochReport report) {
    const auto& options = run.options;
    const bool together = comm().lockstep();
    if (!together) {  // so far each worker has counted for itself
      double means[] = {report.loss, report.accuracy};
      comm().all_reduce(std::span<double>(means), comm::mean);
      report.loss = means[0];
      report.accuracy = means[1];
    }
    if (options.validate) report.test = evaluate_on(options.validate);
    if (options.log != nullptr && rank() == 0) log_epoch(*options.log, report);
    run.fit.epochs.push_back(report);
    bool stop = options.on_epoch && options.on_epoch(report) == Control::stop;
    stop = agree(stop || (run.stop_asked && !together));
    if (run.fit.stopped != StopReason::finished) return;
    if (stop)
      run.fit.stopped = StopReason::callback;
    else if (options.validate && run.patience.exhausted(report.test))
      run.fit.stopped = StopReason::early_stop;
  }

  Evaluation evaluate_on(const data::DatasetRef& set) {
    const Stopwatch watch;
    if (comm().role() == comm::Role::server) return {};
    if (workers() > 1 && !exec().statistics().empty()) comm().all_reduce(exec().statistics(), comm::mean);
    const Binding binding(plan_, set.fields());
    data::Loader<data::DatasetRef> loader(
        set, {.batch = config().batch, .shard = replica_.shard(), .shuffle = false, .allow_short = true});
    std::vector<double> sums(3 + plan_.metrics.size());
    loader.start(0);
    while (const data::Batch* batch = loader.next()) {
      if (batch->rows == 0) continue;
      const exec::Result result = exec().forward(binding.view(*batch), exec::Mode::evaluate);
      sums[0] += result.loss;
      sums[1] += static_cast<double>(result.correct);
      sums[2] += static_cast<double>(batch->rows);
      for (std::size_t m = 0; m < plan_.metrics.size(); ++m)
        sums[3 + m] += exec().metric(static_cast<int>(m));
    }
    comm().all_reduce(std::span<double>(sums), comm::sum);
    Evaluation evaluation;
    evaluation.rows = static_cast<std::int64_t>(sums[2]);
    evaluation.loss = sums[0] / sums[2];
    evaluation.accuracy = sums[1] / sums[2];
    for (std::size_t m = 0; m < plan_.metrics.size(); ++m)
      evaluation.metrics.push_back(sums[3 + m] / sums[2]);
    evaluation.seconds = watch.seconds();
    return evaluation;
  }

  Prediction predict_on(const data::DatasetRef& set, int output) {
    if (output < 0 || static_cast<std::size_t>(output) >= plan_.outputs.size())
      fail<ConfigError>("predict: the model has ", plan_.outputs.size(), " outputs, so there is no output ",
                        output);
    const Binding binding(plan_, set.fields());
    data::Loader<data::DatasetRef> loader(set, {.batch = most_rows(), .shuffle = false, .allow_short = true});
    Prediction prediction;
    prediction.shape =
        plan_.nodes[static_cast<std::size_t>(plan_.outputs[static_cast<std::size_t>(output)].node)].shape;
    prediction.values.reserve(set.size() * static_cast<std::size_t>(prediction.shape.size()));
    loader.start(0);
    while (const data::Batch* batch = loader.next()) {
      exec().forward(binding.view(*batch), exec::Mode::evaluate);
      const auto values = exec().output(output);
      prediction.values.insert(prediction.values.end(), values.begin(), values.end());
    }
    return prediction;
  }

  /// Whether any rank says so.
  bool agree(bool mine) {
    double any[] = {mine ? 1.0 : 0.0};
    comm().all_reduce(std::span<double>(any), comm::sum);
    return any[0] > 0;
  }

  const Plan& plan_;
  Replica<Rule, Comm, Exec> replica_;
};

}  // namespace convoy::train
