// Layer norm over plain rows and sequences, of a value or of a sum.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/layer_norm.hpp>
#include <convoy/exec/host/kernel/residual_norm.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::LayerNorm> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

/// Shared parts of layer norm stages with a task of type `Task`: the value and the parameters.
template <class Task>
class NormOfVectors : public Stage {
 protected:
  [[gnu::cold]] NormOfVectors(Program& p, const graph::Stage& stage, int index)
      : node_(stage.output), index_(index), value_(p.yield(stage.output, index)) {
    value_.takes_second = true;
    task_.features = p.node(node_).shape.last();
    task_.vectors = value_.elements() / task_.features;
    task_.epsilon = p.attributes<graph::LayerNorm>(node_).epsilon;
    until_ = value_.wants_gradient ? p.backward_time(index) : index;
    kept_ = p.request(2 * task_.vectors * static_cast<std::int64_t>(sizeof(float)), index, until_);
  }
  [[gnu::cold]] void plan_parameters(Program& p) {
    const int time = p.backward_time(index_);
    for (int k = 0; k < p.node(node_).uses; ++k)
      d_parameter_[k] = p.contribute_parameter(p.parameter(node_, k), Layout({task_.features}, dnnl_x), time);
    partial_ =
        p.request(p.threads() * 2 * task_.features * static_cast<std::int64_t>(sizeof(float)), time, time);
  }
  [[gnu::cold]] void bind(Program& p) override {
    for (Contribution& parameter : d_parameter_) parameter.bind(p);
    task_.weight = p.parameters().value(p.parameter(node_, 0));
    if (p.node(node_).uses > 1) task_.bias = p.parameters().value(p.parameter(node_, 1));
    task_.d_weight = d_parameter_[0].pointer();
    task_.d_bias = d_parameter_[1].pointer();
    task_.y = p.address(value_.data.place);
    task_.kept = p.address(kept_);
    task_.dy = p.address(value_.gradient);
    task_.second = p.address(value_.second);
    task_.partial = p.address(partial_);
  }
  void finish_parameters(Program& p) const {
    for (const Contribution& parameter : d_parameter_) parameter.finish(p.threads());
  }

  int node_, index_, until_;  // `until_`: the last time at which the stage reads what it keeps
  Value& value_;
  Task task_;

 private:
  Location kept_, partial_;
  Contribution d_parameter_[2];
};

class LayerNormStage final : public NormOfVectors<LayerNormTask> {
 public:
  [[gnu::cold]] LayerNormStage(Program& p, const graph::Stage& stage, int index)
      : NormOfVectors(p, stage, index), input_(p.from(node_, 0)) {
    p.keep(p.value(input_), until_);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
    plan_parameters(p);
  }
  [[gnu::cold]] void bind(Program& p) override {
    NormOfVectors::bind(p);
    contribution_.bind(p);
    task_.dx = contribution_.pointer();
    task_.accumulate_dx = contribution_.accumulates();
  }
  void forward(Program& p) override {
    task_.x = p.input(input_);
    layer_norm_forward(task_, p.threads());
  }
  void backward(Program& p) override {
    layer_norm_backward(task_, p.threads());
    finish_parameters(p);
  }

 private:
  int input_;
  Contribution contribution_;
};

/// A layer norm of addend + branch, with or without dropout of the branch. Of the values within the stage,
/// only the sum is kept for backward.
class ResidualNormStage final : public NormOfVectors<ResidualNormTask> {
 public:
  [[gnu::cold]] ResidualNormStage(Program& p, const graph::Stage& stage, int index)
      : NormOfVectors(p, stage, index),
        dropout_(p.find<graph::Dropout>(stage)),
        branch_(p.from(stage.leader, 0)),
        addend_(addend_of(p.plan(), stage)) {
    if (dropout_ >= 0) task_.rule = DropoutRule(p.attributes<graph::Dropout>(dropout_).p);
    task_.row_vectors = task_.vectors / p.rows();
    sum_ = p.request(value_.bytes(), index, until_);
    p.keep(p.value(branch_), index);
    p.keep(p.value(addend_), index);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    // The sum's gradient overwrites the value's, which is no longer read.
    if (!p.share_gradient(addend_, value_)) d_addend_ = p.contribute(addend_, true, time);
    d_branch_ = p.contribute(branch_, true, time);
    wants_sum_ = p.value(addend_).wants_gradient || p.value(branch_).wants_gradient;
    plan_parameters(p);
  }
  [[gnu::cold]] void bind(Program& p) override {
    NormOfVectors::bind(p);
    d_addend_.bind(p);
    d_branch_.bind(p);
    kept_sum_ = p.address(sum_);
    if (wants_sum_) task_.dx = p.address(value_.gradient);
    task_.d_addend = d_addend_.pointer();
    task_.accumulate_addend = d_addend_.accumulates();
    task_.d_branch = d_branch_.pointer();
    task_.accumulate_branch = d_branch_.accumulates();
  }
  void forward(Program& p) override {
    task_.branch = p.input(branch_);
    task_.addend = p.input(addend_);
    const bool trains = p.pass().mode == Mode::train;
    // If no backward follows, the sum is not kept, and its norm overwrites it.
    task_.x = task_.sum = trains ? kept_sum_ : task_.y;
    task_.drops = dropout_ >= 0 && trains;
    if (task_.drops) task_.draws = Draws(p.pass(), p.node(dropout_).name.view());
    layer_norm_forward<ResidualNormLoop>(task_, p.threads());
  }
  void backward(Program& p) override {
    layer_norm_backward<ResidualNormBackwardLoop>(task_, p.threads());
    finish_parameters(p);
  }

 private:
  int dropout_, branch_, addend_;  // `dropout_` is -1 if nothing is dropped
  bool wants_sum_ = false;
  Location sum_;
  float* kept_sum_ = nullptr;
  Contribution d_addend_, d_branch_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::LayerNorm>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  if (stage.count > 1) return std::make_unique<host::ResidualNormStage>(program, stage, index);
  return std::make_unique<host::LayerNormStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
