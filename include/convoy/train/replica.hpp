// Replica: one rank's copy of the model and the parts of a step: forward, backward, the exchange during
// backward, and the update. It knows batches, not data sets. The code that runs before the first step is in
// opening.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/error.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/memory/working_copy.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/train/arenas.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/counters.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/late_reports.hpp>
#include <convoy/train/phase_times.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/step_sums.hpp>
#include <convoy/train/updates.hpp>

namespace convoy::train {

/// A step is `begin()`, `compute` for each micro-step, `finish`. Server ranks make no steps. After an
/// exception, `discard()` discards the step.
template <class Rule, class Comm, class Exec>
class Replica {
 public:
  using Config = train::Config<Rule, Exec>;
  using Space = typename Exec::Space;

  /// The number of steps by which the Exec's results are late.
  static constexpr int latency = Exec::latency;

  /// Compares what ranks must agree on: if ranks differ, every rank throws a ConfigError that names the rank
  /// and the field. Then gives all ranks the initial parameters of rank 0. `plan` and `kernels` must outlive
  /// the replica; `comm_arguments` construct the Comm.
  template <class... CommArguments>
  Replica(const Plan& plan, const exec::Kernels<Exec>& kernels, const Config& config,
          CommArguments&&... comm_arguments)
      : plan_(plan),
        kernels_(kernels),
        config_(guarded(config)),
        comm_(std::forward<CommArguments>(comm_arguments)...),
        space_(make_space<Space>(comm_)),
        state_space_(make_state_space(space_)),
        most_rows_(config.batch),
        optimizer_(make_optimizer<Rule, Space>(state_space_, plan, config_)),
        reports_(comm_, space_, config_.timeline, plan.losses.size(), most_unreported(),
                 config_.guard.skip_not_finite) {
    static_assert(
        std::is_constructible_v<Comm, CommArguments...>,
        "convoy: the arguments of Trainer after the configuration construct its Comm, which takes no "
        "such arguments: usually a transport, then comm::Options");
    open();
  }
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  int rank() const { return comm_.rank(); }
  int workers() const { return comm_.workers(); }
  Comm& comm() { return comm_; }
  const Comm& comm() const { return comm_; }
  Exec& exec() { return *exec_; }
  Space& space() { return space_; }
  const Config& config() const { return config_; }
  const Plan& plan() const { return plan_; }
  optim::Arena<Rule, Space>& optimizer() { return optimizer_; }
  /// The part of a data set that this rank computes.
  data::Shard shard() const { return {rank(), workers(), shares_}; }
  std::span<const double> shares() const { return shares_; }
  int most_rows() const { return most_rows_; }
  std::span<const Range> buckets() const { return buckets_; }
  Counters& counters() { return counters_; }
  const Counters& counters() const { return counters_; }
  /// Sets the factor on the learning rate, which all ranks call together. Throws ConfigError unless the
  /// factor is finite, at least 0 and the same on all ranks, and if servers make the updates.
  void set_lr_factor(double factor);
  std::size_t optimizer_state_bytes() const { return optimizer_.state_bytes(); }
  std::string_view optimizer_name() const { return optimizer_.optimizer().facts().name; }

  /// Calls `visit(name, text)` for each option on which the ranks must agree: the optimizer and its options,
  /// `optimizer.lr` and so on, then the other fields of the configuration.
  void visit_options(OptionVisit visit) const;

  /// Between `serve` and `dismiss`, servers make the updates. On a server, `serve` returns when the workers
  /// are done. `dismiss` gives all ranks the counters of rank 0.
  void serve() {
    served_from_ = counters_.steps;
    comm_.serve(serve_);
  }
  void dismiss() {
    comm_.dismiss();
    if (!comm_.has_servers()) return;
    exec_->touched({0, plan_.sizes.exchanged});
    counters_ = broadcast_with_servers(comm_, counters_);
  }

  /// Discards all steps that were begun and not reported, with their gradients and results.
  void discard();

  /// Stores the results of the steps under way, so that the Exec's next result is that of the next pass, and
  /// not of training. Throws ConfigError if that pass would overwrite what a backward still needs.
  void keep_results() {
    if (awaits_backward())
      fail<ConfigError>(
          "trainer: evaluate and predict must not come between a forward and its backward, because they "
          "overwrite what backward needs");
    reports_.keep_results(*exec_);
  }

  /// Begins a step. `counts` holds, for each loss, its count over all ranks and micro-steps of the step: the
  /// divisor of its mean. If workers do not run in lockstep, this rank's own count times the number of
  /// workers stands for it.
  void begin(std::span<const double> counts);

  /// Forward and backward. The last micro-step of a step exchanges each bucket as soon as its gradients are
  /// final.
  void compute(const exec::BatchView& batch, const exec::Pass& pass, std::int64_t global_rows, bool last);

  /// Enqueues a forward pass only.
  void enqueue(const exec::BatchView& batch, const exec::Pass& pass) {
    naming_rank([&] { exec_->forward(batch, pass); });
  }

  /// For a user's loop. `forward` and `backward` may be called several times, in turns. Each `backward` adds
  /// its gradients. `exchange` then begins all buckets.
  ///
  /// The losses' counts are those of the batch on all ranks; those of `begin` must be 1. A rank without a row
  /// of the batch computes nothing and contributes 0.
  void forward(const exec::BatchView& batch, const exec::Pass& pass, std::int64_t global_rows,
               std::span<const double> counts);
  void backward();
  /// Whether the step had a forward pass, and each had its backward.
  bool has_gradients() const { return progress_.micros > 0 && !awaits_backward(); }
  bool awaits_backward() const { return progress_.forwards > progress_.micros; }
  /// The rows of all ranks so far in the step under way.
  std::int64_t rows_so_far() const { return now_.global_rows; }
  void exchange() {
    if (!comm_.exchanges()) return;
    for (std::size_t b = 0; b < buckets_.size(); ++b) comm_.begin(static_cast<int>(b), space_.mark());
  }

  /// Completes the exchange and applies the optimizer. `stop`: whether this rank asks to stop.
  void finish(bool stop);

  /// The reports of finished steps.
  LateReports<Comm, Exec>& reports() { return reports_; }
  std::optional<StepReport> take_report() { return reports_.take(*exec_); }

  /// Replaces running statistics by their mean over all workers.
  void average_statistics();

 private:
  friend ServerUpdates<Replica>;
  friend WorkerUpdates<Replica>;

  PhaseTimes<Space>& times() { return reports_.times(); }

  // The optimizer's state is not exchanged, so on the host it is in this rank's private memory.
  using StateSpace = std::conditional_t<std::is_same_v<Space, memory::Host>, memory::Host, Space&>;
  static StateSpace make_state_space(Space& space) {
    if constexpr (std::is_same_v<Space, memory::Host>)
      return memory::Host();
    else
      return space;
  }

  /// With loss scaling, steps that overflow are skipped whatever the configuration says.
  static Config guarded(Config config) {
    config.guard.skip_not_finite = config.guard.skip_not_finite || Exec::may_overflow;
    return config;
  }

  /// The largest number of steps under way.
  int most_unreported() const {
    const int at_once = exec::most_results_at_once<Exec>(config_.exec);
    return std::max(Exec::latency, at_once) + at_once;
  }

  void open();

  /// Throws ConfigError for options that are invalid, or that the optimizer, the exchange and the Exec cannot
  /// combine.
  void check_config() const;

  /// Sets the number of the Exec's threads if it is left to the trainer. All ranks must call it together.
  void choose_threads();

  /// Makes this rank update these ranges; other ranks write the rest.
  void own(const std::vector<Range>& ranges);

  /// Sets the part of a batch that this rank computes, if the Comm has unequal shares.
  void take_share();

  /// Builds the Exec. If the ranks' Execs order elements differently (another instruction set), or the
  /// optimizer updates matrices and the Exec does not store one as a matrix, all ranks fall back to the
  /// canonical order together.
  void build_exec();

  /// Whether every parameter that the optimizer updates as a matrix is stored as one.
  bool stands_in_matrices() const;

  /// Tells the optimizer which tensors are matrices, and opens the Comm on the Exec's arenas.
  void open_exchange();

  /// Gives all workers rank 0's parameters and running statistics.
  void share_initial_values();

  /// Starts the timeline, if any, at the same moment on all workers.
  void start_timeline();

  comm::Fingerprint fingerprint() const;

  float lr_at(std::int64_t step) const {
    return static_cast<float>(optimizer_.optimizer().facts().lr * counters_.lr_factor *
                              config_.schedule.factor(step + counters_.schedule_lead, workers()));
  }

  /// Enqueues the optimizer's work at the beginning of a step, once.
  void prepare() {
    if (!std::exchange(progress_.prepared, true)) optimizer_.prepare();
  }

  /// Adds this rank to an ExecError, such as one for a label out of range, if there are several workers.
  template <class Work>
  void naming_rank(Work&& work) try {
    work();
  } catch (const ExecError& error) {
    if (workers() == 1) throw;
    fail<ExecError>("rank ", rank(), ": ", error.what());
  }

  /// Runs the step in one call of the Exec, if a captured graph may contain its exchange and no part of it is
  /// timed separately. Returns false if it was not run.
  bool run_in_one_call(const exec::BatchView& batch, const exec::Pass& pass);
  /// Begins the exchange of all buckets within [0, final), the elements of the arena whose gradients are
  /// final.
  void begin_buckets(std::int64_t final);
  /// Completes the exchange and updates. Throws ConfigError if the exchange leaves out a part of the update.
  void apply() {
    updated_ = 0;
    comm_.finish(apply_);
    if (!comm_.has_servers() && updated_ != own_elements_) refuse_updates();
    float* const parameters = exec_->parameters().data();
    if (comm_.has_servers())
      optimizer_.decay_dead(counters_.steps + 1, now_.lr, parameters);
    else
      optimizer_.decay_dead(parameters);
  }

  /// Throws the error of an exchange that updated other elements than those of its updates(buckets), or some
  /// of them twice.
  [[noreturn]] void refuse_updates() const;

  /// Sets the losses' factors in the next backward passes.
  void divide_by(std::span<const double> counts) {
    for (std::size_t l = 0; l < scales_.size(); ++l)
      scales_[l] = counts[l] > 0 ? static_cast<float>(1.0 / counts[l]) : 0.0f;
  }

  /// Counts one more result of this step that the Exec will have.
  void note_result() {
    ++now_.results;
    reports_.expect_result();
  }

  /// Runs backward of the last forward pass, if `computed`. In the step's `last` micro-step, begins buckets
  /// as their gradients become final.
  void run_backward(bool computed, bool last);
  /// Adds the gradients of a micro-step to those of the previous ones: into the gradient arena if it is the
  /// `last`, else into `sum_`.
  void accumulate(bool last);

  /// Sums over ranks that batch norms need in the middle of a pass.
  struct Across final : exec::AcrossRanks {
    explicit Across(Comm& c) : comm(c) {}
    void sum(std::span<double> values) override { comm.all_reduce(values, comm::sum); }
    Comm& comm;
  };

  /// The pass with access to all ranks if batch norm is synchronized.
  exec::Pass among_ranks(exec::Pass pass) {
    if (config_.sync_batch_norm && workers() > 1) pass.across = &across_;
    return pass;
  }

  /// The working copy that an update of these parameters also writes. None if the Exec keeps no copy, or if
  /// others write parameters after the update, of which `touched` tells the Exec.
  memory::WorkingCopy working_copy([[maybe_unused]] Range range) {
    if constexpr (optim::Arena<Rule, Space>::writes_copies && requires { exec_->working_copy(range); })
      if (!others_update_) return exec_->working_copy(range);
    return {};
  }

  Decision decide(optim::Verdict& verdict) {
    if (optimizer_.decide(exec_->parameters().data()) == Decision::again) return Decision::again;
    verdict = optimizer_.verdict();
    return verdict.apply != 0 ? Decision::apply : Decision::skip;
  }

  // The progress of the step under way; reset between steps.
  struct Progress {
    bool prepared = false;           // optimizer_.prepare() was called, or the servers call it
    int micros = 0;                  // micro-steps whose gradients have been added up
    int forwards = 0;                // forward passes in a user's loop
    bool has_rows = false;           // whether the last of them had a row on this rank
    std::size_t begun = 0;           // buckets whose exchange has begun
    bool exchange_enqueued = false;  // in run_in_one_call: this rank enqueued the exchange; else a replayed
                                     // graph contains it
    bool applied = false;            // the exchange and the update are enqueued
  };

  const Plan& plan_;
  const exec::Kernels<Exec>& kernels_;
  Config config_;
  ServerUpdates<Replica> serve_{this};
  WorkerUpdates<Replica> apply_{this};
  bool serves_anew_ = true;       // the next part to arrive on a server begins a new decision
  std::int64_t served_from_ = 0;  // the step at which the servers began
  Comm comm_;
  Across across_{comm_};
  Space space_;
  StateSpace state_space_;
  std::vector<double> shares_;
  int most_rows_;  // of any batch on this rank
  optim::Arena<Rule, Space> optimizer_;
  std::vector<Range> buckets_;
  std::int64_t own_elements_ = 0;  // how many elements the exchange updates on this rank in each step
  std::int64_t updated_ = 0;       // how many of them it has updated in the call of finish under way
  bool others_update_ = false;     // servers or other ranks write parameters of this rank
  Range dead_;                     // the parameters that are only decayed
  std::optional<Exec> exec_;
  std::vector<comm::Matrix> matrices_;
  std::vector<Range> whole_;         // the ranges that the optimizer updates as a whole
  memory::Array<float, Space> sum_;  // gradients of the micro-steps so far
  Counters counters_;
  Progress progress_;
  std::vector<float> scales_;  // of each loss in this step
  UnreportedStep now_;         // the step under way
  LateReports<Comm, Exec> reports_;
  // The last members are destroyed first. They end the exchange and the work of the space, which may access
  // the members above.
  memory::AllDone<Space> done_{space_};
  comm::Closing<Comm> closing_{comm_};
};

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::discard() {
  reports_.discard(*exec_);
  now_ = {};
  progress_ = {};
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::begin(std::span<const double> counts) {
  std::copy(counts.begin(), counts.end(), reports_.counts_of(counters_.steps));
  divide_by(counts);
  now_.lr = lr_at(counters_.steps);
  progress_.prepared = comm_.has_servers();
  if (!progress_.prepared) optimizer_.set_step(counters_.steps + 1, now_.lr);
}

template <class Rule, class Comm, class Exec>
bool Replica<Rule, Comm, Exec>::run_in_one_call([[maybe_unused]] const exec::BatchView& batch,
                                                [[maybe_unused]] const exec::Pass& pass) {
  if constexpr (exec::RepeatsSteps<Exec>) {
    const bool exchanges = comm_.exchanges();
    if (batch.rows == 0 || progress_.micros > 0 || config_.timeline != nullptr) return false;
    if (exchanges && !comm_.repeats()) return false;
    std::span<const optim::Verdict> verdict;
    if (optimizer_.decides() && optimizer_.knows_norm()) verdict = {optimizer_.verdict_there(), 1};
    // The Exec calls these when it enqueues the step, possibly after this function has returned. It does not
    // call them when it replays a captured step.
    const auto before = [this] { optimizer_.prepare(); };
    const auto on_final = [this, exchanges](std::int64_t final) {
      if (exchanges && config_.overlap) begin_buckets(final);
    };
    const auto after = [this] {
      apply();
      progress_.exchange_enqueued = true;
    };
    naming_rank([&] {
      exec_->step(batch, among_ranks(pass), scales_, exchanges, before, on_final, after,
                  std::as_bytes(verdict));
    });
    if (exchanges && !progress_.exchange_enqueued) comm_.repeat();
    progress_.prepared = progress_.applied = true;
    now_.norm_follows = false;
    reports_.set_together(batch.maker != nullptr && !exchanges ? exec_->steps_at_once() : 1);
    return true;
  } else {
    return false;
  }
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::compute(const exec::BatchView& batch, const exec::Pass& pass,
                                        std::int64_t global_rows, bool last) {
  now_.rows += batch.rows;
  now_.global_rows += global_rows;
  if (last && run_in_one_call(batch, pass)) return note_result();
  reports_.set_together(1);
  prepare();
  times().lap(Phase::other);
  if (batch.rows > 0) {
    enqueue(batch, among_ranks(pass));
    note_result();
  }
  times().lap(Phase::forward);
  run_backward(batch.rows > 0, last);
  times().lap(Phase::backward);
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::forward(const exec::BatchView& batch, const exec::Pass& pass,
                                        std::int64_t global_rows, std::span<const double> counts) {
  prepare();
  divide_by(counts);
  progress_.has_rows = batch.rows > 0;
  times().lap(Phase::other);
  if (progress_.has_rows) {
    enqueue(batch, among_ranks(pass));
    note_result();
    now_.divisors.insert(now_.divisors.end(), counts.begin(), counts.end());
  }
  times().lap(Phase::forward);
  now_.batches = ++progress_.forwards;
  now_.rows += batch.rows;
  now_.global_rows += global_rows;
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::backward() {
  if (!awaits_backward()) fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
  const std::span<float> gradients = exec_->gradients();
  times().lap(Phase::other);
  if (progress_.micros > 0) {
    if (sum_.size() == 0) sum_ = memory::Array<float, Space>(space_, gradients.size());
    space_.copy(sum_.data(), gradients.data(), gradients.size_bytes());
  }
  if (progress_.has_rows)
    exec_->backward(scales_, exec::InOnePiece{});
  else
    space_.fill(gradients.data(), static_cast<std::int64_t>(gradients.size()), 0.0f);
  if (progress_.micros++ > 0)
    space_.add(gradients.data(), sum_.data(), static_cast<std::int64_t>(gradients.size()));
  times().lap(Phase::backward);
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::finish(bool stop) {
  times().lap(Phase::other);
  if (!progress_.applied) apply();
  if (others_update_) exec_->touched({0, plan_.sizes.exchanged});
  if (now_.norm_follows) reports_.expect_norm(optimizer_.verdict_there());
  if (!dead_.empty()) exec_->touched(dead_);
  times().lap(Phase::exchange);
  times().end_step();
  now_.step = counters_.steps++;
  now_.stop = stop;
  reports_.add(std::exchange(now_, {}));
  progress_ = {};
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::begin_buckets(std::int64_t final) {
  for (std::size_t& b = progress_.begun; b < buckets_.size() && buckets_[b].end <= final; ++b) {
    const Range range = buckets_[b];
    if (progress_.micros > 0)
      space_.add(exec_->gradients().data() + range.begin, sum_.data() + range.begin, range.size());
    comm_.begin(static_cast<int>(b), space_.mark());
  }
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::run_backward(bool computed, bool last) {
  const std::span<float> gradients = exec_->gradients();
  const auto size = static_cast<std::int64_t>(gradients.size());
  const bool exchanges = last && comm_.exchanges(), served = comm_.has_servers();
  std::int64_t final_before = 0;
  const auto on_final = [&](std::int64_t final) {
    // A server may write a bucket's parameters once it has their gradients. Backward still reads the
    // parameters of the current layer until its next call.
    if (config_.overlap) begin_buckets(served ? final_before : final);
    final_before = final;
    comm_.poll();
  };
  if (!computed)
    space_.fill(gradients.data(), size, 0.0f);
  else if (exchanges)
    exec_->backward(scales_, on_final);
  else
    exec_->backward(scales_, exec::InOnePiece{});
  if (exchanges)
    begin_buckets(size);  // adds the gradients of earlier micro-steps per bucket
  else
    accumulate(last);
  ++progress_.micros;
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::accumulate(bool last) {
  const std::span<float> gradients = exec_->gradients();
  const auto size = static_cast<std::int64_t>(gradients.size());
  const bool first = progress_.micros == 0;
  if (last && !first) space_.add(gradients.data(), sum_.data(), size);
  if (!last && first) space_.copy(sum_.data(), gradients.data(), gradients.size_bytes());
  if (!last && !first) space_.add(sum_.data(), gradients.data(), size);
}

}  // namespace convoy::train
