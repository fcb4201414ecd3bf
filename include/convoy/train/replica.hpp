// Replica: one rank's copy of the model, with what makes a step of it: forward, backward, the exchange beside
// backward, and the update. It knows batches, not data sets.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/initialize.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/train/arena_optimizer.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/matrices.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/speed.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy::train {

/// A step is `begin()`, `compute` for each micro-step, `finish`. Ranks that serve parameters make none.
template <class Rule, class Comm, class Exec>
class Replica {
 public:
  using Config = train::Config<Rule, Exec>;

  /// Compares what ranks must agree on (CommError names the rank and the field that differ) and gives all
  /// ranks the initial parameters of rank 0. `plan` outlives it; `comm_arguments` construct the Comm.
  template <class... CommArguments>
  Replica(const Plan& plan, const Config& config, CommArguments&&... comm_arguments)
      : plan_(plan),
        config_(config),
        comm_(std::forward<CommArguments>(comm_arguments)...),
        most_rows_(config.batch),
        optimizer_(plan, config.optimizer) {
    open();
  }
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  int rank() const { return comm_.rank(); }
  int workers() const { return comm_.workers(); }
  Comm& comm() { return comm_; }
  const Comm& comm() const { return comm_; }
  Exec& exec() { return *exec_; }
  const Config& config() const { return config_; }
  /// Which part of a data set this rank computes.
  data::Shard shard() const { return {rank(), workers(), shares_}; }
  std::span<const double> shares() const { return shares_; }
  int most_rows() const { return most_rows_; }
  std::int64_t steps_done() const { return steps_; }
  std::size_t optimizer_state_bytes() const { return optimizer_.state_bytes(); }

  /// Between these two, servers make the updates; a server returns when the workers are done.
  void serve() {
    served_from_ = steps_;
    comm_.serve(serve_);
  }
  void dismiss() { comm_.dismiss(); }

  void begin() {
    loss_ = 0;
    rows_ = global_rows_ = correct_ = 0;
    backward_ = exposed_ = updating_ = 0;
    lr_ = lr_at(steps_);
    optimizer_.begin(steps_ + 1, lr_);
  }

  /// Forward and backward; the last micro-step of a step exchanges each bucket as soon as its gradients are
  /// final.
  void compute(const exec::BatchView& batch, std::int64_t global_rows, std::int64_t micros, bool last) {
    const auto begin = Clock::now();
    const std::span<float> gradients = exec_->gradients();
    std::size_t bucket = 0;
    const bool first = sum_.size() == 0 || micro_ == 0;
    // A server may write a bucket's parameters once it has their gradients, and those of the layer under way
    // are read until backward calls again.
    const bool served = comm_.has_servers();
    std::int64_t said = 0;
    auto on_final = [&](std::int64_t final) {
      const std::int64_t ready = served ? std::exchange(said, final) : final;
      for (; bucket < plan_.buckets.size() && plan_.buckets[bucket].end <= ready; ++bucket) {
        if (!last) continue;
        const Range range = plan_.buckets[bucket];
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
    if (served) on_final(said);
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
      config_.timeline->record("forward", -1, Track::compute, begin, forward_end);
      config_.timeline->record("backward", -1, Track::compute, forward_end, end);
    }
  }

  /// Completes the exchange, applies the optimizer, and learns of all ranks' losses, and whether any of them
  /// asks to `stop`.
  StepReport finish(bool stop) {
    const auto begin = Clock::now();
    comm_.finish([&](Range range, float scale) {
      const auto from = Clock::now();
      optimizer_.update(exec_->threads(), exec_->parameters(), exec_->gradients(), range, scale);
      const auto to = Clock::now();
      updating_ += Seconds(to - from).count();
      if (config_.timeline != nullptr) config_.timeline->record("update", -1, Track::optimizer, from, to);
    });
    optimizer_.decay_dead(exec_->threads(), exec_->parameters());
    ++steps_;

    const bool sound = std::isfinite(loss_);
    const bool together = comm_.lockstep();
    double sums[] = {sound ? loss_ : 0.0, static_cast<double>(correct_), sound ? 0.0 : 1.0,
                     sound ? 0.0 : rank() + 1.0, stop ? 1.0 : 0.0};
    // Workers that do not wait for each other each know of themselves only.
    if (together) comm_.all_reduce(std::span<double>(sums), comm::sum);
    exposed_ = Seconds(Clock::now() - begin).count() - updating_;
    if (sums[2] == 1)
      fail<ExecError>("rank ", static_cast<int>(sums[3]) - 1, ": the loss of step ", steps_ - 1,
                      " is not a number, so training stops", together ? " on all ranks" : "",
                      " (learning rate ", lr_, ")");
    if (sums[2] > 1)
      fail<ExecError>("the loss of step ", steps_ - 1, " is not a number on ", static_cast<int>(sums[2]),
                      " of ", workers(), " ranks, so training stops (learning rate ", lr_, ")");
    told_to_stop_ = together && sums[4] > 0;

    StepReport report;
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

  /// Whether any rank asked to stop in the last step.
  bool told_to_stop() const { return told_to_stop_; }

  /// Seconds that the exchange of one step takes while nothing is computed: the median of `repetitions` on
  /// the slowest rank; train::hidden() compares with it. Every worker calls it, after training where a codec
  /// keeps account of what it left out or of its first steps. Throws ConfigError where servers make an update
  /// of all that they get.
  double exchange_seconds(int repetitions = 5) {
    if (comm_.has_servers())
      fail<ConfigError>(
          "trainer: where servers make the updates there is no exchange without one to measure");
    const std::span<float> gradients = exec_->gradients();
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    std::vector<double> seconds;
    for (int i = 0; i < repetitions; ++i) {
      comm_.barrier();
      const Stopwatch watch;
      for (std::size_t b = 0; b < plan_.buckets.size(); ++b) comm_.begin(static_cast<int>(b));
      comm_.finish([](Range, float) {});
      seconds.push_back(watch.seconds());
    }
    double slowest[] = {median(seconds)};
    comm_.all_reduce(std::span<double>(slowest), comm::max);
    return slowest[0];
  }

 private:
  void open() {
    if (config_.batch < 1) fail<ConfigError>("trainer: the batch must be at least 1, not ", config_.batch);
    if (config_.accumulate < 1)
      fail<ConfigError>("trainer: accumulate must be at least 1, not ", config_.accumulate);
    config_.schedule.check();
    take_share();
    build_exec();
    exec::initialize(*exec_, plan_, config_.seed);
    tensors_ = matrices(plan_, [&](int p) -> std::int64_t {
      if constexpr (requires { exec_->panel(p); })
        return exec_->panel(p);
      else
        return 1;
    });
    comm_.open(fingerprint(), {.gradients = exec_->gradients(),
                               .parameters = exec_->parameters(),
                               .buckets = plan_.buckets,
                               .tensors = tensors_});
    optimizer_.own(comm_.updates(plan_.buckets));
    comm_.broadcast(exec_->parameters(), 0);
    comm_.broadcast(exec_->statistics(), 0);
    if (config_.accumulate > 1) sum_ = Buffer<float>(exec_->gradients().size());
    if (config_.timeline != nullptr) {
      comm_.observe({[](void* timeline, const comm::ExchangeEvent& event) {
                       static_cast<Timeline*>(timeline)->record("bucket", event.bucket, Track::exchange,
                                                                event.begin, event.end);
                     },
                     config_.timeline});
      comm_.barrier();
      config_.timeline->start();
    }
  }

  /// Which part of a batch this rank computes, where the Comm makes a difference between workers.
  void take_share() {
    if (comm_.role() != comm::Role::worker) return;
    auto measure = [&](double share, double& speed) {
      const int rows = std::max(1, static_cast<int>(std::lround(share * config_.batch * workers())));
      speed = measured_speed<Exec>(plan_, rows, config_.exec, comm_);
    };
    shares_ = comm_.shares(measure);
    if (!shares_.empty())
      most_rows_ =
          static_cast<int>(std::max<std::int64_t>(1, shard().most(std::int64_t{config_.batch} * workers())));
  }

  /// Ranks whose Exec orders elements differently (another instruction set) fall back to the canonical order
  /// together.
  void build_exec() {
    exec_.emplace(plan_, most_rows_, config_.exec, comm_.memory());
    if constexpr (requires(typename Exec::Options o) { o.canonical; }) {
      // Exact as doubles in halves; equal on all ranks if the largest is also the smallest.
      const auto hash = exec_->layout_fingerprint();
      const auto high = static_cast<double>(hash >> 32), low = static_cast<double>(hash & 0xffffffffu);
      double largest[] = {high, low, -high, -low};
      comm_.all_reduce(std::span<double>(largest), comm::max);
      if (largest[0] == -largest[2] && largest[1] == -largest[3]) return;
      auto options = config_.exec;
      options.canonical = true;
      exec_.emplace(plan_, most_rows_, options, comm_.memory());
    }
  }

  comm::Fingerprint fingerprint() const {
    comm::Fingerprint f;
    f.add("model", plan_.fingerprint);
    f.add("world", comm_.size());
    f.add("batch", config_.batch);
    f.add("accumulate", config_.accumulate);
    f.add("optimizer", optimizer_.optimizer().describe());
    f.add("precision", exec_->precision());
    f.add("layout", exec_->layout_fingerprint());
    std::uint64_t hash = 0;
    for (const Range& bucket : plan_.buckets)
      hash = hash * 0x100000001b3ull + static_cast<std::uint64_t>(bucket.end);
    f.add("buckets", hash);
    f.add("seed", config_.seed);
    return f;
  }

  float lr_at(std::int64_t step) const {
    return static_cast<float>(optimizer_.optimizer().lr() * config_.schedule.factor(step, workers()));
  }

  /// What a server does with gradients.
  struct Serve {
    Replica* replica;
    void operator()(const comm::ServerPart& part) const {
      Replica& r = *replica;
      const auto from = Clock::now();
      r.optimizer_.begin(part.count, r.lr_at(r.served_from_ + part.step));
      r.optimizer_.update(r.exec_->threads(), part.parameters, part.gradients, part.range, part.scale);
      if (r.config_.timeline != nullptr)
        r.config_.timeline->record("update", -1, Track::optimizer, from, Clock::now());
    }
  };

  const Plan& plan_;
  Config config_;
  Serve serve_{this};
  std::int64_t served_from_ = 0;  // the step at which the servers began
  Comm comm_;
  std::vector<double> shares_;
  int most_rows_;  // of this rank in any batch
  ArenaOptimizer<Rule> optimizer_;
  std::optional<Exec> exec_;
  std::vector<comm::Tensor> tensors_;
  Buffer<float> sum_;  // gradients of the micro-steps so far
  int micro_ = 0;
  std::int64_t steps_ = 0;
  double loss_ = 0, backward_ = 0, exposed_ = 0, updating_ = 0;
  std::int64_t rows_ = 0, global_rows_ = 0, correct_ = 0;
  float lr_ = 0;
  bool told_to_stop_ = false;
};

}  // namespace convoy::train
