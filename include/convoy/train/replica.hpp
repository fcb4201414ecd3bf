// Replica: one rank's copy of the model, with what makes a step of it: forward, backward, the exchange beside
// backward, and the update. It knows batches, not data sets. What it does before its first step is in
// opening.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/error.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/memory/late.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/memory/working_copy.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/train/arenas.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/results.hpp>
#include <convoy/train/step_sums.hpp>
#include <convoy/train/timeline.hpp>
#include <convoy/train/updates.hpp>

namespace convoy::train {

/// A step is `begin()`, `compute` for each micro-step, `finish`. Ranks that serve parameters make none. A
/// step that an exception ended is as good as none once `abandon()` was called.
template <class Rule, class Comm, class Exec>
class Replica {
 public:
  using Config = train::Config<Rule, Exec>;
  using Space = typename Exec::Space;

  /// Steps by which the Exec's results are late.
  static constexpr int latency = Exec::latency;

  /// Compares what ranks must agree on (CommError names the rank and the field that differ) and gives all
  /// ranks the initial parameters of rank 0. `plan` and `kernels` outlive it; `comm_arguments` construct the
  /// Comm.
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
        sums_(plan.losses.size(), most_unreported()),
        verdicts_(space_, static_cast<std::size_t>(most_unreported())) {
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
  /// Which part of a data set this rank computes.
  data::Shard shard() const { return {rank(), workers(), shares_}; }
  std::span<const double> shares() const { return shares_; }
  int most_rows() const { return most_rows_; }
  std::span<const Range> buckets() const { return buckets_; }
  std::int64_t steps_done() const { return steps_; }
  void set_steps_done(std::int64_t steps) { steps_ = steps; }
  std::size_t optimizer_state_bytes() const { return optimizer_.state_bytes(); }
  std::string_view optimizer_name() const { return optimizer_.optimizer().facts().name; }

  /// Between these two, servers make the updates; a server returns when the workers are done.
  void serve() {
    served_from_ = steps_;
    comm_.serve(serve_);
  }
  void dismiss() {
    comm_.dismiss();
    if (comm_.has_servers()) exec_->touched({0, plan_.sizes.exchanged});
  }

  /// Forgets the steps that were begun and not reported: their gradients and their results.
  void abandon();

  /// Keeps the results of the steps under way, so that the Exec's next one is that of another pass.
  void keep_results() { results_.keep(*exec_); }

  /// Begins a step. `counts` is, for each loss, what all ranks and all micro-steps of the step count: the
  /// divisors of its mean.
  void begin(std::span<const double> counts);

  /// Forward and backward; the last micro-step of a step exchanges each bucket as soon as its gradients are
  /// final.
  void compute(const exec::BatchView& batch, const exec::Pass& pass, std::int64_t global_rows, bool last);

  /// Enqueues a forward pass, and does no more.
  void enqueue(const exec::BatchView& batch, const exec::Pass& pass) {
    naming_rank([&] { exec_->forward(batch, pass); });
  }

  /// For a loop of the user's own: forward alone, backward alone, whose gradients add up until `exchange`
  /// hands all of them over.
  void forward(const exec::BatchView& batch, const exec::Pass& pass, std::int64_t global_rows);
  void backward();
  /// Whether each forward pass of the step has had its backward, and there was one.
  bool has_gradients() const { return progress_.micros > 0 && progress_.micros == now_.results; }
  /// Of all ranks, in the step under way.
  std::int64_t rows_so_far() const { return now_.global_rows; }
  void exchange() {
    if (!comm_.exchanges()) return;
    for (std::size_t b = 0; b < buckets_.size(); ++b) comm_.begin(static_cast<int>(b), space_.mark());
  }

  /// Completes the exchange and applies the optimizer. `stop`: this rank asks to stop.
  void finish(bool stop);

  /// Steps that were finished and not reported.
  int unreported() const { return static_cast<int>(pending_.size()); }
  /// How many of their reports it is time to take, so that nobody waits for the Exec: as many as its results
  /// come together, of steps at least as long ago as its results are late. Of results that come together the
  /// next ones are under way by then.
  int due() const {
    const int late = unreported() - (together_ > 1 ? std::max(Exec::latency, together_) : Exec::latency);
    return late >= together_ ? late : 0;
  }

  /// The report of the oldest step that was not reported yet: of all ranks' losses, and whether any of them
  /// asked to stop. Nothing when all are.
  std::optional<StepReport> take_late_report();

  /// Whether any rank asked to stop in the step that was reported last.
  bool told_to_stop() const { return sums_.told_to_stop(); }

  /// What the next step counts on this rank, summed over ranks with the report of this one.
  std::span<double> next_counts() { return sums_.next_counts(); }

  /// Calls `visit(host)` with the values of an arena in host memory, and puts back what it made of them.
  template <class Visit>
  void on_host(std::span<float> arena, Visit&& visit) {
    if constexpr (Space::addressable) {
      visit(arena);
    } else {
      std::vector<float> host(arena.size());
      space_.read(host.data(), arena.data(), arena.size_bytes());
      visit(std::span<float>(host));
      space_.write(arena.data(), host.data(), arena.size_bytes());
    }
  }

  /// Running statistics become the mean of all ranks'.
  void average_statistics();

  /// Seconds that the exchange of one step takes while nothing is computed: the median of `repetitions` on
  /// the slowest rank; train::hidden() compares with it. Every worker calls it, after training where a codec
  /// keeps account of what it left out or of its first steps. Throws ConfigError where servers make an update
  /// of all that they get.
  double exchange_seconds(int repetitions = 5);

 private:
  friend ServerUpdates<Replica>;
  friend WorkerUpdates<Replica>;

  // Nobody exchanges the optimizer's state, so on the host it lies in memory of this rank's own.
  using StateSpace = std::conditional_t<std::is_same_v<Space, memory::Host>, memory::Host, Space&>;
  static StateSpace make_state_space(Space& space) {
    if constexpr (std::is_same_v<Space, memory::Host>)
      return memory::Host();
    else
      return space;
  }

  /// Steps that an Exec's scale of losses made overflow are skipped, whatever the configuration says.
  static Config guarded(Config config) {
    config.guard.skip_not_finite = config.guard.skip_not_finite || Exec::may_overflow;
    return config;
  }

  /// Steps that may be under way.
  int most_unreported() const {
    const int at_once = exec::most_results_at_once<Exec>(config_.exec);
    return std::max(Exec::latency, at_once) + at_once;
  }

  void open();

  /// This rank updates these ranges; what it does not update, others write.
  void own(const std::vector<Range>& ranges);

  /// Which part of a batch this rank computes, where the Comm makes a difference between workers.
  void take_share();

  /// Ranks whose Exec orders elements differently (another instruction set) fall back to the canonical order
  /// together; all do where an optimizer takes matrices and the Exec's order is none.
  void build_exec();

  /// Whether every parameter that the optimizer takes as a matrix stands as one.
  bool stands_in_matrices() const;

  comm::Fingerprint fingerprint() const;

  float lr_at(std::int64_t step) const {
    return static_cast<float>(optimizer_.optimizer().facts().lr * config_.schedule.factor(step, workers()));
  }

  /// What the optimizer enqueues at the beginning of a step, once.
  void prepare() {
    if (!std::exchange(progress_.prepared, true)) optimizer_.prepare();
  }

  /// What the Exec refuses, such as a label that is none, names this rank where there are others.
  template <class Work>
  void naming_rank(Work&& work) try {
    work();
  } catch (const ExecError& error) {
    if (workers() == 1) throw;
    fail<ExecError>("rank ", rank(), ": ", error.what());
  }

  /// The step as a whole, if a graph may make its exchange and nothing of it is timed alone. False: it was
  /// not run.
  bool run_whole(const exec::BatchView& batch, const exec::Pass& pass);
  /// Begins the buckets whose gradients are final, those of elements [0, final) of the arena.
  void begin_buckets(std::int64_t final);
  /// Ends the exchange, and updates.
  void apply() {
    comm_.finish(apply_);
    float* const parameters = exec_->parameters().data();
    if (comm_.has_servers())
      optimizer_.decay_dead(steps_ + 1, now_.lr, parameters);
    else
      optimizer_.decay_dead(parameters);
  }

  /// The Exec has one more result of this step.
  void note_result() {
    ++now_.results;
    results_.expect();
  }

  /// Backward of the last forward pass, if there was one. Begins buckets as their gradients become final, if
  /// this is the step's `last`.
  void run_backward(bool computed, bool last);
  /// Adds the gradients of a micro-step to those of the ones before: in the gradients if it is the `last`,
  /// else in `sum_`.
  void accumulate(bool last);

  /// What batch norms ask for in the middle of a pass.
  struct Across final : exec::AcrossRanks {
    explicit Across(Comm& c) : comm(c) {}
    void sum(std::span<double> values) override { comm.all_reduce(values, comm::sum); }
    Comm& comm;
  };

  /// The pass, in which batch norms know all ranks if they are to.
  exec::Pass among_ranks(exec::Pass pass) {
    if (config_.sync_batch_norm && workers() > 1) pass.across = &across_;
    return pass;
  }

  /// Where an update of these parameters is to write them once more: nowhere where the Exec keeps no copy or
  /// others write parameters after it, of whom the Exec is told.
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

  // How far the step under way has come. Between steps nothing has.
  struct Progress {
    bool prepared = false;           // by optimizer_.prepare(), or the servers do that
    int micros = 0;                  // micro-steps whose gradients have been added up
    std::size_t begun = 0;           // buckets whose exchange has begun
    bool exchange_enqueued = false;  // of a whole step, by this rank; else a graph makes the exchange
    bool applied = false;            // the exchange and the update are enqueued
  };

  const Plan& plan_;
  const exec::Kernels<Exec>& kernels_;
  Config config_;
  ServerUpdates<Replica> serve_{this};
  WorkerUpdates<Replica> apply_{this};
  bool serves_anew_ = true;       // the next part to arrive begins a decision
  std::int64_t served_from_ = 0;  // the step at which the servers began
  Comm comm_;
  Across across_{comm_};
  Space space_;
  StateSpace state_space_;
  std::vector<double> shares_;
  int most_rows_;  // of this rank in any batch
  optim::Arena<Rule, Space> optimizer_;
  std::vector<Range> buckets_;
  bool others_update_ = false;  // servers, or other ranks, write parameters of this one
  Range dead_;                  // of the parameters: what is only decayed
  std::optional<Exec> exec_;
  std::vector<comm::Tensor> tensors_;
  std::vector<Range> whole_;         // what the optimizer updates as one
  memory::Array<float, Space> sum_;  // gradients of the micro-steps so far
  std::int64_t steps_ = 0;
  Progress progress_;
  std::vector<float> scales_;  // of each loss in this step
  StepSums sums_;
  UnreportedStep now_;
  memory::Late<optim::Verdict, Space> verdicts_;  // of the steps whose norms follow
  std::vector<UnreportedStep> pending_;
  Results results_;   // of these steps, and of the one under way
  int together_ = 1;  // results that come at once
  double updating_ = 0, exposed_since_ = 0;
  // The last members end first: nothing goes that the exchange, or the space, may still read or write.
  memory::AllDone<Space> done_{space_};
  comm::Closing<Comm> closing_{comm_};
};

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::abandon() {
  results_.drop(*exec_);
  for (const UnreportedStep& step : pending_)
    if (step.norm_follows) verdicts_.take();
  pending_.clear();
  now_ = {};
  progress_ = {};
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::begin(std::span<const double> counts) {
  std::copy(counts.begin(), counts.end(), sums_.counts_of(steps_));
  for (std::size_t l = 0; l < scales_.size(); ++l)
    scales_[l] = counts[l] > 0 ? static_cast<float>(1.0 / counts[l]) : 0.0f;
  now_ = {};
  now_.lr = lr_at(steps_);
  progress_.prepared = comm_.has_servers();
  if (!progress_.prepared) optimizer_.set_step(steps_ + 1, now_.lr);
}

template <class Rule, class Comm, class Exec>
bool Replica<Rule, Comm, Exec>::run_whole([[maybe_unused]] const exec::BatchView& batch,
                                          [[maybe_unused]] const exec::Pass& pass) {
  if constexpr (exec::RepeatsSteps<Exec>) {
    const bool exchanges = comm_.exchanges();
    if (batch.rows == 0 || progress_.micros > 0 || config_.timeline != nullptr) return false;
    if (exchanges && !comm_.repeats()) return false;
    std::span<const optim::Verdict> verdict;
    if (optimizer_.decides() && optimizer_.knows_norm()) verdict = {optimizer_.verdict_there(), 1};
    // The Exec calls these where it enqueues the step, perhaps after this function has returned, and not
    // where it repeats a step that it captured.
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
    together_ = batch.maker != nullptr && !exchanges ? exec_->steps_at_once() : 1;
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
  if (last && run_whole(batch, pass)) return note_result();
  together_ = 1;
  prepare();
  const auto begin = Clock::now();
  auto forward_end = begin;
  if (batch.rows > 0) {
    enqueue(batch, among_ranks(pass));
    note_result();
    forward_end = Clock::now();
  }
  run_backward(batch.rows > 0, last);
  const auto end = Clock::now();
  now_.backward = Seconds(end - forward_end).count();
  if (config_.timeline != nullptr) {
    config_.timeline->record("forward", -1, Track::compute, begin, forward_end);
    config_.timeline->record("backward", -1, Track::compute, forward_end, end);
  }
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::forward(const exec::BatchView& batch, const exec::Pass& pass,
                                        std::int64_t global_rows) {
  prepare();
  enqueue(batch, among_ranks(pass));
  note_result();
  now_.batches = now_.results;
  now_.rows += batch.rows;
  now_.global_rows += global_rows;
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::backward() {
  const std::span<float> gradients = exec_->gradients();
  if (progress_.micros > 0) {
    if (sum_.size() == 0) sum_ = memory::Array<float, Space>(space_, gradients.size());
    space_.copy(sum_.data(), gradients.data(), gradients.size_bytes());
  }
  exec_->backward(scales_, exec::InOnePiece{});
  if (progress_.micros++ > 0)
    space_.add(gradients.data(), sum_.data(), static_cast<std::int64_t>(gradients.size()));
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::finish(bool stop) {
  const auto begin = Clock::now();
  if (!progress_.applied) apply();
  if (others_update_) exec_->touched({0, plan_.sizes.exchanged});
  if (now_.norm_follows) verdicts_.send(optimizer_.verdict_there());
  if (!dead_.empty()) exec_->touched(dead_);
  now_.updating = std::exchange(updating_, 0.0);
  now_.step = steps_++;
  now_.stop = stop;
  now_.exposed = Seconds(Clock::now() - begin).count() - now_.updating;
  pending_.push_back(std::exchange(now_, {}));
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
    // A server may write a bucket's parameters once it has their gradients, and those of the layer under way
    // are read until backward calls again.
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
    begin_buckets(size);  // each adds up its own gradients
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

template <class Rule, class Comm, class Exec>
std::optional<StepReport> Replica<Rule, Comm, Exec>::take_late_report() {
  if (pending_.empty()) return std::nullopt;
  UnreportedStep step = pending_.front();
  pending_.erase(pending_.begin());
  if (step.norm_follows) step.gradient_norm = verdicts_.take().norm;
  sums_.start();
  for (int i = 0; i < step.results; ++i) {
    const exec::Result result = results_.take(*exec_);
    sums_.add(result);
    if (optim::Verdict verdict; result.along.size() == sizeof verdict) {
      std::memcpy(&verdict, result.along.data(), sizeof verdict);
      step.gradient_norm = verdict.norm;
    }
  }
  const std::span<double> numbers = sums_.of(step, rank());
  // Workers that do not wait for each other each know of themselves only.
  const bool together = comm_.lockstep();
  if (together) {
    const auto from = Clock::now();
    comm_.all_reduce(numbers, comm::sum);
    exposed_since_ += Seconds(Clock::now() - from).count();
  }
  StepReport report = sums_.report(step, together, workers());
  report.exposed_comm_seconds = step.exposed + std::exchange(exposed_since_, 0.0);
  return report;
}

}  // namespace convoy::train
