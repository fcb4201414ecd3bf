// Recorder: the profile of a plan's operations, from the stage times of exec::Host over many steps.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/exec/host/profile.hpp>
#include <convoy/graph/profile.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>

#include <convoy/core/error.hpp>
#endif

namespace convoy::exec::host {

/// Takes the profiles of single steps and makes their medians a profile of the plan, so that steps delayed by
/// other load on the machine have no effect. The time of a fused stage is divided over its operations in
/// proportion to their times in a roofline model.
class Recorder {
 public:
  /// For steps with batches of `rows` rows. The plan must outlive the recorder.
  Recorder(const Plan& plan, int rows) : plan_(&plan), rows_(rows) {}

  /// Adds a step: Host::profile() since the last reset_profile(), and the seconds of the update. Throws
  /// ConfigError for stages of another plan.
  void take(std::span<const StageProfile> stages, double update);

  std::size_t steps() const { return updates_.size(); }

  /// The profile of the steps so far; `machine` and `model` are labels. Throws ConfigError if there are none.
  graph::Profile profile(std::string machine, std::string model) const;

 private:
  struct Stage {
    std::size_t first, count;  // in plan.members
    std::vector<double> forward, backward;
  };

  const Plan* plan_;
  int rows_;
  std::vector<Stage> stages_;
  std::vector<double> updates_;
};

#if CONVOY_DEFINITIONS

namespace detail {

inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace detail

CONVOY_FUNCTION void Recorder::take(std::span<const StageProfile> stages, double update) {
  const auto mean = [](const Timing& timing) {
    return timing.runs > 0 ? timing.total / static_cast<double>(timing.runs) : 0.0;
  };
  // Stages cover the plan's members in order; each has the name of its first member.
  std::size_t begin = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::string_view next = s + 1 < stages.size() ? std::string_view(stages[s + 1].name) : "";
    std::size_t end = begin + 1;
    while (end < plan_->members.size() && plan_->node(plan_->members[end]).name != next) ++end;
    if (begin >= plan_->members.size() || plan_->node(plan_->members[begin]).name != stages[s].name)
      fail<ConfigError>("profile: the stage ", stages[s].name, " is of another plan");
    if (stages_.size() == s) stages_.push_back({begin, end - begin, {}, {}});
    stages_[s].forward.push_back(mean(stages[s].forward));
    stages_[s].backward.push_back(mean(stages[s].backward));
    begin = end;
  }
  updates_.push_back(update);
}

CONVOY_FUNCTION graph::Profile Recorder::profile(std::string machine, std::string model) const {
  if (updates_.empty()) fail<ConfigError>("profile: no step was recorded");
  constexpr double balance = 20;  // FLOPs per byte
  graph::Profile profile = graph::roofline(*plan_, rows_, balance, 1);
  std::vector<std::size_t> operation_of(plan_->nodes.size());
  const std::vector<int> nodes = graph::computed_nodes(*plan_);
  for (std::size_t i = 0; i < nodes.size(); ++i) operation_of[static_cast<std::size_t>(nodes[i])] = i;
  const auto share_out = [&](const Stage& stage, double graph::OperationTime::*direction, double seconds) {
    const auto each = [&](auto visit) {
      for (std::size_t m = stage.first; m < stage.first + stage.count; ++m)
        visit(profile.operations[operation_of[static_cast<std::size_t>(plan_->members[m])]].*direction);
    };
    double sum = 0;
    each([&](double weight) { sum += weight; });
    each([&](double& time) {
      time = seconds * (sum > 0 ? time / sum : 1.0 / static_cast<double>(stage.count));
    });
  };
  for (const Stage& stage : stages_) {
    share_out(stage, &graph::OperationTime::forward, detail::median_of(stage.forward));
    share_out(stage, &graph::OperationTime::backward, detail::median_of(stage.backward));
  }
  profile.machine = std::move(machine);
  profile.exec = "host";
  profile.model = std::move(model);
  profile.update = detail::median_of(updates_);
  return profile;
}

#endif

}  // namespace convoy::exec::host
