// FitLoop: the training loop of a fit, over the epochs of a data set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
#include <convoy/core/range.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/data/resident.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/exec/counts.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/train/counters.hpp>
#include <convoy/train/evaluator.hpp>
#include <convoy/train/feed.hpp>
#include <convoy/train/fit.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/keeper.hpp>
#include <convoy/train/log.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/user_loop.hpp>

namespace convoy::train {

/// The loop of `fit`. All ranks call the same members together.
template <class Replica>
class FitLoop {
 public:
  /// `user_loop` is the other loop over the same replica, whose unfinished step a fit discards.
  FitLoop(Replica& replica, Evaluator<Replica>& evaluator, UserLoop<Replica>& user_loop)
      : replica_(replica), plan_(replica.plan()), evaluator_(evaluator), user_loop_(user_loop) {}
  FitLoop(const FitLoop&) = delete;
  FitLoop& operator=(const FitLoop&) = delete;

  FitReport fit(const data::DatasetRef& set, const FitOptions& options);

 private:
  /// What a worker reads during a fit.
  struct Feeds {
    data::BatchPlan batches;
    std::unique_ptr<Feed> training, validation;
  };

  bool serves_only() const { return replica_.comm().role() == comm::Role::server; }
  data::BatchPlan batches_of(const data::DatasetRef& set) const {
    data::Shard shard = replica_.shard();
    shard.unsharded = replica_.config().unsharded;
    return {set.size(), replica_.config().batch, shard};
  }

  // Before the first epoch.
  /// Checks the data sets and options, and opens the feeds; none on a server. A refused fit leaves no rank
  /// behind, least of all a server, so that another one can be made.
  std::optional<Feeds> open_feeds(const data::DatasetRef& set, const FitOptions& options);
  std::unique_ptr<Feed> training_feed(const data::DatasetRef& set, const FitOptions& options,
                                      const data::BatchPlan& batches);
  /// Throws ConfigError if batch norm is synchronized over ranks and a rank would have no rows in a step.
  void expect_rows_everywhere(const data::BatchPlan& batches) const;
  /// The position at which the fit begins, to which the keeper restores the trainer.
  FitPosition resume(const data::DatasetRef& set, Keeper& keeper);
  /// Moves the learning-rate schedule to the steps of the present size that make up a resumed fit so far, if
  /// those before had another size (another world or batch).
  void go_on_with_schedule(const data::DatasetRef& set, const FitPosition& at);
  FitRun begin_run(const FitOptions& options, Feeds& feeds, const FitPosition& at) const;

  // An epoch.
  EpochReport train_epoch(FitRun& run);
  void train_step(FitRun& run);
  /// Validates, calls back, decides whether the fit stops, and goes on to the next epoch.
  void end_epoch(FitRun& run, EpochReport report);
  /// Makes the report of an epoch the mean over all workers, if until now each has only its own counts.
  void average_over_workers(const FitRun& run, EpochReport& report);
  Evaluation validate(FitRun& run);
  /// Whether `mine` is true on any rank.
  bool agree(bool mine);

  // Reports of steps.
  /// Takes `count` reports, among which the time not yet assigned to a report is divided.
  void take_reports(FitRun& run, int count);
  void take(FitRun& run, StepReport report, double seconds);
  /// Takes the reports of all steps under way, which are delayed as results are.
  void report_pending_steps(FitRun& run);

  // The counts of the losses, which divide their sums.
  /// Writes this rank's counts for step `step`, whose batches must be the next ones; only counts that depend
  /// on label values.
  void count_ahead(FitRun& run, std::int64_t step, std::span<double> counts);
  /// The same, as the divisors of the step: summed over all ranks, as far as sum_counts does.
  void set_counts(FitRun& run, std::int64_t step);
  /// The rows of the step that begins with batch `first` and has `micros` batches, counted in the same way.
  std::int64_t rows_of_step(const FitRun& run, std::int64_t first, std::int64_t micros) const;

  // Servers and the keeper.
  /// The fit of a server.
  void serve(const FitOptions& options);
  /// Dismisses the servers. Rank 0 tells all ranks the position of the fit and whether it continues; returns
  /// the latter.
  bool dismiss_servers(bool goes_on, FitPosition& at);
  /// Keeps the state of the fit at position `at`.
  void keep(const FitRun& run, FitPosition at);

  Replica& replica_;
  const Plan& plan_;
  Evaluator<Replica>& evaluator_;  // for validation
  UserLoop<Replica>& user_loop_;
};

template <class Replica>
FitReport FitLoop<Replica>::fit(const data::DatasetRef& set, const FitOptions& options) {
  const typename UserLoop<Replica>::Suspended suspended(user_loop_);
  expect_same(replica_.comm(), comm::Fingerprint().add("fit", options));
  std::optional<Feeds> feeds = open_feeds(set, options);
  user_loop_.discard_step();
  FitPosition at;
  if (options.keeper != nullptr) at = resume(set, *options.keeper);
  if (serves_only()) {
    serve(options);
    return {};
  }
  const memory::AllDone done(replica_.space());
  replica_.serve();
  FitRun run = begin_run(options, *feeds, at);
  // An epoch that a resumed fit has begun may have all its steps and lack its evaluation.
  const bool begun = at.next_row > 0 && at.epoch < options.epochs;
  for (bool more = begun || run.goes_on(); more; more = run.goes_on()) end_epoch(run, train_epoch(run));
  dismiss_servers(false, at);
  if (options.keeper != nullptr) options.keeper->finish();
  summarize(run.fit, run.times);
  return std::move(run.fit);
}

template <class Replica>
auto FitLoop<Replica>::open_feeds(const data::DatasetRef& set, const FitOptions& options)
    -> std::optional<Feeds> {
  std::optional<Feeds> feeds;
  all_or_none(replica_.comm(), "fit", [&] {
    if (!serves_only()) {  // first, because workers exchange these
      expect_same_rows(replica_.comm(), set.size(), "training set");
      expect_same_rows(replica_.comm(), options.validate ? options.validate.size() : 0, "validation set");
    }
    options.check(plan_);
    if (serves_only()) return;
    feeds.emplace(Feeds{batches_of(set), nullptr, nullptr});
    expect_rows_everywhere(feeds->batches);
    feeds->training = training_feed(set, options, feeds->batches);
    feeds->validation = evaluator_.feed_for(options);
  });
  return feeds;
}

template <class Replica>
FitPosition FitLoop<Replica>::resume(const data::DatasetRef& set, Keeper& keeper) {
  const FitPosition at = keeper.resume(serves_only() ? 0 : static_cast<std::int64_t>(set.size()));
  go_on_with_schedule(set, at);
  return at;
}

template <class Replica>
FitRun FitLoop<Replica>::begin_run(const FitOptions& options, Feeds& feeds, const FitPosition& at) const {
  const int accumulate = replica_.config().accumulate;
  FitRun run{.options = options,
             .feed = *feeds.training,
             .validation = feeds.validation.get(),
             .batches = feeds.batches,
             .accumulate = accumulate,
             .steps_per_epoch = steps_of(feeds.batches, accumulate),
             // A user's loop, whose position this may be, begins no epochs.
             .earlier_epochs = std::max<std::int64_t>(
                 0, replica_.counters().epochs_begun - at.epoch - (at.next_row > 0 ? 1 : 0)),
             .counts_by_value = exec::counts_by_value(plan_),
             .patience = Patience(options.early_stop),
             .counts = std::vector<double>(plan_.losses.size())};
  run.go_on_from(at);
  return run;
}

template <class Replica>
void FitLoop<Replica>::go_on_with_schedule(const data::DatasetRef& set, const FitPosition& at) {
  if (at.steps == 0) return;
  std::int64_t steps = -1;  // servers need not have the data set
  if (replica_.comm().role() == comm::Role::worker) {
    const int accumulate = replica_.config().accumulate;
    const data::BatchPlan batches = batches_of(set);
    steps = at.epoch * steps_of(batches, accumulate) + step_of_row(batches, accumulate, at.next_row);
  }
  replica_.counters().schedule_lead += common_number(replica_.comm(), steps) - at.steps;
}

template <class Replica>
std::unique_ptr<Feed> FitLoop<Replica>::training_feed(const data::DatasetRef& set, const FitOptions& options,
                                                      const data::BatchPlan& batches) {
  using Space = typename Replica::Space;
  using Exec = std::remove_reference_t<decltype(replica_.exec())>;
  const auto& config = replica_.config();
  if (options.resident) {
    if constexpr (exec::TakesMadeRows<Exec>) {
      static_assert(
          data::HoldsDataSets<Space>,
          "convoy: fit can hold data sets in the memory of this Exec (FitOptions::resident): include "
          "<convoy/data/resident.cuh>");
      return std::make_unique<ResidentFeed<Space>>(plan_, set, batches, config.seed, replica_.space());
    } else {
      fail<ConfigError>("fit: a resident data set needs exec::Cuda, but this trainer computes with exec::",
                        Exec::name);
    }
  }
  // Of one step, which ends with the epoch.
  const auto micros = static_cast<int>(std::min<std::int64_t>(config.accumulate, batches.steps()));
  return std::make_unique<LoaderFeed>(
      plan_, set,
      data::LoaderOptions{.batch = config.batch,
                          .shard = batches.shard(),
                          .seed = config.seed,
                          .readers = options.readers,
                          .held = Replica::latency == 0 ? 1 : (Replica::latency + 2) * micros,
                          .ahead = exec::counts_by_value(plan_) ? micros : 0});
}

template <class Replica>
void FitLoop<Replica>::expect_rows_everywhere(const data::BatchPlan& batches) const {
  if (!replica_.config().sync_batch_norm) return;
  // Only the last two steps of an epoch may not be full. The one before them stands for all others.
  for (std::int64_t step = std::max<std::int64_t>(0, batches.steps() - 3); step < batches.steps(); ++step)
    for (int r = 0; r < batches.shard().world; ++r)
      if (batches.rows(step, r).empty())
        fail<ConfigError>(
            "fit: rank ", r, " has none of the ", batches.global(step).size(), " rows of step ", step,
            " of an epoch, but sync_batch_norm needs rows on every rank; choose another batch size");
}

template <class Replica>
EpochReport FitLoop<Replica>::train_epoch(FitRun& run) {
  const Stopwatch watch;
  const std::int64_t steps_before = run.at.steps;
  run.feed.start(run.earlier_epochs + run.at.epoch,
                 std::min(run.next_step * run.accumulate, run.batches.steps()));
  if (run.counts_by_value && run.next_step < run.steps_per_epoch) set_counts(run, run.next_step);
  while (run.next_step < run.steps_per_epoch && run.fit.stopped == StopReason::finished) {
    train_step(run);
    run.advance();
    if (run.fit.stopped == StopReason::finished && run.options.steps > 0 && run.at.steps >= run.options.steps)
      run.fit.stopped = StopReason::steps_reached;
    if (run.fit.stopped == StopReason::finished && run.next_step < run.steps_per_epoch &&
        run.options.keeper != nullptr && run.options.keeper->due(run.at.steps, false)) {
      report_pending_steps(run);
      keep(run, run.at);
    }
  }
  report_pending_steps(run);
  // Without a step of this fit's, the rows of the epoch may be unknown, as behind a user's loop.
  if (run.at.rows == 0 && run.at.steps > steps_before && run.next_step == run.steps_per_epoch)
    fail<ExecError>("the loss of every step of epoch ", run.at.epoch, " is not finite, so training stops");
  // Before the evaluation: it may be interrupted, and it changes the running statistics. A fit that resumes
  // from here evaluates first or, if it has stopped within an epoch, goes on with the epoch.
  const bool last = run.fit.stopped != StopReason::finished || run.at.epoch + 1 == run.options.epochs;
  if (run.options.keeper != nullptr && (last || run.options.keeper->due(run.at.steps, true)))
    keep(run, run.at);
  EpochReport of_epoch;
  of_epoch.epoch = static_cast<int>(run.at.epoch);
  of_epoch.seconds = watch.seconds();
  of_epoch.loss = run.at.loss / static_cast<double>(run.at.rows);
  of_epoch.accuracy = accuracy_of(static_cast<double>(run.at.correct), static_cast<double>(run.at.labels));
  return of_epoch;
}

template <class Replica>
void FitLoop<Replica>::take(FitRun& run, StepReport report, double seconds) {
  run.complete(report, seconds);
  if (is_finite(report.loss)) {  // another loss gets here only if such steps are skipped
    run.at.rows += report.rows;
    run.at.loss += report.loss * static_cast<double>(report.rows);
    run.at.correct += std::llround(report.accuracy.value_or(0) * static_cast<double>(report.labels));
    run.at.labels += report.labels;
  }
  const auto& options = run.options;
  if (options.log != nullptr && replica_.rank() == 0)
    log_step(*options.log, report, options.log_every, options.per_row, options.unit);
  const bool told = replica_.reports().told_to_stop();
  if (options.on_step && options.on_step(report) == Control::stop) run.stop_asked = true;
  if (told && run.fit.stopped == StopReason::finished) run.fit.stopped = StopReason::callback;
}

template <class Replica>
void FitLoop<Replica>::take_reports(FitRun& run, int count) {
  for (; count > 0; --count) {
    const auto report = replica_.take_report();
    run.unreported_seconds += run.watch.seconds();
    const double seconds = run.unreported_seconds / count;
    run.unreported_seconds -= seconds;
    take(run, *report, seconds);
    run.watch.restart();  // the time of user callbacks is not part of a step
  }
}

template <class Replica>
void FitLoop<Replica>::report_pending_steps(FitRun& run) {
  run.watch.restart();
  take_reports(run, replica_.reports().unreported());
  replica_.space().synchronize();  // the loader may now overwrite the batches of these steps
}

template <class Replica>
void FitLoop<Replica>::keep(const FitRun& run, FitPosition at) {
  at.samples = run.batches.samples();
  dismiss_servers(true, at);
  run.options.keeper->keep(at);
  replica_.serve();
}

template <class Replica>
bool FitLoop<Replica>::dismiss_servers(bool goes_on, FitPosition& at) {
  replica_.dismiss();
  if (!replica_.comm().has_servers()) return goes_on;
  struct State {
    std::int64_t goes_on;
    FitPosition at;
  };
  static_assert(sizeof(State) == 12 * sizeof(double));  // no padding
  const auto state = broadcast_with_servers(replica_.comm(), State{goes_on ? 1 : 0, at});
  at = state.at;
  return state.goes_on != 0;
}

template <class Replica>
void FitLoop<Replica>::serve(const FitOptions& options) {
  FitPosition at;
  for (replica_.serve(); dismiss_servers(false, at); replica_.serve()) options.keeper->keep(at);
  if (options.keeper != nullptr) options.keeper->finish();
}

template <class Replica>
void FitLoop<Replica>::count_ahead(FitRun& run, std::int64_t step, std::span<double> counts) {
  std::fill(counts.begin(), counts.end(), 0.0);
  for (int m = 0; m < run.micros_of(step); ++m) exec::add_counts_by_value(plan_, run.feed.ahead(m), counts);
}

template <class Replica>
void FitLoop<Replica>::set_counts(FitRun& run, std::int64_t step) {
  count_ahead(run, step, run.counts);
  sum_counts(replica_.comm(), run.counts);
}

template <class Replica>
std::int64_t FitLoop<Replica>::rows_of_step(const FitRun& run, std::int64_t first,
                                            std::int64_t micros) const {
  const data::BatchPlan& batches = run.batches;
  if (replica_.comm().lockstep()) return batches.global(first + micros - 1).end - batches.global(first).begin;
  std::int64_t own = 0;
  for (std::int64_t m = 0; m < micros; ++m) own += batches.rows(first + m).size();
  return own * replica_.workers();
}

template <class Replica>
void FitLoop<Replica>::train_step(FitRun& run) {
  run.watch.restart();
  const std::int64_t step = run.next_step, epoch = run.earlier_epochs + run.at.epoch;
  const std::int64_t micros = run.micros_of(step), first = step * run.accumulate;
  const data::BatchPlan& batches = run.batches;
  const std::int64_t rows = rows_of_step(run, first, micros);
  exec::set_known_counts(plan_, rows, run.counts);
  replica_.begin(run.counts);
  for (std::int64_t m = 0; m < micros; ++m) {
    const exec::BatchView batch = run.feed.next();
    const exec::Pass pass{
        .seed = replica_.config().seed, .epoch = epoch, .position = batches.rows(first + m).begin};
    replica_.compute(batch, pass, batches.global(first + m).size(), m + 1 == micros);
  }
  // The next step's counts are summed together with this step's report, unless the report is late or is not
  // summed.
  const bool more = run.counts_by_value && step + 1 < run.steps_per_epoch;
  const bool along = more && Replica::latency == 0 && replica_.comm().lockstep();
  // The exchange has begun, so an error of the data set is rethrown only after the step.
  std::exception_ptr failure;
  try {
    if (along) count_ahead(run, step + 1, replica_.reports().next_counts());
  } catch (...) {
    failure = std::current_exception();
  }
  replica_.finish(run.stop_asked);
  replica_.counters().epochs_begun = epoch + 1;
  take_reports(run, replica_.reports().due());
  if (failure) std::rethrow_exception(failure);
  const std::span<const double> next_counts = replica_.reports().next_counts();
  if (along)
    std::copy(next_counts.begin(), next_counts.end(), run.counts.begin());
  else if (more)
    set_counts(run, step + 1);
  run.unreported_seconds += run.watch.seconds();
}

template <class Replica>
void FitLoop<Replica>::end_epoch(FitRun& run, EpochReport report) {
  const auto& options = run.options;
  FitPosition& at = run.at;
  const bool together = replica_.comm().lockstep();
  if (!together) average_over_workers(run, report);
  if (options.validate) report.test = validate(run);
  if (options.log != nullptr && replica_.rank() == 0) log_epoch(*options.log, report);
  run.fit.epochs.push_back(report);
  bool stop = options.on_epoch && options.on_epoch(report) == Control::stop;
  stop = agree(stop || (run.stop_asked && !together));
  const bool ended = run.next_step == run.steps_per_epoch;
  const bool exhausted = options.validate && ended && run.patience.exhausted(report.test, at);
  const bool stops = run.fit.stopped == StopReason::finished && (stop || exhausted);
  if (stops) run.fit.stopped = stop ? StopReason::callback : StopReason::early_stop;
  if (!ended) return;
  run.next_step = 0;
  at = {.epoch = at.epoch + 1,
        .steps = at.steps,
        .best = at.best,
        .waited = at.waited,
        .accuracy = at.accuracy};
  if (stops && options.keeper != nullptr) keep(run, at);
}

template <class Replica>
void FitLoop<Replica>::average_over_workers(const FitRun& run, EpochReport& report) {
  double means[] = {report.loss, static_cast<double>(run.at.correct), static_cast<double>(run.at.labels)};
  replica_.comm().all_reduce(std::span<double>(means), comm::mean);
  report.loss = means[0];
  report.accuracy = accuracy_of(means[1], means[2]);
}

template <class Replica>
Evaluation FitLoop<Replica>::validate(FitRun& run) {
  const data::DatasetRef& set = run.options.validate;
  return run.validation != nullptr ? evaluator_.evaluate(*run.validation, evaluator_.batches_of(set))
                                   : evaluator_.evaluate(set);
}

template <class Replica>
bool FitLoop<Replica>::agree(bool mine) {
  double any[] = {mine ? 1.0 : 0.0};
  replica_.comm().all_reduce(std::span<double>(any), comm::sum);
  return any[0] > 0;
}

}  // namespace convoy::train
