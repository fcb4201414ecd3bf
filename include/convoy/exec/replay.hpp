// Replay: an Exec that computes nothing and takes as long as a machine that is not there, so that real
// messages of real sizes are exchanged at the pace of that machine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/profile.hpp>
#include <convoy/memory/host.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <array>

#include <convoy/core/error.hpp>
#include <convoy/core/sleep.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/exec/stages.hpp>
#endif

namespace convoy::exec {

struct ReplayOptions {
  graph::Profile profile = {};  ///< of the trained plan; ranks of other machines have other profiles
  double speed = 1;             ///< speedup over the profile: 2 takes half of its seconds
  double poll = 0.5e-3;   ///< seconds of backward between calls of on_final; 0: calls after each stage only
  bool rule = false;      ///< runs the optimizer's rule instead of taking the profile's seconds of the update
  float gradient = 0;     ///< value of every element of every gradient
  int threads = 1;        ///< threads of the optimizer's rule
  bool canonical = true;  ///< ignored: the arenas always have the plan's order

  static constexpr void fields(auto& self, auto&& field) {
    field("profile", self.profile, fields::local);
    field("speed", self.speed, fields::local);
    field("poll", self.poll, fields::local);
    field("rule", self.rule);
    field("gradient", self.gradient, fields::local);
    field("threads", self.threads, fields::local);
    field("canonical", self.canonical, fields::local);
  }
};

namespace replay {

/// The kernel of every operation: says only that it exists.
struct Slept {
  bool there = false;
  constexpr explicit operator bool() const { return there; }
};

}  // namespace replay

/// An Exec that sleeps for the seconds of a profile, in proportion to the rows of a batch, and calls on_final
/// when backward on the profile's machine would. Works for every plan.
///
/// The arenas are real, and gradients are exchanged. Every gradient element is Options::gradient; every loss,
/// metric, statistic and output is 0; no label is predicted correctly. Labels and ids are checked as in other
/// Execs.
///
/// The end of each stage is a fixed time after the pass began, so that delays do not add up: the caller's
/// work in on_final overlaps with the computation, as it does on a device. The update is asynchronous, as on
/// a device: the next pass begins once the profile's seconds of the update have passed. Parameter servers run
/// the optimizer's rule for real. The thread sleeps, so that ranks that share a processor do not slow one
/// another. Throws ConfigError for a profile of another plan and for a batch that does not fit the plan,
/// ExecError for calls out of order.
class Replay {
 public:
  using Scalar = float;
  using Options = ReplayOptions;
  using Space = memory::Host;
  using Make = replay::Slept;
  static constexpr std::string_view name = "replay";
  static constexpr int latency = 0;
  static constexpr bool may_overflow = false;
  static constexpr bool sums_across_ranks = false;

  Replay(const Plan& plan, int batch, const Options& options, Space& space, const Kernels<Replay>& kernels);
  Replay(const Plan& plan, int batch, const Options& options, Space& space = memory::host());

  Space& space() { return *space_; }
  std::string_view precision() const { return "f32"; }
  std::uint64_t layout_fingerprint() const { return 0; }
  int threads() const { return options_.threads > 1 ? options_.threads : 1; }
  std::int64_t panel(int) const { return 1; }
  std::span<float> parameters() { return {parameters_.data(), parameters_.size()}; }
  std::span<float> gradients() { return {gradients_.data(), gradients_.size()}; }
  std::span<float> statistics() { return {statistics_.data(), statistics_.size()}; }

  void read_parameter(int i, std::span<float> values) const;
  void write_parameter(int i, std::span<const float> values);
  void read_gradient(int i, std::span<float> values) const;
  void reorder(int i, std::span<const float> from, std::span<float> to, bool into_slot) const;
  void touched(Range) {}
  /// Adds the seconds of updating a range of parameters to the pending updates; false if the caller must run
  /// the optimizer's rule.
  bool updates(Range range);

  void forward(const BatchView& batch, const Pass& pass);

  template <class OnFinal>
  void backward(std::span<const float> scales, OnFinal&& on_final) {
    begin_backward(scales);
    for (const Stage& stage : stages_) {
      while (wait_for_end_of(stage)) on_final(final_);
      make_final(stage.final);
      on_final(final_);
    }
  }

  Result result();
  std::span<const float> output(int k) const;

  /// Seconds that forward and backward of a batch take.
  double forward_seconds(int rows) const { return forward_ * scale(rows); }
  double backward_seconds(int rows) const { return stages_.empty() ? 0 : stages_.back().end * scale(rows); }

 private:
  /// One stage of backward.
  struct Stage {
    double end;          // seconds of the profile since backward began
    std::int64_t final;  // elements of the gradient arena that are final after it
  };

  /// Factor from seconds of the profile to seconds of a batch of `rows` rows.
  double scale(int rows) const { return rows / (options_.profile.rows * options_.speed); }
  /// The time `seconds` of the profile after the pass began.
  Clock::time_point moment(double seconds) const {
    return began_ + std::chrono::duration_cast<Clock::duration>(Seconds(seconds * scale(rows_)));
  }
  void begin_backward(std::span<const float> scales);
  /// Sleeps until a stage ends, or until the next poll if that is earlier; returns whether it stopped for a
  /// poll.
  bool wait_for_end_of(const Stage& stage);
  void make_final(std::int64_t final);

  Plan plan_;
  int batch_, rows_ = 0;
  Options options_;
  Space* space_;
  memory::Array<float, Space> parameters_, gradients_, statistics_;
  double forward_ = 0;                 // seconds of the profile
  std::vector<Stage> stages_;          // in the order of backward
  Clock::time_point began_, updated_;  // start of the pass, and end of all updates so far
  std::int64_t final_ = 0;
  bool ran_ = false;
  Mode mode_ = Mode::evaluate;
  int results_ = 0;            // passes whose results were not taken
  std::vector<double> zeros_;  // losses, then metrics
  std::vector<std::vector<float>> outputs_;
};

/// Every operation has a kernel.
template <class Op>
struct Kernel<Replay, Op> {
  static constexpr replay::Slept make{true};
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION Replay::Replay(const Plan& plan, int batch, const Options& options, Space& space)
    : Replay(plan, batch, options, space, kernels<Replay>) {}

CONVOY_FUNCTION Replay::Replay(const Plan& plan, int batch, const Options& options, Space& space,
                               const Kernels<Replay>&)
    : plan_(plan),
      batch_(batch),
      options_(options),
      space_(&space),
      parameters_(space, static_cast<std::size_t>(plan.sizes.parameters)),
      gradients_(space, static_cast<std::size_t>(plan.sizes.exchanged)),
      statistics_(space, static_cast<std::size_t>(plan.sizes.statistics)),
      zeros_(plan.losses.size() + plan.metrics.size()) {
  if (batch <= 0) fail<ConfigError>("exec: the batch must have at least one row, not ", batch);
  if (!(options.speed > 0) || !graph::is_time(1 / options.speed))
    fail<ConfigError>("exec: the speed of a replay must be positive and not too small, not ", options.speed);
  if (!graph::is_time(options.poll))
    fail<ConfigError>("exec: a replay cannot poll every ", options.poll, " seconds");
  if (options.profile.operations.empty()) fail<ConfigError>("exec: a replay needs a profile of the plan");
  graph::expect_profile(plan, options.profile);

  std::vector<double> backward(plan.nodes.size());
  const std::vector<int> nodes = graph::computed_nodes(plan);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    backward[static_cast<std::size_t>(nodes[i])] = options.profile.operations[i].backward;
  forward_ = options.profile.forward();
  const std::vector<graph::Stage> stages(plan.stages.begin(), plan.stages.end());
  const Finality finality = find_finality(plan, stages);
  double seconds = 0;
  for (std::size_t s = stages.size(); s-- > 0;) {
    for (int k = 0; k < stages[s].count; ++k)
      seconds += backward[static_cast<std::size_t>(plan.member(static_cast<int>(s), k))];
    stages_.push_back({seconds, finality.end[s]});
  }
  for (const graph::Output& output : plan.outputs)
    outputs_.emplace_back(static_cast<std::size_t>(batch) *
                          static_cast<std::size_t>(plan.node(output.node).shape.size()));
}

CONVOY_FUNCTION void Replay::read_parameter(int i, std::span<float> values) const {
  expect_parameter(plan_, i, values.size());
  read_canonical(plan_, i, std::span<const float>(parameters_.data(), parameters_.size()), values);
}
CONVOY_FUNCTION void Replay::write_parameter(int i, std::span<const float> values) {
  expect_parameter(plan_, i, values.size());
  write_canonical(plan_, i, values, parameters());
}
CONVOY_FUNCTION void Replay::read_gradient(int i, std::span<float> values) const {
  expect_parameter(plan_, i, values.size());
  for_each_element(plan_, i, [&](std::int64_t at, std::int64_t place, bool live) {
    values[static_cast<std::size_t>(at)] = live && plan_.trained(i) ? gradients_.data()[place] : 0.0f;
  });
}
CONVOY_FUNCTION void Replay::reorder(int, std::span<const float> from, std::span<float> to, bool) const {
  std::copy(from.begin(), from.end(), to.begin());
}

CONVOY_FUNCTION void Replay::forward(const BatchView& batch, const Pass& pass) {
  began_ = std::max(updated_, Clock::now());
  expect_batch(plan_, batch, batch_);
  rows_ = batch.rows;
  mode_ = pass.mode;
  ran_ = true;
  ++results_;
  sleep_exactly_until(moment(forward_));
}

CONVOY_FUNCTION bool Replay::updates(Range range) {
  if (options_.rule) return false;
  const double share = static_cast<double>(range.size()) / static_cast<double>(plan_.sizes.exchanged);
  updated_ =
      std::max(updated_, Clock::now()) +
      std::chrono::duration_cast<Clock::duration>(Seconds(options_.profile.update * share / options_.speed));
  return true;
}

CONVOY_FUNCTION void Replay::begin_backward(std::span<const float> scales) {
  if (!ran_ || mode_ != Mode::train)
    fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
  expect_scales(plan_, scales);
  began_ = Clock::now();
  final_ = 0;
}

CONVOY_FUNCTION bool Replay::wait_for_end_of(const Stage& stage) {
  const Clock::time_point end = moment(stage.end);
  if (options_.poll > 0) {
    const Clock::time_point next =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(options_.poll));
    if (next < end) {
      sleep_until(next);
      return true;
    }
  }
  if (&stage == &stages_.back())
    sleep_exactly_until(end);
  else
    sleep_until(end);
  return false;
}

CONVOY_FUNCTION void Replay::make_final(std::int64_t final) {
  // Zeros need no refill: an exchange leaves them zero. Other values were replaced by the exchange's sums.
  if (options_.gradient != 0)
    std::fill(gradients_.data() + final_, gradients_.data() + final, options_.gradient);
  final_ = final;
}

CONVOY_FUNCTION Result Replay::result() {
  if (results_ == 0) fail<ExecError>("exec: a result was asked for before a forward pass");
  --results_;
  const std::span<const double> zeros(zeros_);
  return {.losses = zeros.first(plan_.losses.size()), .metrics = zeros.subspan(plan_.losses.size())};
}

CONVOY_FUNCTION std::span<const float> Replay::output(int k) const {
  if (k < 0 || k >= static_cast<int>(outputs_.size())) fail<ConfigError>("exec: the model has no output ", k);
  if (!ran_) fail<ExecError>("exec: output ", k, " was asked for before a forward pass");
  const auto elements = plan_.node(plan_.outputs[static_cast<std::size_t>(k)].node).shape.size();
  return std::span<const float>(outputs_[static_cast<std::size_t>(k)])
      .first(static_cast<std::size_t>(rows_) * static_cast<std::size_t>(elements));
}

#endif

static_assert(Exec<Replay>);

}  // namespace convoy::exec
