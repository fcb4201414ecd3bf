// PlanTrainer: trains, evaluates and predicts with a plan passed as a value, so that it is compiled once for
// all models of a program.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/optim/sgd.hpp>
#include <convoy/train/composes.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/evaluator.hpp>
#include <convoy/train/fit.hpp>
#include <convoy/train/fit_loop.hpp>
#include <convoy/train/no_exec.hpp>
#include <convoy/train/opening.hpp>
#include <convoy/train/parameters.hpp>
#include <convoy/train/replica.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/speed.hpp>
#include <convoy/train/state.hpp>
#include <convoy/train/state_copy.hpp>
#include <convoy/train/timeline.hpp>
#include <convoy/train/user_loop.hpp>

namespace convoy::train {

/// The base of Trainer, which takes the model as a plan; see trainer.hpp. A program that chooses its model at
/// run time uses PlanTrainer with that plan, which must outlive it, and with all kernels of the Exec.
template <class Rule, class Comm, class Exec, bool = composes<Rule, Comm, Exec>()>
class PlanTrainer {
 public:
  using Config = train::Config<Rule, Exec>;
  using StateCopy = train::StateCopy<Rule, Comm, Exec>;

  /// The traced model.
  const Plan& plan;

  /// `comm_arguments` construct the Comm. Throws as Trainer's constructor does.
  template <class... CommArguments>
  PlanTrainer(const Plan& traced, const Config& config, CommArguments&&... comm_arguments)
      : PlanTrainer(traced, exec::kernels<Exec>, config, std::forward<CommArguments>(comm_arguments)...) {}
  /// The same with only the kernels that the plan needs.
  template <class... CommArguments>
  PlanTrainer(const Plan& traced, const exec::Kernels<Exec>& kernels, const Config& config,
              CommArguments&&... comm_arguments)
      : plan(traced), replica_(traced, kernels, config, std::forward<CommArguments>(comm_arguments)...) {}
  PlanTrainer(const PlanTrainer&) = delete;
  PlanTrainer& operator=(const PlanTrainer&) = delete;

  int rank() const { return replica_.rank(); }
  /// The number of ranks, servers included.
  int world() const { return replica_.comm().size(); }
  /// The number of ranks that compute gradients: ranks 0 to workers() - 1.
  int workers() const { return replica_.workers(); }
  /// The exchange. Between steps, every rank may use its broadcasts and all-reduces.
  Comm& comm() { return replica_.comm(); }
  /// The Exec, with its profile and its number of threads.
  Exec& exec() { return replica_.exec(); }
  /// The configuration, with what the constructor filled in, such as `exec.threads`.
  const Config& config() const { return replica_.config(); }
  /// The workers' shares of a global batch, which sum to 1; empty if all are equal.
  std::span<const double> shares() const { return replica_.shares(); }
  /// The most rows that a batch of this rank may have: `batch`, unless shares are unequal.
  int most_rows() const { return replica_.most_rows(); }
  /// Optimizer steps since construction or, if the training was resumed, since it began.
  std::int64_t steps_done() const { return replica_.counters().steps; }
  /// What the rates of the schedule are multiplied by, in steps that begin later: for a rate that follows the
  /// test loss, or for finding a rate. All ranks call `set_lr_factor` together, between two steps or in a
  /// callback of `fit`. Checkpoints keep the factor. Throws ConfigError unless the factor is finite, at least
  /// 0 and the same on all ranks, and if servers make the updates.
  double lr_factor() const { return replica_.counters().lr_factor; }
  void set_lr_factor(double factor) { replica_.set_lr_factor(factor); }
  /// The bytes of optimizer state on this rank.
  std::size_t optimizer_state_bytes() const { return replica_.optimizer_state_bytes(); }
  /// The name of the rule that updates parameters, such as "adam", also if chosen through optim::Any.
  std::string_view optimizer_name() const { return replica_.optimizer_name(); }

  /// One optimizer step on a batch of this rank's rows, at most `most_rows()`. `global_rows` is the number of
  /// rows on all ranks (0: every rank has as many as this one). If each rank has its part of the rows
  /// (data::Shard::part), dropout is the same as on one rank with all rows; in any case, no two ranks use the
  /// same random numbers. Waits for the report if results are late.
  StepReport step(const exec::BatchView& batch, std::int64_t global_rows = 0) {
    return user_loop_.step(batch, global_rows);
  }

  /// For a user's own loop: `forward` and `backward` on a batch, once or several times in turns with
  /// gradients that add up, then `step`, which exchanges the gradients and updates. Before `step`, this
  /// rank's gradients may be read and changed. `step(batch)` does all of this, and exchanges during backward.
  /// The next fit or `step(batch)` discards an unfinished step. `forward` and `step(batch)` throw ConfigError
  /// in a callback of `fit` and, if servers make the updates, outside of `with_servers`. `forward` and
  /// `step()` throw it if an earlier forward had no backward, and `step()` if there was no forward.
  void forward(const exec::BatchView& batch, std::int64_t global_rows = 0) {
    user_loop_.forward(batch, global_rows);
  }
  /// Computes the gradients of the mean over the rows of all ranks. Throws ExecError unless a forward came
  /// before it.
  void backward() { replica_.backward(); }
  StepReport step() { return user_loop_.step(); }

  /// Calls `work`, steps of a user's own loop, while the servers of the exchange serve:
  ///
  ///     trainer.with_servers([&] { while (const data::Batch* rows = loader.next()) trainer.step(...); });
  ///
  /// All ranks call it together. A rank that only serves does not call `work`, and returns when the workers
  /// have. Without servers it only calls `work`. Within it, parameters may be read but not written, which the
  /// servers would not notice, and no state is visited or kept; afterwards all ranks have the same
  /// parameters, and rank 0's count of steps. What `work` throws passes through; as after a fit, servers
  /// among the workers then serve again if it was thrown between two steps, on all of them. Throws
  /// ConfigError within itself and in a callback of `fit`, as `fit` does within `work`, and CommError if the
  /// exchange fails.
  void with_servers(Call<void()> work) { user_loop_.with_servers(work); }

  /// The parameters by their PyTorch names, in canonical form.
  ParameterList<Exec> parameters() { return {exec(), plan}; }

  /// Visits parameters and running statistics. All workers must call it together; see state.hpp.
  template <StateVisitor V>
  void visit_weights(V&& visitor, Visit how) {
    train::visit_weights(replica_, AnyVisitor(visitor), how);
  }

  /// Visits all state of the training: weights, the optimizer's state, counters. All ranks must call it
  /// together; see state.hpp.
  template <StateVisitor V>
  void visit_state(V&& visitor, Visit how) {
    train::visit_state(replica_, AnyVisitor(visitor), how);
  }
  /// Copies all state for code that uses it while training continues, such as train::Checkpoints; see
  /// state_copy.hpp.
  StateCopy state_copy() { return StateCopy(replica_); }

  /// Calls `visit(name, text)` for each option on which the ranks must agree, with its name in the
  /// configuration, such as `optimizer.lr` or `schedule.total`.
  void visit_options(OptionVisit visit) const { replica_.visit_options(visit); }

  /// Trains on a data set. Every rank passes the whole set and reads its share. Returns an empty report on a
  /// rank that only serves.
  ///
  /// Throws ConfigError for options or a set that do not fit, DataError from the set, ExecError for a label
  /// out of range or a loss that is not finite, CommError if the exchange fails, and CheckpointError from the
  /// keeper. What callbacks throw passes through. A callback may evaluate and predict, but begins neither a
  /// step nor another fit, which throw ConfigError. A fit that a rank refuses before its first step is
  /// refused by all, servers included: the other ranks throw a ConfigError that names the rank and repeats
  /// its reason.
  template <class D>
  FitReport fit(const D& set, const FitOptions& options = {}) {
    return fit_loop_.fit(reference(set), options);
  }

  /// Loss, accuracy and metrics over a data set, of which each rank reads its share. First averages running
  /// statistics over the workers, and leaves the averages in place. All ranks call it together. Returns an
  /// empty evaluation on a rank that only serves. Throws ConfigError for a set that does not fit, DataError
  /// from the set, ExecError for a label out of range, and CommError if the exchange fails.
  template <class D>
  Evaluation evaluate(const D& set) {
    return evaluator_.evaluate(reference(set));
  }

  /// The model's output with index `output` for every sample, computed on this rank alone with its own
  /// running statistics. The set needs only the fields on which the output depends, so no labels. Throws
  /// ConfigError for an output that the model does not have and for a set that does not fit, and DataError
  /// from the set.
  template <class D>
  Prediction predict(const D& set, int output = 0) {
    return evaluator_.predict(reference(set), output);
  }

  /// Seconds that the exchange of one step takes without computation: the median of `repetitions` on the
  /// slowest rank, for hidden(). Every worker must call it; with a codec that has state (error feedback, a
  /// count of first steps), only after training. Throws ConfigError in the middle of a step of a user's own
  /// loop and if servers make the updates.
  double exchange_seconds(int repetitions = 5) { return train::exchange_seconds(replica_, repetitions); }

  /// The timeline events of all workers, on rank 0; empty on other ranks. All workers must call it together.
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
    if constexpr (std::same_as<D, data::DatasetRef>) {
      if (!set) fail<ConfigError>("trainer: an empty DatasetRef was passed where a data set is needed");
      return set;
    } else {
      return data::DatasetRef(&set);
    }
  }

  Replica<Rule, Comm, Exec> replica_;
  Evaluator<Replica<Rule, Comm, Exec>> evaluator_{replica_};
  UserLoop<Replica<Rule, Comm, Exec>> user_loop_{replica_};
  FitLoop<Replica<Rule, Comm, Exec>> fit_loop_{replica_, evaluator_, user_loop_};
};

/// A trainer whose policies do not compose. `composes` has already reported why, so this has the members of
/// any other, of policies that do compose: a program's use of them is no further error.
template <class Rule, class Comm, class Exec>
class PlanTrainer<Rule, Comm, Exec, false> : public PlanTrainer<optim::Sgd, comm::None, NoExec> {
 public:
  using Config = train::Config<Rule, Exec>;
  template <class... Arguments>
  PlanTrainer(const Plan&, const Config&, Arguments&&...);
  const Config& config() const;
};

}  // namespace convoy::train
