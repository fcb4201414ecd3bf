// UserLoop: a training loop of the user's own, step by step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/range.hpp>
#include <convoy/exec/counts.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/report.hpp>

namespace convoy::train {

/// The steps of a loop that replaces `fit`. All ranks call the same members together.
template <class Replica>
class UserLoop {
 public:
  explicit UserLoop(Replica& replica) : replica_(replica), plan_(replica.plan()) {}
  UserLoop(const UserLoop&) = delete;
  UserLoop& operator=(const UserLoop&) = delete;

  /// One optimizer step on a batch of this rank's rows.
  StepReport step(const exec::BatchView& batch, std::int64_t global_rows);
  /// The parts of a step: forward on a batch, which may be one of several, and the completion of the step.
  void forward(const exec::BatchView& batch, std::int64_t global_rows);
  StepReport step();
  /// Calls `work`, which makes steps, on the workers while servers make the updates. On a server, returns
  /// when the workers' calls are over.
  void with_servers(Call<void()> work);
  /// Discards the step in progress, if any.
  void discard_step() {
    begun_ = false;
    replica_.discard();
  }

  /// While one exists, a fit makes the steps, and a callback of the fit can begin neither a step nor another
  /// fit: the results of its passes would be taken for those of the fit's own.
  class Suspended {
   public:
    explicit Suspended(UserLoop& loop) : loop_(loop) {
      loop.expect_no_fit();
      if (loop.served_)
        fail<ConfigError>("trainer: a fit calls on the servers itself, and must not be within with_servers");
      loop.suspended_ = true;
    }
    Suspended(const Suspended&) = delete;
    Suspended& operator=(const Suspended&) = delete;
    ~Suspended() { loop_.suspended_ = false; }

   private:
    UserLoop& loop_;
  };

 private:
  void expect_no_fit() const {
    if (suspended_)
      fail<ConfigError>(
          "trainer: a fit is under way, and its callbacks must not begin a step or another fit");
  }
  std::int64_t rows_of(const exec::BatchView& batch, std::int64_t global_rows) const {
    if (batch.rows < 0 || (global_rows != 0 && global_rows < batch.rows))
      fail<ConfigError>("trainer: a batch of ", batch.rows, " rows cannot be part of a step of ",
                        global_rows);
    return global_rows > 0 ? global_rows : std::int64_t{batch.rows} * replica_.workers();
  }
  /// Throws ConfigError if batch norm is synchronized over ranks and this rank has no rows of a batch.
  void expect_rows(const exec::BatchView& batch) const {
    if (replica_.config().sync_batch_norm && replica_.workers() > 1 && batch.rows == 0)
      fail<ConfigError>("trainer: rank ", replica_.rank(),
                        " has no rows of a batch, but sync_batch_norm needs rows on every rank");
  }
  void expect_servers() const {
    if (replica_.comm().has_servers() && !served_)
      fail<ConfigError>("trainer: the servers of the exchange ", replica_.comm().policy(),
                        " do not serve here; call fit, or make the steps within trainer.with_servers");
  }
  /// Called before a step. Throws ConfigError during a fit, and outside of with_servers if there are servers.
  void start_step();
  /// The counts of the losses in a step with one batch per rank and `rows` rows on all ranks, or as
  /// sum_counts supposes them.
  std::span<const double> counts_of(const exec::BatchView& batch, std::int64_t rows);
  /// The pass of a step. Each step counts as an epoch, in which the ranks' parts of its rows are consecutive.
  /// A batch whose size is not that of the rank's part gets a position range of its own, because where the
  /// other ranks' batches end is unknown.
  exec::Pass pass_of(const exec::BatchView& batch, std::int64_t rows) const {
    constexpr std::int64_t apart = std::int64_t{1} << 40;  // more than the rows of any step
    const Range part = replica_.shard().part(rows, replica_.rank());
    return {.seed = replica_.config().seed,
            .epoch = replica_.counters().steps,
            .position = replica_.rows_so_far() +
                        (batch.rows == part.size() ? part.begin : (replica_.rank() + 1) * apart)};
  }
  StepReport report_of_step();

  Replica& replica_;
  const Plan& plan_;
  std::vector<double> counts_;
  Stopwatch watch_;     // since the step in progress started
  bool begun_ = false;  // whether a step is in progress
  bool suspended_ = false;
  bool served_ = false;  // whether with_servers runs
};

template <class Replica>
StepReport UserLoop<Replica>::step(const exec::BatchView& batch, std::int64_t global_rows) {
  const std::int64_t rows = rows_of(batch, global_rows);
  expect_rows(batch);
  start_step();
  replica_.begin(counts_of(batch, rows));
  replica_.compute(batch, pass_of(batch, rows), rows, true);
  return report_of_step();
}

template <class Replica>
void UserLoop<Replica>::forward(const exec::BatchView& batch, std::int64_t global_rows) {
  const std::int64_t rows = rows_of(batch, global_rows);
  expect_rows(batch);
  if (begun_ && replica_.awaits_backward())
    fail<ConfigError>("trainer: forward needs a backward after the forward before it");
  if (!begun_) {
    start_step();
    replica_.begin(std::vector<double>(plan_.losses.size(), 1.0));
  }
  begun_ = true;
  replica_.forward(batch, pass_of(batch, rows), rows, counts_of(batch, rows));
}

template <class Replica>
StepReport UserLoop<Replica>::step() {
  if (!begun_ || !replica_.has_gradients())
    fail<ConfigError>(
        "trainer: step needs at least one forward before it, and a backward after each forward");
  expect_servers();  // those that served during the forward
  begun_ = false;
  replica_.exchange();
  return report_of_step();
}

template <class Replica>
void UserLoop<Replica>::start_step() {
  expect_no_fit();
  expect_servers();
  discard_step();
  watch_.restart();
}

template <class Replica>
void UserLoop<Replica>::with_servers(Call<void()> work) {
  expect_no_fit();
  if (served_) fail<ConfigError>("trainer: with_servers must not be called within with_servers");
  discard_step();
  replica_.serve();
  if (replica_.comm().role() == comm::Role::worker) {
    struct Served {
      explicit Served(bool& on) : served(on) { served = true; }
      ~Served() { served = false; }
      bool& served;
    };
    const Served until_return(served_);
    work();
  }
  replica_.dismiss();
}

template <class Replica>
std::span<const double> UserLoop<Replica>::counts_of(const exec::BatchView& batch, std::int64_t rows) {
  counts_.assign(plan_.losses.size(), 0.0);
  if (exec::counts_by_value(plan_)) {
    if (batch.rows > 0) {
      exec::expect_fields(plan_, batch);
      exec::add_counts_by_value(plan_, batch, counts_);
    }
    sum_counts(replica_.comm(), counts_);
  }
  const bool together = replica_.comm().lockstep();
  exec::set_known_counts(plan_, together ? rows : std::int64_t{batch.rows} * replica_.workers(), counts_);
  return counts_;
}

template <class Replica>
StepReport UserLoop<Replica>::report_of_step() {
  replica_.finish(false);
  std::optional<StepReport> report;
  while (const auto later = replica_.take_report()) report = later;
  replica_.space().synchronize();  // the caller may now reuse the batches
  report->seconds = watch_.seconds();
  return *report;
}

}  // namespace convoy::train
