// The parameters of a Trainer by their PyTorch names, in canonical form, for users to read and write.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>

namespace convoy::train {

/// One parameter. The Trainer must outlive it.
template <exec::Exec Exec>
class ParameterView {
 public:
  ParameterView(Exec& exec, const Plan& plan, int index) : exec_(&exec), plan_(&plan), index_(index) {}

  std::string_view name() const { return parameter().name.view(); }
  /// The shape as in PyTorch.
  const Shape& shape() const { return parameter().shape; }
  std::size_t size() const { return static_cast<std::size_t>(shape().size()); }
  /// Whether the model has the parameter trained; a group of the optimizer may still freeze it.
  bool trained() const { return plan_->trained(index_); }

  std::vector<float> values() const {
    std::vector<float> values(size());
    exec_->read_parameter(index_, values);
    return values;
  }
  /// Writes on this rank only: all ranks must write the same values. Throws ConfigError for a wrong number of
  /// values.
  void write(std::span<const float> values) const {
    exec_->write_parameter(index_, values);
    exec_->touched(plan_->slot(index_).live);
  }
  /// After `backward`, this rank's own gradient; after `step`, the sum over ranks before clipping, for
  /// elements that this rank updates. Zero for filter taps that only ever meet padding.
  std::vector<float> gradient() const {
    std::vector<float> values(size());
    exec_->read_gradient(index_, values);
    return values;
  }
  /// Replaces this rank's own gradient; call it between `backward` and `step`. Throws ConfigError for a
  /// frozen parameter or a wrong number of values.
  void write_gradient(std::span<const float> values) const {
    exec::expect_parameter(*plan_, index_, values.size());
    if (!trained()) fail<ConfigError>("trainer: ", name(), " is frozen and has no gradient");
    const Range live = plan_->slot(index_).live;
    std::vector<float> in_order(static_cast<std::size_t>(live.size())), in_slot(in_order.size());
    exec::for_each_element(*plan_, index_, [&](std::int64_t i, std::int64_t at, bool is_live) {
      if (is_live) in_order[static_cast<std::size_t>(at - live.begin)] = values[static_cast<std::size_t>(i)];
    });
    exec_->reorder(index_, in_order, in_slot, true);
    exec_->space().write(exec_->gradients().data() + live.begin, in_slot.data(),
                         in_slot.size() * sizeof(float));
  }

 private:
  const graph::Parameter& parameter() const { return plan_->parameter(index_); }

  Exec* exec_;
  const Plan* plan_;
  int index_;
};

/// All parameters in order of definition, which can also be found by name.
template <exec::Exec Exec>
class ParameterList {
 public:
  ParameterList(Exec& exec, const Plan& plan) {
    for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) all_.emplace_back(exec, plan, p);
  }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  std::size_t size() const { return all_.size(); }
  const ParameterView<Exec>& operator[](std::size_t i) const { return all_[i]; }
  /// Throws ConfigError if no parameter has the name.
  const ParameterView<Exec>& operator[](std::string_view name) const {
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](const auto& p) { return p.name() == name; });
    if (found == all_.end()) fail<ConfigError>("trainer: the model has no parameter '", name, "'");
    return *found;
  }

 private:
  std::vector<ParameterView<Exec>> all_;
};

}  // namespace convoy::train
