// A convolution and what is fused behind it.
#pragma once

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <memory>
#include <optional>

#include <convoy/exec/host/op/batch_norm.hpp>
#include <convoy/exec/host/op/onednn_convolution.hpp>
#include <convoy/exec/host/op/tap_convolution.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Conv2d> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, host::mask_of<graph::BatchNorm, graph::Add, graph::Relu>};
};

}  // namespace convoy::exec

#if CONVOY_DEFINITIONS

namespace convoy::exec::host {

/// A convolution and what is fused behind it.
class ConvolutionStage final : public Stage {
 public:
  ConvolutionStage(Program& p, const graph::Stage& stage, int index)
      : norm_(p.find<graph::BatchNorm>(stage)),
        relu_(p.find<graph::Relu>(stage) >= 0),
        value_(p.yield(stage.output, index)) {
    value_.takes_second = norm_ >= 0 || relu_;
    result_ = value_.data;
    if (norm_ >= 0)
      result_.place = p.request(result_.desc, index, value_.wants_gradient ? p.backward_time(index) : index);
    if (TapConvolution::fits(p, stage.leader) && !OneDnnConvolution::pays_as_winograd(p, stage.leader))
      kernel_ = std::make_unique<TapConvolution>(p, stage.leader, index, result_);
    else
      kernel_ = std::make_unique<OneDnnConvolution>(p, stage.leader, index, result_);
    if (norm_ >= 0) part_.emplace(p, stage, index, norm_, result_.place, value_);
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
  void forward(Program& p) override {
    kernel_->forward(p);
    if (part_)
      part_->forward(p);
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

namespace convoy::exec {

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Conv2d>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::ConvolutionStage>(program, stage, index);
}

}  // namespace convoy::exec

#endif
