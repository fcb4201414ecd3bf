// PlanTrainer: trains, evaluates and predicts with a plan that is a value, so that it is compiled once for
// all models of a program.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <iostream>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/exec/counts.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/binding.hpp>
#include <convoy/train/composes.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/log.hpp>
#include <convoy/train/parameters.hpp>
#include <convoy/train/replica.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/state.hpp>
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
/// uses it with the plan chosen, which must outlive it, and with all kernels of the Exec.
template <class Rule, comm::Comm Comm, exec::Exec Exec>
requires optim::Optimizing<Rule>
class PlanTrainer {
 public:
  using Config = train::Config<Rule, Exec>;

  template <class... CommArguments>
  PlanTrainer(const Plan& plan, const Config& config, CommArguments&&... comm_arguments)
      : PlanTrainer(plan, exec::kernels<Exec>, config, std::forward<CommArguments>(comm_arguments)...) {}
  /// The same with the kernels that the plan needs.
  template <class... CommArguments>
  PlanTrainer(const Plan& plan, const exec::Kernels<Exec>& kernels, const Config& config,
              CommArguments&&... comm_arguments)
      : plan_(plan), replica_(plan, kernels, config, std::forward<CommArguments>(comm_arguments)...) {}
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
  /// all ranks (0: all have as many). Where results are late, the report is awaited.
  StepReport step(const exec::BatchView& batch, std::int64_t global_rows = 0) {
    const Stopwatch watch;
    const std::int64_t rows = global_rows > 0 ? global_rows : std::int64_t{batch.rows} * workers();
    replica_.begin(counts_of(batch, rows));
    replica_.compute(
        batch,
        {.seed = config().seed, .epoch = 0, .position = steps_done() * rows + rank() * rows / workers()},
        rows, true);
    auto report = replica_.finish(false);
    while (const auto later = replica_.settle()) report = later;
    replica_.space().synchronize();  // the batch is the caller's again
    report->seconds = watch.seconds();
    return *report;
  }

  /// A loop of one's own: `forward` and `backward` on a batch, perhaps several times, whose gradients add up,
  /// then `step`, which exchanges them and updates. In between this rank's gradients may be read and changed.
  /// `step(batch)` does all of it, and exchanges while backward goes on.
  void forward(const exec::BatchView& batch, std::int64_t global_rows = 0) {
    const std::int64_t rows = global_rows > 0 ? global_rows : std::int64_t{batch.rows} * workers();
    if (!begun_) replica_.begin(counts_of(batch, rows));
    begun_ = true;
    replica_.forward(
        batch,
        {.seed = config().seed, .epoch = 0, .position = steps_done() * rows + rank() * rows / workers()},
        rows);
  }
  /// Gradients of the mean over the rows of all ranks.
  void backward() { replica_.backward(); }
  StepReport step() {
    if (!begun_) fail<ConfigError>("trainer: step needs forward and backward before it");
    begun_ = false;
    const Stopwatch watch;
    replica_.exchange();
    auto report = replica_.finish(false);
    while (const auto later = replica_.settle()) report = later;
    replica_.space().synchronize();  // the batches are the caller's again
    report->seconds = watch.seconds();
    return *report;
  }

  /// The parameters by their PyTorch names, in canonical form.
  ParameterList<Exec> parameters() { return {exec(), plan_}; }

  /// Visits everything that training has become: parameters, statistics, the optimizer's state, counters. All
  /// ranks call it together; see state.hpp.
  template <StateVisitor V>
  void visit_state(V&& visitor, Visit how) {
    train::visit_state(replica_, visitor, how);
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
    bool counts_by_value;
    Patience patience;
    std::vector<double> counts{};
    FitReport fit{};
    StepTimes times{};
    double seconds = 0;  // of all steps
    std::int64_t begun = 0;
    bool stop_asked = false;
  };

  FitReport fit_on(const data::DatasetRef& set, const FitOptions& options) {
    if (options.epochs < 1) fail<ConfigError>("fit: epochs must be at least 1, not ", options.epochs);
    if (options.steps < 0) fail<ConfigError>("fit: steps must not be negative, as ", options.steps, " is");
    replica_.serve();
    if (comm().role() == comm::Role::server) return {};  // the workers are done
    // What the next step counts is known before it begins if its batches are.
    const bool by_value = exec::counts_by_value(plan_);
    data::Loader<data::DatasetRef> loader(
        set, {.batch = config().batch,
              .shard = replica_.shard(),
              .seed = config().seed,
              .held = Exec::latency == 0 ? 1 : (Exec::latency + 2) * config().accumulate,
              .ahead = by_value ? config().accumulate : 0});
    const std::int64_t steps_per_epoch =
        (loader.steps_per_epoch() + config().accumulate - 1) / config().accumulate;
    Run run{options,  Binding(plan_, set.fields()), loader, steps_per_epoch,
            by_value, Patience(options.early_stop)};
    run.counts.resize(plan_.losses.size());
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
    // Reports come as many steps late as results do; those of an epoch's last steps at the end of the epoch.
    const auto take = [&](StepReport report, double seconds) {
      complete(run, report, epoch, seconds);
      rows += report.rows;
      of_epoch.loss += report.loss * static_cast<double>(report.rows);
      of_epoch.accuracy += report.accuracy * static_cast<double>(report.rows);
      const auto& options = run.options;
      if (options.log != nullptr && rank() == 0) log_step(*options.log, report, options.log_every);
      const bool told = replica_.told_to_stop();
      if (options.on_step && options.on_step(report) == Control::stop) run.stop_asked = true;
      if (told) run.fit.stopped = StopReason::callback;
    };
    run.loader.start(epoch);
    if (run.counts_by_value) agree_on_counts(run, 0);
    for (std::int64_t s = 0; s < run.steps_per_epoch; ++s) {
      const Stopwatch of_step;
      const auto report = train_step(run, epoch, s);
      if (report) take(*report, of_step.seconds());
      ++run.begun;
      if (run.fit.stopped == StopReason::finished && run.options.steps > 0 && run.begun >= run.options.steps)
        run.fit.stopped = StopReason::steps_reached;
      if (run.fit.stopped != StopReason::finished) break;
    }
    while (true) {
      const Stopwatch of_step;
      const auto report = replica_.settle();
      if (!report) break;
      const StopReason stopped = run.fit.stopped;
      take(*report, of_step.seconds());
      if (stopped != StopReason::finished) run.fit.stopped = stopped;
    }
    replica_.space().synchronize();  // the loader reads into the batches of this epoch again
    of_epoch.seconds = watch.seconds();
    of_epoch.loss /= static_cast<double>(rows);
    of_epoch.accuracy /= static_cast<double>(rows);
    return of_epoch;
  }

  /// How many micro-steps a step of an epoch has: the last one takes what is left.
  std::int64_t micros_of(const Run& run, std::int64_t step) const {
    return std::min<std::int64_t>(config().accumulate,
                                  run.loader.steps_per_epoch() - step * config().accumulate);
  }

  /// What the losses count in the batches of step `step`, on this rank, where that depends on values; the
  /// batches are the next ones.
  void count_ahead(Run& run, std::int64_t step, std::span<double> counts) {
    std::fill(counts.begin(), counts.end(), 0.0);
    for (int m = 0; m < micros_of(run, step); ++m)
      exec::add_counts_by_value(plan_, run.binding.view(*run.loader.peek(m)), counts);
  }
  void agree_on_counts(Run& run, std::int64_t step) {
    count_ahead(run, step, run.counts);
    comm().all_reduce(std::span<double>(run.counts), comm::sum);
  }

  std::optional<StepReport> train_step(Run& run, int epoch, std::int64_t step) {
    const std::int64_t micros = micros_of(run, step), first = step * config().accumulate;
    const data::BatchPlan& batches = run.loader.plan();
    const std::int64_t rows = batches.global(first + micros - 1).end - batches.global(first).begin;
    for (std::size_t l = 0; l < run.counts.size(); ++l)
      if (const std::int64_t known = exec::known_count(plan_, l, rows); known >= 0)
        run.counts[l] = static_cast<double>(known);
    replica_.begin(run.counts);
    for (std::int64_t m = 0; m < micros; ++m) {
      const data::Batch* batch = run.loader.next();
      const exec::Pass pass{.seed = config().seed, .epoch = epoch, .position = batches.rows(first + m).begin};
      replica_.compute(run.binding.view(*batch), pass, batch->global_rows, m + 1 == micros);
    }
    // The next step's counts travel with the report of this one, unless that comes too late or no other rank
    // waits for it.
    const bool more = run.counts_by_value && step + 1 < run.steps_per_epoch;
    const bool along = more && Exec::latency == 0 && comm().lockstep();
    if (along) count_ahead(run, step + 1, replica_.next_counts());
    const auto report = replica_.finish(run.stop_asked);
    if (along)
      std::copy(replica_.next_counts().begin(), replica_.next_counts().end(), run.counts.begin());
    else if (more)
      agree_on_counts(run, step + 1);
    return report;
  }

  /// What the Replica does not know of a step.
  void complete(Run& run, StepReport& report, int epoch, double seconds) {
    report.epoch = epoch;
    report.seconds = seconds;
    FitReport& fit = run.fit;
    run.seconds += seconds;
    run.times.take(report);
    fit.step_seconds.push_back(seconds);
    fit.samples += report.rows;
    fit.loss = report.loss;
    report.step = fit.steps++;
    report.step_in_epoch = report.step - epoch * run.steps_per_epoch;
    report.steps_per_epoch = run.steps_per_epoch;
    report.samples_per_sec = static_cast<double>(fit.samples) / run.seconds;
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
    replica_.average_statistics();
    const Binding binding(plan_, set.fields());
    data::Loader<data::DatasetRef> loader(set, {.batch = config().batch,
                                                .shard = replica_.shard(),
                                                .shuffle = false,
                                                .held = Exec::latency + 1,
                                                .allow_short = true});
    // Sums of the losses, of the metrics and of what the losses count, then labels that were right, labels,
    // and rows.
    const std::size_t losses = plan_.losses.size(), metrics = plan_.metrics.size();
    std::vector<double> sums(2 * losses + metrics + 3);
    const auto counts = std::span<double>(sums).subspan(losses + metrics, losses);
    double* const rest = sums.data() + 2 * losses + metrics;
    int outstanding = 0;
    const auto take = [&](int most) {
      for (; outstanding > most; --outstanding) {
        const exec::Result result = exec().result();
        for (std::size_t l = 0; l < losses; ++l) sums[l] += result.losses[l];
        for (std::size_t m = 0; m < metrics; ++m) sums[losses + m] += result.metrics[m];
        rest[0] += static_cast<double>(result.correct);
        rest[1] += static_cast<double>(result.labels);
      }
    };
    loader.start(0);
    while (const data::Batch* batch = loader.next()) {
      if (batch->rows == 0) continue;
      const exec::BatchView view = binding.view(*batch);
      exec().forward(view, {.mode = exec::Mode::evaluate, .seed = config().seed});
      ++outstanding;
      exec::add_counts_by_value(plan_, view, counts);
      for (std::size_t l = 0; l < losses; ++l)
        if (const std::int64_t known = exec::known_count(plan_, l, batch->rows); known >= 0)
          counts[l] += static_cast<double>(known);
      rest[2] += static_cast<double>(batch->rows);
      take(Exec::latency);
    }
    take(0);
    comm().all_reduce(std::span<double>(sums), comm::sum);
    Evaluation evaluation;
    evaluation.rows = static_cast<std::int64_t>(rest[2]);
    for (std::size_t l = 0; l < losses; ++l)
      if (counts[l] > 0) evaluation.loss += sums[l] / counts[l];
    evaluation.accuracy = rest[1] > 0 ? rest[0] / rest[1] : 0;
    for (std::size_t m = 0; m < metrics; ++m) evaluation.metrics.push_back(sums[losses + m] / rest[2]);
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
      exec().forward(binding.view(*batch), {.mode = exec::Mode::evaluate, .seed = config().seed});
      const auto values = exec().output(output);
      exec().result();
      prediction.values.insert(prediction.values.end(), values.begin(), values.end());
    }
    return prediction;
  }

  /// What the losses count in a step of one batch on each rank, of `rows` rows on all.
  std::span<const double> counts_of(const exec::BatchView& batch, std::int64_t rows) {
    counts_.assign(plan_.losses.size(), 0.0);
    if (exec::counts_by_value(plan_)) {
      exec::add_counts_by_value(plan_, batch, counts_);
      comm().all_reduce(std::span<double>(counts_), comm::sum);
    }
    for (std::size_t l = 0; l < counts_.size(); ++l)
      if (const std::int64_t known = exec::known_count(plan_, l, rows); known >= 0)
        counts_[l] = static_cast<double>(known);
    return counts_;
  }

  /// Whether any rank says so.
  bool agree(bool mine) {
    double any[] = {mine ? 1.0 : 0.0};
    comm().all_reduce(std::span<double>(any), comm::sum);
    return any[0] > 0;
  }

  const Plan& plan_;
  Replica<Rule, Comm, Exec> replica_;
  std::vector<double> counts_;
  bool begun_ = false;  // a step of a loop of the user's own
};

}  // namespace convoy::train
