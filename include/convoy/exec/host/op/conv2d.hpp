// A convolution and what is fused behind it.
#pragma once

#include <string>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <memory>

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
  [[gnu::cold]] ConvolutionStage(Program& p, const graph::Stage& stage, int index)
      : value_(p.yield(stage.output, index)) {
    const bool norm = p.find<graph::BatchNorm>(stage) >= 0;
    result_ = value_.data;
    if (norm)
      result_.place = p.request(result_.desc, index, value_.wants_gradient ? p.backward_time(index) : index);
    if (TapConvolution::fits(p, stage.leader) && !OneDnnConvolution::pays_as_winograd(p, stage.leader))
      kernel_ = std::make_unique<TapConvolution>(p, stage.leader, index, result_);
    else
      kernel_ = std::make_unique<OneDnnConvolution>(p, stage.leader, index, result_);
    // A batch norm's part has the rest of the stage in it.
    part_ = norm ? p.fuse<graph::BatchNorm>(stage, index, result_.place, value_)
                 : p.fuse<graph::Relu>(stage, index, result_.place, value_);
    value_.takes_second = part_ != nullptr;
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    if (part_) part_->plan_backward(p, value_, value_.gradient, false);
    kernel_->plan_backward(p, {value_.data.desc, value_.gradient});
  }
  [[gnu::cold]] void bind(Program& p) override {
    kernel_->bind(p);
    if (part_) part_->bind(p);
  }
  void forward(Program& p) override {
    kernel_->forward(p);
    if (part_) part_->forward(p);
  }
  void backward(Program& p) override {
    if (part_) part_->backward(p);
    kernel_->backward(p);
  }
  [[gnu::cold]] std::string implementation() const override { return kernel_->implementation(); }

 private:
  Value& value_;
  Bound result_;
  std::unique_ptr<ConvolutionKernel> kernel_;
  std::unique_ptr<Part> part_;
};

}  // namespace convoy::exec::host

namespace convoy::exec {

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Conv2d>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::ConvolutionStage>(program, stage, index);
}

}  // namespace convoy::exec

#endif
