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
#include <convoy/memory/host.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/train/arenas.hpp>
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
  using Space = typename Exec::Space;

  /// Compares what ranks must agree on (CommError names the rank and the field that differ) and gives all
  /// ranks the initial parameters of rank 0. `plan` and `kernels` outlive it; `comm_arguments` construct the
  /// Comm.
  template <class... CommArguments>
  Replica(const Plan& plan, const exec::Kernels<Exec>& kernels, const Config& config,
          CommArguments&&... comm_arguments)
      : plan_(plan),
        kernels_(kernels),
        config_(config),
        comm_(std::forward<CommArguments>(comm_arguments)...),
        space_(make_space<Space>(comm_)),
        state_space_(make_state_space(space_)),
        most_rows_(config.batch),
        optimizer_(make_optimizer<Rule, Space>(state_space_, plan, config)) {
    open();
  }
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  ~Replica() { space_.synchronize(); }

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

  /// Between these two, servers make the updates; a server returns when the workers are done.
  void serve() {
    served_from_ = steps_;
    comm_.serve(serve_);
  }
  void dismiss() {
    comm_.dismiss();
    if (comm_.has_servers()) exec_->touched({0, plan_.sizes.exchanged});
  }

  /// Begins a step. `counts` is, for each loss, what all ranks and all micro-steps of the step count: the
  /// divisors of its mean.
  void begin(std::span<const double> counts) {
    std::copy(counts.begin(), counts.end(), counts_of(steps_));
    for (std::size_t l = 0; l < scales_.size(); ++l)
      scales_[l] = counts[l] > 0 ? static_cast<float>(1.0 / counts[l]) : 0.0f;
    now_ = {};
    now_.lr = lr_at(steps_);
    if (!comm_.has_servers()) optimizer_.begin(steps_ + 1, now_.lr);
  }

  /// Forward and backward; the last micro-step of a step exchanges each bucket as soon as its gradients are
  /// final.
  void compute(const exec::BatchView& batch, const exec::Pass& pass, std::int64_t global_rows, bool last) {
    const auto begin = Clock::now();
    auto forward_end = begin;
    if (batch.rows > 0) {
      exec_->forward(batch, pass);
      ++now_.results;
      forward_end = Clock::now();
    }
    now_.rows += batch.rows;
    now_.global_rows += global_rows;
    run_backward(batch.rows > 0, last);
    const auto end = Clock::now();
    now_.backward = Seconds(end - forward_end).count();
    if (config_.timeline != nullptr) {
      config_.timeline->record("forward", -1, Track::compute, begin, forward_end);
      config_.timeline->record("backward", -1, Track::compute, forward_end, end);
    }
  }

  /// For a loop of the user's own: forward alone, backward alone, whose gradients add up until `exchange`
  /// hands all of them over.
  void forward(const exec::BatchView& batch, const exec::Pass& pass, std::int64_t global_rows) {
    exec_->forward(batch, pass);
    now_.batches = ++now_.results;
    now_.rows += batch.rows;
    now_.global_rows += global_rows;
  }
  void backward() {
    const std::span<float> gradients = exec_->gradients();
    if (micro_ > 0) {
      if (sum_.size() == 0) sum_ = memory::Array<float, Space>(space_, gradients.size());
      space_.copy(sum_.data(), gradients.data(), gradients.size_bytes());
    }
    exec_->backward(scales_, [](std::int64_t) {});
    if (micro_++ > 0) space_.add(gradients.data(), sum_.data(), static_cast<std::int64_t>(gradients.size()));
  }
  void exchange() {
    micro_ = 0;
    for (std::size_t b = 0; b < buckets_.size(); ++b) comm_.begin(static_cast<int>(b), space_.mark());
  }

  /// Completes the exchange and applies the optimizer, and reports the step so many steps ago as the Exec's
  /// results are late: of all ranks' losses, and whether any of them asked to `stop`. Nothing while there is
  /// no such step.
  std::optional<StepReport> finish(bool stop) {
    const auto begin = Clock::now();
    comm_.finish(apply_);
    if (others_update_) exec_->touched({0, plan_.sizes.exchanged});
    optimizer_.decay_dead(steps_ + 1, now_.lr, exec_->parameters().data());
    if (!dead_.empty()) exec_->touched(dead_);
    now_.updating = std::exchange(updating_, 0.0);
    now_.step = steps_++;
    now_.stop = stop;
    now_.exposed = Seconds(Clock::now() - begin).count() - now_.updating;
    pending_.push_back(now_);
    if (static_cast<int>(pending_.size()) <= Exec::latency) return std::nullopt;
    return settle_oldest();
  }

  /// The report of the oldest step that was not reported yet, once there is nothing more to wait for; nothing
  /// when all are.
  std::optional<StepReport> settle() {
    if (pending_.empty()) return std::nullopt;
    return settle_oldest();
  }

  /// Whether any rank asked to stop in the step that was reported last.
  bool told_to_stop() const { return told_to_stop_; }

  /// What the next step counts on this rank, summed over ranks with the report of this one.
  std::span<double> next_counts() { return next_counts_; }

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
  void average_statistics() {
    if (workers() > 1 && !exec_->statistics().empty())
      on_host(exec_->statistics(), [&](std::span<float> values) { comm_.all_reduce(values, comm::mean); });
  }

  /// Seconds that the exchange of one step takes while nothing is computed: the median of `repetitions` on
  /// the slowest rank; train::hidden() compares with it. Every worker calls it, after training where a codec
  /// keeps account of what it left out or of its first steps. Throws ConfigError where servers make an update
  /// of all that they get.
  double exchange_seconds(int repetitions = 5) {
    if (comm_.has_servers())
      fail<ConfigError>(
          "trainer: where servers make the updates there is no exchange without one to measure");
    const std::span<float> gradients = exec_->gradients();
    space_.fill(gradients.data(), static_cast<std::int64_t>(gradients.size()), 0.0f);
    std::vector<double> seconds;
    for (int i = 0; i < repetitions; ++i) {
      comm_.barrier();
      const Stopwatch watch;
      for (std::size_t b = 0; b < buckets_.size(); ++b) comm_.begin(static_cast<int>(b), space_.mark());
      comm_.finish([](Range, float) {});
      space_.synchronize();
      seconds.push_back(watch.seconds());
    }
    double slowest[] = {median(seconds)};
    comm_.all_reduce(std::span<double>(slowest), comm::max);
    return slowest[0];
  }

 private:
  // Nobody exchanges the optimizer's state, so on the host it lies in memory of this rank's own.
  using StateSpace = std::conditional_t<std::is_same_v<Space, memory::Host>, memory::Host, Space&>;
  static StateSpace make_state_space(Space& space) {
    if constexpr (std::is_same_v<Space, memory::Host>)
      return memory::Host();
    else
      return space;
  }

  // What is known of a step before its results are.
  struct Pending {
    std::int64_t step = 0, rows = 0, global_rows = 0;
    int results = 0;
    int batches = 1;  // of as many rows as were counted
    double backward = 0, exposed = 0, updating = 0;
    float lr = 0;
    bool stop = false;
  };

  void open() {
    if (config_.batch < 1) fail<ConfigError>("trainer: the batch must be at least 1, not ", config_.batch);
    if (config_.accumulate < 1)
      fail<ConfigError>("trainer: accumulate must be at least 1, not ", config_.accumulate);
    config_.schedule.check();
    if (optimizer_.decides() && !comm_.decides())
      fail<ConfigError>("trainer: the exchange ", comm_.policy(),
                        " cannot decide over a whole gradient, so it can neither clip nor skip steps");
    buckets_ = make_buckets(plan_, config_.buckets);
    scales_.resize(plan_.losses.size());
    next_counts_.resize(plan_.losses.size());
    counts_.resize(plan_.losses.size() * (static_cast<std::size_t>(Exec::latency) + 1));
    sums_.resize(plan_.losses.size() + next_counts_.size() + fixed_sums);
    pending_.reserve(static_cast<std::size_t>(Exec::latency) + 1);
    take_share();
    build_exec();
    if constexpr (requires { state_space_.set_threads(1); }) state_space_.set_threads(exec_->threads());
    exec::initialize(*exec_, plan_, config_.seed);
    tensors_ = matrices(plan_, [&](int p) { return exec_->panel(p); });
    comm_.open(fingerprint(), {.gradients = exec_->gradients(),
                               .parameters = exec_->parameters(),
                               .buckets = buckets_,
                               .tensors = tensors_,
                               .space = &space_});
    own(comm_.updates(buckets_));
    on_host(exec_->parameters(), [&](std::span<float> values) { comm_.broadcast(values, 0); });
    on_host(exec_->statistics(), [&](std::span<float> values) { comm_.broadcast(values, 0); });
    exec_->touched({0, plan_.sizes.parameters});
    if (config_.accumulate > 1) sum_ = memory::Array<float, Space>(space_, exec_->gradients().size());
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

  /// This rank updates these ranges; what it does not update, others write.
  void own(const std::vector<Range>& ranges) {
    optimizer_.own(ranges);
    std::int64_t others = 0;
    for (const Range& bucket : buckets_) others += bucket.size();
    for (const Range& range : ranges) others -= range.size();
    others_update_ = comm_.has_servers() || others > 0;
    dead_ = {plan_.sizes.parameters, plan_.sizes.parameters};
    for (const graph::Slot& slot : plan_.slots)
      if (!slot.dead.empty()) dead_.begin = std::min(dead_.begin, slot.dead.begin);
  }

  /// Which part of a batch this rank computes, where the Comm makes a difference between workers.
  void take_share() {
    if (comm_.role() != comm::Role::worker) return;
    auto measure = [&](double share, double& speed) {
      const int rows = std::max(1, static_cast<int>(std::lround(share * config_.batch * workers())));
      speed = measured_speed<Exec>(plan_, kernels_, rows, config_.exec, comm_);
    };
    shares_ = comm_.shares(measure);
    if (!shares_.empty())
      most_rows_ =
          static_cast<int>(std::max<std::int64_t>(1, shard().most(std::int64_t{config_.batch} * workers())));
  }

  /// Ranks whose Exec orders elements differently (another instruction set) fall back to the canonical order
  /// together.
  void build_exec() {
    exec_.emplace(plan_, most_rows_, config_.exec, space_, kernels_);
    if constexpr (requires(typename Exec::Options o) { o.canonical; }) {
      // Exact as doubles in halves; equal on all ranks if the largest is also the smallest.
      const auto hash = exec_->layout_fingerprint();
      const auto high = static_cast<double>(hash >> 32), low = static_cast<double>(hash & 0xffffffffu);
      double largest[] = {high, low, -high, -low};
      comm_.all_reduce(std::span<double>(largest), comm::max);
      if (largest[0] == -largest[2] && largest[1] == -largest[3]) return;
      auto options = config_.exec;
      options.canonical = true;
      exec_.emplace(plan_, most_rows_, options, space_, kernels_);
    }
  }

  comm::Fingerprint fingerprint() const {
    comm::Fingerprint f;
    f.add("model", plan_.fingerprint);
    f.add("world", comm_.size());
    f.add("precision", exec_->precision());
    f.add("layout", exec_->layout_fingerprint());
    std::uint64_t hash = hash_start;
    for (const Range& bucket : buckets_) hash = hash_of(static_cast<std::uint64_t>(bucket.end), hash);
    f.add("bucket_ranges", hash);
    optimizer_.optimizer().for_each_text("optimizer",
                                         [&](std::string_view name, const std::string& text, bool agreed) {
                                           if (agreed) f.add(name, std::string_view(text));
                                         });
    fields::for_each_text({}, config_, [&](std::string_view name, const std::string& text, bool agreed) {
      if (agreed && !name.starts_with("optimizer")) f.add(name, std::string_view(text));
    });
    return f;
  }

  float lr_at(std::int64_t step) const {
    return static_cast<float>(optimizer_.optimizer().lr() * config_.schedule.factor(step, workers()));
  }

  /// Backward of the last forward pass, if there was one. Begins buckets as their gradients become final, if
  /// this is the step's `last`.
  void run_backward(bool computed, bool last) {
    const std::span<float> gradients = exec_->gradients();
    const auto size = static_cast<std::int64_t>(gradients.size());
    std::size_t bucket = 0;
    const bool first = micro_ == 0;
    // A server may write a bucket's parameters once it has their gradients, and those of the layer under way
    // are read until backward calls again.
    const bool served = comm_.has_servers();
    std::int64_t said = 0;
    const auto begin_up_to = [&](std::int64_t final) {
      for (; bucket < buckets_.size() && buckets_[bucket].end <= final; ++bucket) {
        const Range range = buckets_[bucket];
        if (!first) space_.add(gradients.data() + range.begin, sum_.data() + range.begin, range.size());
        comm_.begin(static_cast<int>(bucket), space_.mark());
      }
    };
    const auto on_final = [&](std::int64_t final) {
      if (!last) return;
      if (config_.overlap) begin_up_to(served ? std::exchange(said, final) : final);
      comm_.poll();
    };
    if (computed)
      exec_->backward(scales_, on_final);
    else
      space_.fill(gradients.data(), size, 0.0f);
    if (last) {
      begin_up_to(size);
      micro_ = 0;
      return;
    }
    if (first)
      space_.copy(sum_.data(), gradients.data(), gradients.size_bytes());
    else
      space_.add(sum_.data(), gradients.data(), size);
    ++micro_;
  }

  std::optional<StepReport> settle_oldest() {
    const Pending step = pending_.front();
    pending_.erase(pending_.begin());
    const std::size_t losses = scales_.size();
    // Losses, then what the next step counts, then the rest.
    std::fill(sums_.begin(), sums_.end(), 0.0);
    double* const rest = sums_.data() + losses + next_counts_.size();
    for (int i = 0; i < step.results; ++i) {
      const exec::Result result = exec_->result();
      for (std::size_t l = 0; l < losses; ++l) sums_[l] += result.losses[l];
      rest[correct] += static_cast<double>(result.correct);
      rest[labels] += static_cast<double>(result.labels);
    }
    bool sound = true;
    for (std::size_t l = 0; l < losses; ++l) sound = sound && std::isfinite(sums_[l]);
    if (!sound) {
      std::fill_n(sums_.begin(), losses, 0.0);
      rest[unsound] = 1;
      rest[culprit] = rank() + 1.0;
    }
    rest[stops] = step.stop ? 1 : 0;
    std::copy(next_counts_.begin(), next_counts_.end(), sums_.begin() + static_cast<std::ptrdiff_t>(losses));
    // Workers that do not wait for each other each know of themselves only.
    const bool together = comm_.lockstep();
    if (together) {
      const auto from = Clock::now();
      comm_.all_reduce(std::span<double>(sums_), comm::sum);
      exposed_since_ += Seconds(Clock::now() - from).count();
    }
    std::copy_n(sums_.begin() + static_cast<std::ptrdiff_t>(losses), next_counts_.size(),
                next_counts_.begin());
    if (rest[unsound] == 1)
      fail<ExecError>("rank ", static_cast<int>(rest[culprit]) - 1, ": the loss of step ", step.step,
                      " is not a number, so training stops", together ? " on all ranks" : "",
                      " (learning rate ", step.lr, ")");
    if (rest[unsound] > 1)
      fail<ExecError>("the loss of step ", step.step, " is not a number on ", static_cast<int>(rest[unsound]),
                      " of ", workers(), " ranks, so training stops (learning rate ", step.lr, ")");
    told_to_stop_ = together && rest[stops] > 0;

    StepReport report;
    report.step = step.step;
    report.rows = step.global_rows;
    const double* counts = counts_of(step.step);
    for (std::size_t l = 0; l < losses; ++l)
      if (counts[l] > 0) report.loss += sums_[l] / (counts[l] * step.batches);
    if (!together && step.rows > 0)
      report.loss *= static_cast<double>(step.global_rows) / static_cast<double>(step.rows);
    report.accuracy = rest[labels] > 0 ? rest[correct] / rest[labels] : 0;
    report.lr = step.lr;
    report.backward_seconds = step.backward;
    report.exposed_comm_seconds = step.exposed + std::exchange(exposed_since_, 0.0);
    return report;
  }

  /// What a server does with gradients.
  struct Serve {
    Replica* replica;
    bool decides() const { return replica->optimizer_.decides(); }
    void arrived(const comm::ServerPart& part) const {
      Replica& r = *replica;
      if (r.serves_anew_) r.optimizer_.begin(part.count, r.lr_at(r.served_from_ + part.step));
      r.serves_anew_ = false;
      r.optimizer_.arrived(part.range, part.scale, part.parameters, part.gradients);
    }
    std::span<double> partial() const { return replica->optimizer_.partial(); }
    bool decide() const {
      replica->serves_anew_ = true;
      return replica->decide();
    }
    void update(const comm::ServerPart& part) const {
      Replica& r = *replica;
      const auto from = Clock::now();
      if (!r.optimizer_.decides()) r.optimizer_.begin(part.count, r.lr_at(r.served_from_ + part.step));
      r.optimizer_.update(part.range, part.scale, part.parameters, part.gradients);
      if (r.config_.timeline != nullptr)
        r.config_.timeline->record("update", -1, Track::optimizer, from, Clock::now());
    }
  };

  /// What a worker does with sums of gradients.
  struct Apply {
    Replica* replica;
    float* parameters(Range range) const { return replica->exec_->parameters().data() + range.begin; }
    const float* gradients(Range range) const { return replica->exec_->gradients().data() + range.begin; }
    bool decides() const { return replica->optimizer_.decides(); }
    void arrived(Range range, float scale) const {
      replica->optimizer_.arrived(range, scale, parameters(range), gradients(range));
    }
    std::span<double> partial() const { return replica->optimizer_.partial(); }
    bool decide() const { return replica->decide(); }
    void update(Range range, float scale) const {
      Replica& r = *replica;
      const auto from = Clock::now();
      r.optimizer_.update(range, scale, parameters(range), gradients(range));
      r.exec_->touched(range);
      const auto to = Clock::now();
      r.updating_ += Seconds(to - from).count();
      if (r.config_.timeline != nullptr) r.config_.timeline->record("update", -1, Track::optimizer, from, to);
    }
  };

  /// What the losses of a step count, kept until the step is reported.
  double* counts_of(std::int64_t step) {
    const auto kept = static_cast<std::int64_t>(Exec::latency) + 1;
    return counts_.data() + step % kept * static_cast<std::int64_t>(plan_.losses.size());
  }

  bool decide() {
    optimizer_.decide(exec_->parameters().data());
    optim::Verdict verdict;
    space_.read(&verdict, optimizer_.verdict(), sizeof verdict);
    return verdict.apply != 0;
  }

  // What is summed over ranks beside losses and counts.
  enum Sum : std::size_t { correct, labels, unsound, culprit, stops, fixed_sums };

  const Plan& plan_;
  const exec::Kernels<Exec>& kernels_;
  Config config_;
  Serve serve_{this};
  Apply apply_{this};
  bool serves_anew_ = true;       // the next part to arrive begins a decision
  std::int64_t served_from_ = 0;  // the step at which the servers began
  Comm comm_;
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
  memory::Array<float, Space> sum_;  // gradients of the micro-steps so far
  int micro_ = 0;
  std::int64_t steps_ = 0;
  std::vector<float> scales_;  // of each loss in this step
  std::vector<double> sums_, next_counts_, counts_;
  Pending now_;
  std::vector<Pending> pending_;
  double updating_ = 0, exposed_since_ = 0;
  bool told_to_stop_ = false;
};

}  // namespace convoy::train
