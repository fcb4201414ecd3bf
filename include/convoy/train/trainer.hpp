// Trainer: data-parallel training from four policies: a model, an optimizer, a gradient exchange (Comm) and
// an execution policy (Exec).
#pragma once

#include <utility>

#include <convoy/core/dtype.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/composes.hpp>
#include <convoy/train/config.hpp>
#include <convoy/train/plan_trainer.hpp>

namespace convoy {

namespace exec {
template <class Precision>
class Host;
}

/// Data-parallel training of `Model` with the optimizer `Rule`. Every rank constructs a Trainer and calls the
/// same members.
///
/// The constructor compares what ranks must agree on. If ranks differ, every rank throws a ConfigError that
/// names the rank and the field. The constructor then gives all ranks the initial parameters of rank 0. The
/// arguments after the configuration construct the Comm.
template <class Model, class Rule, class Comm, class Exec = exec::Host<f32>,
          bool = train::composes<Model, Rule, Comm, Exec>()>
class Trainer : public train::PlanTrainer<Rule, Comm, Exec> {
  using Base = train::PlanTrainer<Rule, Comm, Exec>;

 public:
  using typename Base::Config;

  /// The traced model, a constant.
  static constexpr auto& plan = plan_of<Model>;  // auto: given the type's name, nvcc sees two initializers

  template <class... CommArguments>
  explicit Trainer(const Config& config, CommArguments&&... comm_arguments)
      : Base(plan, exec::kernels<Exec, plan_of<Model>.used>, config,
             std::forward<CommArguments>(comm_arguments)...) {}
};

/// The Trainer of a model or of policies that `composes` has refused. It has the members of any other, so
/// that a program's use of them is no further error. No program that contains one is linked.
template <class Model, class Rule, class Comm, class Exec>
class Trainer<Model, Rule, Comm, Exec, false> : public train::PlanTrainer<Rule, Comm, Exec> {
 public:
  using Config = train::Config<Rule, Exec>;
  static constexpr auto& plan = graph::no_plan;
  template <class... Arguments>
  explicit Trainer(const Config&, Arguments&&...);
};

}  // namespace convoy
