// Batch norm: alone or after a convolution, with or without a residual and a ReLU.
#pragma once

#include <cstddef>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <optional>

#include <convoy/exec/host/kernel/norm.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::BatchNorm> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static std::unique_ptr<host::Part> fuse(host::Program& program, const graph::Stage& stage, int index,
                                          const host::Bound& x, const host::Value& y);
  static host::Narrow narrow(host::Program&, const graph::Stage&) { return {true, true}; }
  static constexpr host::Make make{build, host::mask_of<graph::Add, graph::Relu>, fuse, narrow};
};

#if CONVOY_DEFINITIONS
namespace host {

/// A batch norm and the operations fused after it, as part of a stage.
class NormPart final : public Part {
 public:
  [[gnu::cold]] NormPart(Program& p, const graph::Stage& stage, int index, const Bound& x, const Value& y)
      : stage_(index),
        norm_(p.find<graph::BatchNorm>(stage)),
        residual_(addend_of(p.plan(), stage)),
        y_(y),
        x_(x) {
    const auto [epsilon, momentum] = p.attributes<graph::BatchNorm>(norm_);
    task_.map = y.map;
    task_.epsilon = epsilon;
    task_.momentum = momentum;
    task_.relu = p.find<graph::Relu>(stage) >= 0;
    const int end = y.wants_gradient ? p.backward_time(index) : index;
    state_ = p.request(NormState::bytes(y.map, p.threads()), index, end);
    if (residual_ < 0) return;
    residual_source_ = p.blocked(residual_, index, end);
    p.keep(p.value(residual_), index);
  }

  [[gnu::cold]] void plan_backward(Program& p, const Value& y, const Bound& dx, bool accumulate_dx) override {
    if (residual_ >= 0) residual_contribution_ = p.contribute(residual_, true, p.backward_time(stage_));
    p.assign(p.parameter(norm_, 0));
    p.assign(p.parameter(norm_, 1));
    dy_ = y.gradient;
    second_ = y.second;
    dx_ = dx;
    task_.accumulate_dx = accumulate_dx;
  }

  [[gnu::cold]] void bind(Program& p) override {
    residual_source_.bind(p);
    residual_contribution_.bind(p);
    task_.state.bind(p.address(state_), task_.map, p.threads());
    const int weight = p.parameter(norm_, 0), bias = p.parameter(norm_, 1);
    task_.weight = p.parameters().value(weight);
    task_.bias = p.parameters().value(bias);
    task_.d_weight = p.parameters().gradient(weight);
    task_.d_bias = p.parameters().gradient(bias);
    task_.running_mean = p.parameters().statistic(p.node(norm_).statistic);
    task_.running_variance = p.parameters().statistic(p.node(norm_).statistic + 1);
    task_.y = p.pixels(y_.data);
    task_.y_rounded = reinterpret_cast<bf16*>(p.address(y_.rounded.place));
    task_.dy = {p.address(dy_), y_.is_narrow};
    task_.second = {p.address(second_), y_.is_narrow};
    if (dx_.place) task_.dx = p.pixels(dx_);
    task_.d_residual = residual_contribution_.pixels();
    task_.accumulate_residual = residual_contribution_.accumulates();
  }

  void forward(Program& p) override {
    residual_source_.run();
    // The addresses of a batch's fields change from call to call.
    task_.x = p.pixels(x_);
    if (residual_ >= 0) task_.residual = p.pixels(residual_source_.to());
    task_.across = p.pass().across;
    if (p.pass().mode == Mode::train)
      norm_forward(task_, p.threads());
    else
      norm_evaluate(task_, p.threads());
  }

  void backward(Program& p) override { norm_backward(task_, p.threads()); }

 private:
  int stage_, norm_, residual_;
  const Value& y_;
  Bound x_, dx_;
  Location state_, dy_, second_;
  Conversion residual_source_;
  Contribution residual_contribution_;
  NormTask task_;
};

/// A batch norm that leads its stage.
class NormStage final : public Stage {
 public:
  [[gnu::cold]] NormStage(Program& p, const graph::Stage& stage, int index)
      : index_(index), input_(p.from(stage.leader, 0)), value_(p.yield(stage.output, index)) {
    value_.takes_second = value_.can_round = true;
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    source_ = p.blocked(input_, index, end);
    p.keep(p.value(input_), end);
    part_.emplace(p, stage, index, source_.to(), value_);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    // `part_` plans the residual's gradient, which the kernel adds after it has written that of the input:
    // both may be of one value.
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
    part_->plan_backward(p, value_, contribution_.target(), contribution_.accumulates());
  }
  [[gnu::cold]] void bind(Program& p) override {
    source_.bind(p);
    contribution_.bind(p);
    part_->bind(p);
  }
  void forward(Program& p) override {
    source_.run();
    part_->forward(p);
  }
  void backward(Program& p) override { part_->backward(p); }

 private:
  int index_, input_;
  Value& value_;
  Conversion source_;
  Contribution contribution_;
  std::optional<NormPart> part_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::BatchNorm>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::NormStage>(program, stage, index);
}

CONVOY_FUNCTION std::unique_ptr<host::Part> Kernel<Host<f32>, graph::BatchNorm>::fuse(
    host::Program& program, const graph::Stage& stage, int index, const host::Bound& x,
    const host::Value& y) {
  return std::make_unique<host::NormPart>(program, stage, index, x, y);
}

#endif

}  // namespace convoy::exec
