// Trainer: a model, an optimizer, a way to exchange gradients and a place to compute, as one program.
#pragma once

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/initialize.hpp>
#include <convoy/train/arena_optimizer.hpp>
#include <convoy/train/binding.hpp>
#include <convoy/train/composes.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/log.hpp>
#include <convoy/train/matrices.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/speed.hpp>

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
      : config_(config),
        comm_(std::forward<CommArguments>(comm_arguments)...),
        most_rows_(config.batch),
        optimizer_(plan, config.optimizer) {
    if (config.batch < 1) fail<ConfigError>("trainer: the batch must be at least 1, not ", config.batch);
    if (config.accumulate < 1)
      fail<ConfigError>("trainer: accumulate must be at least 1, not ", config.accumulate);
    config.schedule.check();
    take_share();
    build_exec();
    exec::initialize(*exec_, plan, config.seed);
    tensors_ = train::matrices(plan, [&](int p) -> std::int64_t {
      if constexpr (requires { exec_->panel(p); })
        return exec_->panel(p);
      else
        return 1;
    });
    comm_.open(fingerprint(), {.gradients = exec_->gradients(),
                               .parameters = exec_->parameters(),
                               .buckets = plan.buckets,
                               .tensors = tensors_});
    optimizer_.own(comm::updates(comm_, plan.buckets));
    comm_.broadcast(exec_->parameters(), 0);
    comm_.broadcast(exec_->statistics(), 0);
    if (config.accumulate > 1) sum_ = Buffer<float>(exec_->gradients().size());
    if (config.timeline != nullptr) {
      comm_.observe({[](void* timeline, const comm::ExchangeEvent& event) {
                       static_cast<train::Timeline*>(timeline)->record(
                           "bucket", event.bucket, train::Track::exchange, event.begin, event.end);
                     },
                     config.timeline});
      comm_.barrier();
      config.timeline->start();
    }
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  int rank() const { return comm_.rank(); }
  int world() const { return comm_.size(); }
  /// How many ranks compute gradients.
  int workers() const { return comm::workers(comm_); }
  Comm& comm() { return comm_; }
  Exec& exec() { return *exec_; }
  const Config& config() const { return config_; }
  /// The workers' shares of a global batch, summing to 1; empty: all are equal.
  std::span<const double> shares() const { return shares_; }
  /// The most rows that a batch of this rank may have: `batch`, unless shares are unequal.
  int most_rows() const { return most_rows_; }
  std::int64_t steps_done() const { return steps_; }
  std::size_t optimizer_state_bytes() const { return optimizer_.state_bytes(); }

  /// One optimizer step on a batch of this rank's rows, at most `most_rows()`; `global_rows` counts those of
  /// all ranks (0: all have as many).
  train::StepReport step(const exec::BatchView& batch, std::int64_t global_rows = 0) {
    const Stopwatch watch;
    start_step();
    micro_step(batch, global_rows > 0 ? global_rows : std::int64_t{batch.rows} * workers(), 1, true);
    auto report = finish_step();
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
  /// the slowest rank; train::hidden() compares with it. Every worker calls it before it trains, since what a
  /// codec has put aside is spent. Throws ConfigError where servers make an update of all that they get.
  double exchange_seconds(int repetitions = 5) {
    if (comm::has_servers(comm_))
      fail<ConfigError>(
          "trainer: where servers make the updates there is no exchange without one to measure");
    const std::span<float> gradients = exec_->gradients();
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    std::vector<double> seconds;
    for (int i = 0; i < repetitions; ++i) {
      comm_.barrier();
      const Stopwatch watch;
      for (std::size_t b = 0; b < plan.buckets.size(); ++b) comm_.begin(static_cast<int>(b));
      comm_.finish([](Range, float) {});
      seconds.push_back(watch.seconds());
    }
    double slowest[] = {train::median(seconds)};
    comm_.reduce(std::span<double>(slowest), comm::max);
    return slowest[0];
  }

  /// The events of all workers, on rank 0; empty elsewhere.
  std::vector<std::vector<train::TimelineEvent>> gather_timeline() {
    std::vector<std::vector<train::TimelineEvent>> all;
    for (int r = 0; r < workers(); ++r) {
      std::vector<train::TimelineEvent> events;
      if (r == rank() && config_.timeline != nullptr) events = config_.timeline->events();
      auto count = static_cast<i32>(events.size());
      comm_.broadcast(std::span<i32>(&count, 1), r);
      events.resize(static_cast<std::size_t>(count));
      comm_.broadcast(std::span<train::TimelineEvent>(events), r);
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

  train::FitReport fit_on(const data::DatasetRef& set, const train::FitOptions& options) {
    if (options.epochs < 1) fail<ConfigError>("fit: epochs must be at least 1, not ", options.epochs);
    if (options.steps < 0) fail<ConfigError>("fit: steps must not be negative, as ", options.steps, " is");
    served_from_ = steps_;
    comm_.serve(serve_);
    if (comm_.role() == comm::Role::server) return {};  // the workers are done
    const train::Binding binding(plan, set.fields());
    data::Loader<data::DatasetRef> loader(set,
                                          {.batch = config_.batch, .shard = shard(), .seed = config_.seed});
    const std::int64_t steps_per_epoch =
        (loader.steps_per_epoch() + config_.accumulate - 1) / config_.accumulate;

    train::FitReport fit;
    train::Patience patience(options.early_stop);
    double trained_seconds = 0;
    stop_asked_ = false;
    train::StepTimes times;
    const std::int64_t all_steps = steps_per_epoch * options.epochs;
    const auto expected =
        static_cast<std::size_t>(options.steps > 0 ? std::min(options.steps, all_steps) : all_steps);
    fit.step_seconds.reserve(expected);
    times.reserve(expected);
    for (int epoch = 0; epoch < options.epochs && fit.stopped == train::StopReason::finished; ++epoch) {
      const Stopwatch epoch_watch;
      train::EpochReport epoch_report;
      epoch_report.epoch = epoch;
      std::int64_t epoch_rows = 0;
      loader.start(epoch);
      for (std::int64_t s = 0; s < steps_per_epoch; ++s) {
        const Stopwatch watch;
        start_step();
        const std::int64_t micros =
            std::min<std::int64_t>(config_.accumulate, loader.steps_per_epoch() - s * config_.accumulate);
        for (std::int64_t m = 0; m < micros; ++m) {
          const data::Batch* batch = loader.next();
          micro_step(binding.view(*batch), batch->global_rows, micros, m + 1 == micros);
        }
        auto report = finish_step();
        const double seconds = watch.seconds();
        trained_seconds += seconds;
        fit.step_seconds.push_back(seconds);
        times.take(report);
        fit.samples += report.rows;
        fit.loss = report.loss;
        epoch_rows += report.rows;
        epoch_report.loss += report.loss * static_cast<double>(report.rows);
        epoch_report.accuracy += report.accuracy * static_cast<double>(report.rows);
        report.step = fit.steps++;
        report.epoch = epoch;
        report.step_in_epoch = s;
        report.steps_per_epoch = steps_per_epoch;
        report.seconds = seconds;
        report.samples_per_sec = static_cast<double>(fit.samples) / trained_seconds;
        if (options.log != nullptr && rank() == 0) train::log_step(*options.log, report, options.log_every);
        const bool asked = stop_seen_;
        if (options.on_step && options.on_step(report) == train::Control::stop) stop_asked_ = true;
        if (asked)
          fit.stopped = train::StopReason::callback;
        else if (options.steps > 0 && fit.steps >= options.steps)
          fit.stopped = train::StopReason::steps_reached;
        if (fit.stopped != train::StopReason::finished) break;
      }
      epoch_report.seconds = epoch_watch.seconds();
      epoch_report.loss /= static_cast<double>(epoch_rows);
      epoch_report.accuracy /= static_cast<double>(epoch_rows);
      if (!comm::lockstep(comm_)) {  // so far each worker has counted for itself
        double means[] = {epoch_report.loss, epoch_report.accuracy};
        comm_.reduce(std::span<double>(means), comm::mean);
        epoch_report.loss = means[0];
        epoch_report.accuracy = means[1];
      }
      if (options.validate) epoch_report.test = evaluate_on(options.validate);
      if (options.log != nullptr && rank() == 0) train::log_epoch(*options.log, epoch_report);
      fit.epochs.push_back(epoch_report);
      bool stop = options.on_epoch && options.on_epoch(epoch_report) == train::Control::stop;
      stop = agree(stop || (stop_asked_ && !comm::lockstep(comm_)));
      if (fit.stopped == train::StopReason::finished && stop) fit.stopped = train::StopReason::callback;
      if (fit.stopped == train::StopReason::finished && options.validate &&
          patience.exhausted(epoch_report.test))
        fit.stopped = train::StopReason::early_stop;
    }
    comm::dismiss(comm_);
    train::summarise(fit, times);
    return fit;
  }

  train::Evaluation evaluate_on(const data::DatasetRef& set) {
    const Stopwatch watch;
    if (comm_.role() == comm::Role::server) return {};
    if (workers() > 1 && !exec_->statistics().empty()) comm_.reduce(exec_->statistics(), comm::mean);
    const train::Binding binding(plan, set.fields());
    data::Loader<data::DatasetRef> loader(
        set, {.batch = config_.batch, .shard = shard(), .shuffle = false, .allow_short = true});
    std::vector<double> sums(3 + plan.metrics.size());
    loader.start(0);
    while (const data::Batch* batch = loader.next()) {
      if (batch->rows == 0) continue;
      const exec::Result result = exec_->forward(binding.view(*batch), exec::Mode::evaluate);
      sums[0] += result.loss;
      sums[1] += static_cast<double>(result.correct);
      sums[2] += static_cast<double>(batch->rows);
      for (std::size_t m = 0; m < plan.metrics.size(); ++m) sums[3 + m] += exec_->metric(static_cast<int>(m));
    }
    comm_.reduce(std::span<double>(sums), comm::sum);
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
    data::Loader<data::DatasetRef> loader(set, {.batch = most_rows_, .shuffle = false, .allow_short = true});
    train::Prediction prediction;
    prediction.shape =
        plan.nodes[static_cast<std::size_t>(plan.outputs[static_cast<std::size_t>(output)].node)].shape;
    prediction.values.reserve(set.size() * static_cast<std::size_t>(prediction.shape.size()));
    loader.start(0);
    while (const data::Batch* batch = loader.next()) {
      exec_->forward(binding.view(*batch), exec::Mode::evaluate);
      const auto values = exec_->output(output);
      prediction.values.insert(prediction.values.end(), values.begin(), values.end());
    }
    return prediction;
  }

  data::Shard shard() const { return {rank(), workers(), shares_}; }

  /// Which part of a batch this rank computes, where the Comm makes a difference between workers.
  void take_share() {
    if (comm_.role() != comm::Role::worker) return;
    auto measure = [&](double& speed) {
      speed = train::measured_speed<Exec>(plan, config_.batch, config_.exec, comm_);
    };
    shares_ = comm::shares(comm_, measure);
    if (!shares_.empty())
      most_rows_ =
          static_cast<int>(std::max<std::int64_t>(1, shard().most(std::int64_t{config_.batch} * workers())));
  }

  /// Ranks whose Exec orders elements differently (another instruction set) fall back to the canonical order
  /// together.
  void build_exec() {
    exec_.emplace(plan, most_rows_, config_.exec, comm_.memory());
    if constexpr (requires(typename Exec::Options o) { o.canonical; }) {
      // Exact as doubles in halves; equal on all ranks if the largest is also the smallest.
      const auto hash = exec_->layout_fingerprint();
      const auto high = static_cast<double>(hash >> 32), low = static_cast<double>(hash & 0xffffffffu);
      double largest[] = {high, low, -high, -low};
      comm_.reduce(std::span<double>(largest), comm::max);
      if (largest[0] == -largest[2] && largest[1] == -largest[3]) return;
      auto options = config_.exec;
      options.canonical = true;
      exec_.emplace(plan, most_rows_, options, comm_.memory());
    }
  }

  comm::Fingerprint fingerprint() const {
    comm::Fingerprint f;
    f.add("model", plan.fingerprint);
    f.add("world", comm_.size());
    f.add("batch", config_.batch);
    f.add("accumulate", config_.accumulate);
    f.add("optimizer", optimizer_.optimizer().describe());
    f.add("precision", exec_->precision());
    f.add("layout", exec_->layout_fingerprint());
    std::uint64_t hash = 0;
    for (const Range& bucket : plan.buckets)
      hash = hash * 0x100000001b3ull + static_cast<std::uint64_t>(bucket.end);
    f.add("buckets", hash);
    f.add("seed", config_.seed);
    return f;
  }

  void start_step() {
    loss_ = 0;
    rows_ = global_rows_ = correct_ = 0;
    backward_ = exposed_ = updating_ = 0;
    lr_ = lr_at(steps_);
    optimizer_.begin(steps_ + 1, lr_);
  }

  float lr_at(std::int64_t step) const {
    return static_cast<float>(optimizer_.optimizer().lr() * config_.schedule.factor(step, workers()));
  }

  /// What a server does with gradients.
  struct Serve {
    Trainer* trainer;
    void operator()(const comm::ServerPart& part) const {
      Trainer& t = *trainer;
      const auto from = Clock::now();
      t.optimizer_.begin(part.count, t.lr_at(t.served_from_ + part.step));
      t.optimizer_.update(t.exec_->threads(), part.parameters, part.gradients, part.range, part.scale);
      if (t.config_.timeline != nullptr)
        t.config_.timeline->record("update", -1, train::Track::optimizer, from, Clock::now());
    }
  };

  /// Forward and backward; the last micro-step of a step exchanges each bucket as soon as its gradients are
  /// final.
  void micro_step(const exec::BatchView& batch, std::int64_t global_rows, std::int64_t micros, bool last) {
    const auto begin = Clock::now();
    const std::span<float> gradients = exec_->gradients();
    std::size_t bucket = 0;
    const bool first = sum_.size() == 0 || micro_ == 0;
    auto on_final = [&](std::int64_t final) {
      for (; bucket < plan.buckets.size() && plan.buckets[bucket].end <= final; ++bucket) {
        if (!last) continue;
        const Range range = plan.buckets[bucket];
        if (!first)
          for (std::int64_t i = range.begin; i < range.end; ++i)
            gradients[static_cast<std::size_t>(i)] += sum_[static_cast<std::size_t>(i)];
        comm_.begin(static_cast<int>(bucket));
      }
      if (last) comm_.poll();
    };
    auto forward_end = begin;
    if (batch.rows > 0) {
      const exec::Result result = exec_->forward(batch, exec::Mode::train);
      loss_ += result.loss;
      correct_ += result.correct;
      forward_end = Clock::now();
      exec_->backward(1.0 / (static_cast<double>(global_rows) * static_cast<double>(micros)), on_final);
    } else {
      std::fill(gradients.begin(), gradients.end(), 0.0f);
      on_final(static_cast<std::int64_t>(gradients.size()));
    }
    rows_ += batch.rows;
    global_rows_ += global_rows;
    if (!last) {
      for (std::size_t i = 0; i < gradients.size(); ++i)
        sum_[i] = first ? gradients[i] : sum_[i] + gradients[i];
      ++micro_;
    } else {
      micro_ = 0;
    }
    const auto end = Clock::now();
    backward_ = Seconds(end - forward_end).count();
    if (config_.timeline != nullptr) {
      config_.timeline->record("forward", -1, train::Track::compute, begin, forward_end);
      config_.timeline->record("backward", -1, train::Track::compute, forward_end, end);
    }
  }

  /// Completes the exchange, applies the optimizer, and learns of all ranks' losses.
  train::StepReport finish_step() {
    const auto begin = Clock::now();
    comm_.finish([&](Range range, float scale) {
      const auto from = Clock::now();
      optimizer_.update(exec_->threads(), exec_->parameters(), exec_->gradients(), range, scale);
      const auto to = Clock::now();
      updating_ += Seconds(to - from).count();
      if (config_.timeline != nullptr)
        config_.timeline->record("update", -1, train::Track::optimizer, from, to);
    });
    optimizer_.decay_dead(exec_->threads(), exec_->parameters());
    ++steps_;

    const bool sound = std::isfinite(loss_);
    const bool together = comm::lockstep(comm_);
    double sums[] = {sound ? loss_ : 0.0, static_cast<double>(correct_), sound ? 0.0 : 1.0,
                     sound ? 0.0 : rank() + 1.0, stop_asked_ ? 1.0 : 0.0};
    // Workers that do not wait for each other each know of themselves only.
    if (together) comm_.reduce(std::span<double>(sums), comm::sum);
    exposed_ = Seconds(Clock::now() - begin).count() - updating_;
    if (sums[2] == 1)
      fail<ExecError>("rank ", static_cast<int>(sums[3]) - 1, ": the loss of step ", steps_ - 1,
                      " is not a number, so training stops", together ? " on all ranks" : "",
                      " (learning rate ", lr_, ")");
    if (sums[2] > 1)
      fail<ExecError>("the loss of step ", steps_ - 1, " is not a number on ", static_cast<int>(sums[2]),
                      " of ", workers(), " ranks, so training stops (learning rate ", lr_, ")");
    stop_seen_ = together && sums[4] > 0;

    train::StepReport report;
    report.step = steps_ - 1;
    report.rows = global_rows_;
    const auto seen = static_cast<double>(together ? global_rows_ : rows_);
    report.loss = seen > 0 ? sums[0] / seen : 0;
    report.accuracy = seen > 0 ? sums[1] / seen : 0;
    report.lr = lr_;
    report.backward_seconds = backward_;
    report.exposed_comm_seconds = exposed_;
    return report;
  }

  /// Whether any rank says so.
  bool agree(bool mine) {
    double any[] = {mine ? 1.0 : 0.0};
    comm_.reduce(std::span<double>(any), comm::sum);
    return any[0] > 0;
  }

  Config config_;
  Serve serve_{this};
  std::int64_t served_from_ = 0;  // the step at which this fit's servers began
  Comm comm_;
  std::vector<double> shares_;
  int most_rows_;  // of this rank in any batch
  train::ArenaOptimizer<Rule> optimizer_;
  std::optional<Exec> exec_;
  std::vector<comm::Tensor> tensors_;
  Buffer<float> sum_;  // gradients of the micro-steps so far
  int micro_ = 0;
  std::int64_t steps_ = 0;
  double loss_ = 0, backward_ = 0, exposed_ = 0, updating_ = 0;
  std::int64_t rows_ = 0, global_rows_ = 0, correct_ = 0;
  float lr_ = 0;
  bool stop_asked_ = false, stop_seen_ = false;
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
