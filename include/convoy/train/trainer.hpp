// Trainer: a model, an optimizer, a way to exchange gradients and a place to compute, as one program.
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
#include <convoy/train/binding.hpp>
#include <convoy/train/composes.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/log.hpp>
#include <convoy/train/replica.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy {

namespace exec {
template <class Precision>
class Host;
}

namespace train {

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

}  // namespace train

/// Data-parallel training of `Model` with `Rule` as the optimizer; every rank constructs one and calls the
/// same members.
///
/// Construction compares what ranks must agree on (CommError names the rank and the field that differ) and
/// gives all ranks the initial parameters of rank 0. The arguments after the configuration construct the
/// Comm.
template <class Model, class Rule, class Comm, class Exec = exec::Host<f32>,
          bool = train::composes<Model, Rule, Comm, Exec>()>
class Trainer {
 public:
  using Config = train::Config<Rule, Exec>;

  /// The traced model, a constant.
  static constexpr const Plan& plan = plan_of<Model>;

  template <class... CommArguments>
  explicit Trainer(const Config& config, CommArguments&&... comm_arguments)
      : replica_(plan, config, std::forward<CommArguments>(comm_arguments)...) {}
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

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
  train::StepReport step(const exec::BatchView& batch, std::int64_t global_rows = 0) {
    const Stopwatch watch;
    replica_.begin();
    replica_.compute(batch, global_rows > 0 ? global_rows : std::int64_t{batch.rows} * workers(), 1, true);
    auto report = replica_.finish(false);
    report.seconds = watch.seconds();
    return report;
  }

  /// Trains on a data set, which every rank passes whole and of which each reads its share.
  template <class D>
  train::FitReport fit(const D& set, const train::FitOptions& options = {}) {
    return fit_on(reference(set), options);
  }

  /// Loss, accuracy and metrics over a data set, of which each rank reads its share. Running statistics are
  /// averaged over ranks first.
  template <class D>
  train::Evaluation evaluate(const D& set) {
    return evaluate_on(reference(set));
  }

  /// The model's output number `output` for every sample, computed on this rank alone with its running
  /// statistics.
  template <class D>
  train::Prediction predict(const D& set, int output = 0) {
    return predict_on(reference(set), output);
  }

  /// Seconds that the exchange of one step takes while nothing is computed: the median of `repetitions` on
  /// the slowest rank; train::hidden() compares with it. Every worker calls it, after training where a codec
  /// keeps account of what it left out or of its first steps. Throws ConfigError where servers make an update
  /// of all that they get.
  double exchange_seconds(int repetitions = 5) { return replica_.exchange_seconds(repetitions); }

  /// The events of all workers, on rank 0; empty elsewhere.
  std::vector<std::vector<train::TimelineEvent>> gather_timeline() {
    std::vector<std::vector<train::TimelineEvent>> all;
    for (int r = 0; r < workers(); ++r) {
      std::vector<train::TimelineEvent> events;
      if (r == rank() && config().timeline != nullptr) events = config().timeline->events();
      auto count = static_cast<i32>(events.size());
      comm().broadcast(std::span<i32>(&count, 1), r);
      events.resize(static_cast<std::size_t>(count));
      comm().broadcast(std::span<train::TimelineEvent>(events), r);
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
    const train::FitOptions& options;
    train::Binding binding;
    data::Loader<data::DatasetRef>& loader;
    std::int64_t steps_per_epoch;
    train::Patience patience;
    train::FitReport fit{};
    train::StepTimes times{};
    double seconds = 0;  // of all steps
    bool stop_asked = false;
  };

  train::FitReport fit_on(const data::DatasetRef& set, const train::FitOptions& options) {
    if (options.epochs < 1) fail<ConfigError>("fit: epochs must be at least 1, not ", options.epochs);
    if (options.steps < 0) fail<ConfigError>("fit: steps must not be negative, as ", options.steps, " is");
    replica_.serve();
    if (comm().role() == comm::Role::server) return {};  // the workers are done
    data::Loader<data::DatasetRef> loader(
        set, {.batch = config().batch, .shard = replica_.shard(), .seed = config().seed});
    const std::int64_t steps_per_epoch =
        (loader.steps_per_epoch() + config().accumulate - 1) / config().accumulate;
    Run run{options, train::Binding(plan, set.fields()), loader, steps_per_epoch,
            train::Patience(options.early_stop)};
    const std::int64_t all_steps = steps_per_epoch * options.epochs;
    const auto expected =
        static_cast<std::size_t>(options.steps > 0 ? std::min(options.steps, all_steps) : all_steps);
    run.fit.step_seconds.reserve(expected);
    run.times.reserve(expected);
    for (int epoch = 0; epoch < options.epochs && run.fit.stopped == train::StopReason::finished; ++epoch)
      end_epoch(run, train_epoch(run, epoch));
    replica_.dismiss();
    train::summarise(run.fit, run.times);
    return std::move(run.fit);
  }

  train::EpochReport train_epoch(Run& run, int epoch) {
    const Stopwatch watch;
    train::EpochReport of_epoch;
    of_epoch.epoch = epoch;
    std::int64_t rows = 0;
    run.loader.start(epoch);
    for (std::int64_t s = 0; s < run.steps_per_epoch; ++s) {
      train::StepReport report = train_step(run, s);
      report.epoch = epoch;
      rows += report.rows;
      of_epoch.loss += report.loss * static_cast<double>(report.rows);
      of_epoch.accuracy += report.accuracy * static_cast<double>(report.rows);
      const auto& options = run.options;
      if (options.log != nullptr && rank() == 0) train::log_step(*options.log, report, options.log_every);
      const bool told = replica_.told_to_stop();
      if (options.on_step && options.on_step(report) == train::Control::stop) run.stop_asked = true;
      if (told)
        run.fit.stopped = train::StopReason::callback;
      else if (options.steps > 0 && run.fit.steps >= options.steps)
        run.fit.stopped = train::StopReason::steps_reached;
      if (run.fit.stopped != train::StopReason::finished) break;
    }
    of_epoch.seconds = watch.seconds();
    of_epoch.loss /= static_cast<double>(rows);
    of_epoch.accuracy /= static_cast<double>(rows);
    return of_epoch;
  }

  train::StepReport train_step(Run& run, std::int64_t step_in_epoch) {
    const Stopwatch watch;
    replica_.begin();
    const std::int64_t micros = std::min<std::int64_t>(
        config().accumulate, run.loader.steps_per_epoch() - step_in_epoch * config().accumulate);
    for (std::int64_t m = 0; m < micros; ++m) {
      const data::Batch* batch = run.loader.next();
      replica_.compute(run.binding.view(*batch), batch->global_rows, micros, m + 1 == micros);
    }
    train::StepReport report = replica_.finish(run.stop_asked);
    report.seconds = watch.seconds();
    train::FitReport& fit = run.fit;
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

  void end_epoch(Run& run, train::EpochReport report) {
    const auto& options = run.options;
    const bool together = comm::lockstep(comm());
    if (!together) {  // so far each worker has counted for itself
      double means[] = {report.loss, report.accuracy};
      comm().reduce(std::span<double>(means), comm::mean);
      report.loss = means[0];
      report.accuracy = means[1];
    }
    if (options.validate) report.test = evaluate_on(options.validate);
    if (options.log != nullptr && rank() == 0) train::log_epoch(*options.log, report);
    run.fit.epochs.push_back(report);
    bool stop = options.on_epoch && options.on_epoch(report) == train::Control::stop;
    stop = agree(stop || (run.stop_asked && !together));
    if (run.fit.stopped != train::StopReason::finished) return;
    if (stop)
      run.fit.stopped = train::StopReason::callback;
    else if (options.validate && run.patience.exhausted(report.test))
      run.fit.stopped = train::StopReason::early_stop;
  }

  train::Evaluation evaluate_on(const data::DatasetRef& set) {
    const Stopwatch watch;
    if (comm().role() == comm::Role::server) return {};
    if (workers() > 1 && !exec().statistics().empty()) comm().reduce(exec().statistics(), comm::mean);
    const train::Binding binding(plan, set.fields());
    data::Loader<data::DatasetRef> loader(
        set, {.batch = config().batch, .shard = replica_.shard(), .shuffle = false, .allow_short = true});
    std::vector<double> sums(3 + plan.metrics.size());
    loader.start(0);
    while (const data::Batch* batch = loader.next()) {
      if (batch->rows == 0) continue;
      const exec::Result result = exec().forward(binding.view(*batch), exec::Mode::evaluate);
      sums[0] += result.loss;
      sums[1] += static_cast<double>(result.correct);
      sums[2] += static_cast<double>(batch->rows);
      for (std::size_t m = 0; m < plan.metrics.size(); ++m) sums[3 + m] += exec().metric(static_cast<int>(m));
    }
    comm().reduce(std::span<double>(sums), comm::sum);
    train::Evaluation evaluation;
    evaluation.rows = static_cast<std::int64_t>(sums[2]);
    evaluation.loss = sums[0] / sums[2];
    evaluation.accuracy = sums[1] / sums[2];
    for (std::size_t m = 0; m < plan.metrics.size(); ++m) evaluation.metrics.push_back(sums[3 + m] / sums[2]);
    evaluation.seconds = watch.seconds();
    return evaluation;
  }

  train::Prediction predict_on(const data::DatasetRef& set, int output) {
    if (output < 0 || static_cast<std::size_t>(output) >= plan.outputs.size())
      fail<ConfigError>("predict: the model has ", plan.outputs.size(), " outputs, so there is no output ",
                        output);
    const train::Binding binding(plan, set.fields());
    data::Loader<data::DatasetRef> loader(set, {.batch = most_rows(), .shuffle = false, .allow_short = true});
    train::Prediction prediction;
    prediction.shape =
        plan.nodes[static_cast<std::size_t>(plan.outputs[static_cast<std::size_t>(output)].node)].shape;
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
    comm().reduce(std::span<double>(any), comm::sum);
    return any[0] > 0;
  }

  train::Replica<Rule, Comm, Exec> replica_;
};

// Policies that do not compose: `composes` has said why in its one sentence, so everything else is accepted.
template <class Model, class Rule, class Comm, class Exec>
class Trainer<Model, Rule, Comm, Exec, false> {
 public:
  using Config = train::Config<Rule, Exec>;
  template <class... Arguments>
  explicit Trainer(const Config&, Arguments&&...) {}
  train::FitReport fit(auto&&, const train::FitOptions& = {}) { return {}; }
  train::Evaluation evaluate(auto&&) { return {}; }
  train::Prediction predict(auto&&...) { return {}; }
  train::StepReport step(auto&&...) { return {}; }
};

}  // namespace convoy
