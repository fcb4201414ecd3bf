// Steps with a batch norm: alone, or behind a convolution, with a residual and a ReLU or without.
#pragma once

#include <memory>

#include <convoy/exec/host/convolution.hpp>
#include <convoy/exec/host/norm.hpp>
#include <convoy/exec/host/tap_convolution.hpp>

namespace convoy::exec::host {

/// A batch norm node and what is fused behind it, within a step.
class NormPart {
 public:
  NormPart(Program& p, const graph::Step& step, int index, int norm, Place x, const Value& y)
      : step_(index), norm_(norm), residual_(step.residual), x_(x), y_(y.data.place) {
    task_.map = y.map;
    task_.epsilon = p.node(norm).epsilon;
    task_.momentum = p.node(norm).momentum;
    task_.relu = step.relu >= 0;
    const int end = y.wants_gradient ? p.backward_time(index) : index;
    state_ = p.request(NormState::bytes(y.map, p.threads()), index, end);
    if (residual_ < 0) return;
    residual_source_ = p.blocked(residual_, index, end);
    p.keep(p.value(residual_), index);
  }

  /// `dx` is null where nothing before the norm wants a gradient.
  void plan_backward(Program& p, const Value& y, Place dx, bool accumulate_dx) {
    if (residual_ >= 0) {
      residual_contribution_ = p.contribute(residual_, true, p.backward_time(step_));
    }
    dy_ = y.gradient;
    second_ = y.second;
    dx_ = dx;
    task_.accumulate_dx = accumulate_dx;
  }

  void bind(Program& p) {
    residual_source_.bind(p);
    residual_contribution_.bind(p);
    task_.state.bind(p.address(state_), task_.map);
    const int weight = p.node(norm_).parameter;
    task_.weight = p.parameters().value(weight);
    task_.bias = p.parameters().value(weight + 1);
    task_.d_weight = p.parameters().gradient(weight);
    task_.d_bias = p.parameters().gradient(weight + 1);
    task_.running_mean = p.parameters().statistic(p.node(norm_).statistic);
    task_.running_variance = p.parameters().statistic(p.node(norm_).statistic + 1);
    task_.y = p.address(y_);
    task_.dy = p.address(dy_);
    task_.second = p.address(second_);
    task_.dx = p.address(dx_);
    task_.d_residual = residual_contribution_.pointer();
    task_.accumulate_residual = residual_contribution_.accumulates();
  }

  void forward(Program& p, Mode mode) {
    residual_source_.run();
    // Addresses of a batch's fields change from call to call.
    task_.x = p.address(x_);
    task_.residual = residual_ < 0 ? nullptr : p.address(residual_source_.to().place);
    if (mode == Mode::train)
      norm_forward(task_, p.threads());
    else
      norm_evaluate(task_, p.threads());
  }

  void backward(Program& p) { norm_backward(task_, p.threads()); }

 private:
  int step_, norm_, residual_;
  Place x_, y_, state_, dy_, second_, dx_;
  Conversion residual_source_;
  Contribution residual_contribution_;
  NormTask task_;
};

/// A batch norm that leads its step.
class NormStep final : public Step {
 public:
  NormStep(Program& p, const graph::Step& step, int index)
      : index_(index), input_(p.node(step.main).input[0]), value_(p.yield(step.output, index)) {
    value_.takes_second = true;
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    source_ = p.blocked(input_, index, end);
    p.keep(p.value(input_), end);
    part_.emplace(p, step, index, step.main, source_.to().place, value_);
  }
  void plan_backward(Program& p) override {
    // The residual's gradient is planned within; the order of the two does not matter, both only read the
    // step's own.
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
    part_->plan_backward(p, value_, contribution_.target().place, contribution_.accumulates());
  }
  void bind(Program& p) override {
    source_.bind(p);
    contribution_.bind(p);
    part_->bind(p);
  }
  void forward(Program& p, Mode mode) override {
    source_.run();
    part_->forward(p, mode);
  }
  void backward(Program& p) override { part_->backward(p); }

 private:
  int index_, input_;
  Value& value_;
  Conversion source_;
  Contribution contribution_;
  std::optional<NormPart> part_;
};

/// A convolution and what is fused behind it.
class ConvolutionStep final : public Step {
 public:
  ConvolutionStep(Program& p, const graph::Step& step, int index)
      : norm_(step.norm), relu_(step.relu >= 0), value_(p.yield(step.output, index)) {
    value_.takes_second = norm_ >= 0 || relu_;
    result_ = value_.data;
    if (norm_ >= 0)
      result_.place = p.request(result_.desc, index, value_.wants_gradient ? p.backward_time(index) : index);
    if (TapConvolution::fits(p, step.main) && !OneDnnConvolution::pays_as_winograd(p, step.main))
      kernel_ = std::make_unique<TapConvolution>(p, step.main, index, result_);
    else
      kernel_ = std::make_unique<OneDnnConvolution>(p, step.main, index, result_);
    if (norm_ >= 0) part_.emplace(p, step, index, norm_, result_.place, value_);
  }
  void plan_backward(Program& p) override {
    if (part_) part_->plan_backward(p, value_, value_.gradient, false);
    kernel_->plan_backward(p, {value_.data.desc, value_.gradient});
  }
  void bind(Program& p) override {
    kernel_->bind(p);
    if (part_) part_->bind(p);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }
  void forward(Program& p, Mode mode) override {
    kernel_->forward(p);
    if (part_)
      part_->forward(p, mode);
    else if (relu_)
      for_each_share<ReluLoop>(p.threads(), value_.elements(), static_cast<const float*>(y_), y_);
  }
  void backward(Program& p) override {
    if (part_)
      part_->backward(p);
    else if (relu_)
      for_each_share<PassLoop>(p.threads(), value_.elements(), static_cast<const float*>(dy_),
                               static_cast<const float*>(second_), static_cast<const float*>(y_), dy_, false);
    kernel_->backward(p);
  }
  std::string implementation() const override { return kernel_->implementation(); }

 private:
  int norm_;
  bool relu_;
  Value& value_;
  Bound result_;
  std::unique_ptr<ConvolutionKernel> kernel_;
  std::optional<NormPart> part_;
  float* y_ = nullptr;
  float* dy_ = nullptr;
  float* second_ = nullptr;
};

}  // namespace convoy::exec::host
