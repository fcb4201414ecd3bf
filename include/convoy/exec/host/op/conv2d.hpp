// A convolution and the operations fused after it.
#pragma once

#include <string>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <memory>

#include <convoy/exec/host/op/gemm_convolution.hpp>
#include <convoy/exec/host/op/onednn_convolution.hpp>
#include <convoy/exec/host/op/tap_convolution.hpp>
#include <convoy/exec/host/op/winograd_convolution.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Conv2d> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static host::Narrow narrow(host::Program& program, const graph::Stage& stage);
  static constexpr host::Make make{build, host::mask_of<graph::BatchNorm, graph::Add, graph::Relu>, nullptr,
                                   narrow};
};

#if CONVOY_DEFINITIONS
namespace host {

/// A convolution and the operations fused after it.
class ConvolutionStage final : public Stage {
 public:
  [[gnu::cold]] ConvolutionStage(Program& p, const graph::Stage& stage, int index)
      : index_(index), norm_(p.find<graph::BatchNorm>(stage) >= 0), value_(p.yield(stage.output, index)) {
    const Algorithm algorithm = choose(p, stage.leader);
    result_ = value_.data;
    if (norm_) {
      result_.desc = describe_blocked(value_.map, image_type(p, algorithm));
      result_.place = p.request(result_.desc, index, value_.wants_gradient ? p.backward_time(index) : index);
    }
    kernel_ = make(algorithm, p, stage.leader, index, result_);
    // A batch norm's part contains the rest of the stage.
    part_ = norm_ ? p.fuse<graph::BatchNorm>(stage, index, result_, value_)
                  : p.fuse<graph::Relu>(stage, index, result_, value_);
    value_.takes_second = part_ != nullptr;
    value_.can_round = norm_;
  }
  /// Whether the kernels of convolution `n` read and write images in bf16.
  static bool is_narrow(Program& p, int n) { return image_type(p, choose(p, n)) == dnnl_bf16; }
  [[gnu::cold]] void plan_backward(Program& p) override {
    Bound dy{value_.data.desc, value_.gradient};
    const Layout wanted = kernel_->choose_backward(p);
    // The batch norm writes the gradient in the type that the convolution reads, in place if it has this
    // type.
    const int time = p.backward_time(index_);
    if (norm_ && wanted && wanted == describe_blocked(value_.map, wanted.type()) && !(wanted == dy.desc))
      dy = {wanted, p.request(wanted, time, time)};
    if (part_) part_->plan_backward(p, value_, dy, false);
    kernel_->plan_backward(p, dy);
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
  enum class Algorithm { winograd, taps, gemm, onednn };

  static Algorithm choose(Program& p, int n) {
    return WinogradConvolution::fits(p, n) ? Algorithm::winograd
           : TapConvolution::fits(p, n)    ? Algorithm::taps
           : GemmConvolution::fits(p, n)   ? Algorithm::gemm
                                           : Algorithm::onednn;
  }
  static dnnl_data_type_t image_type(Program& p, Algorithm algorithm) {
    switch (algorithm) {
      case Algorithm::taps:
        return dnnl_f32;
      case Algorithm::onednn:
        return p.backend().factor;
      default:
        return p.backend().image;
    }
  }
  static std::unique_ptr<ConvolutionKernel> make(Algorithm algorithm, Program& p, int n, int stage,
                                                 const Bound& result) {
    switch (algorithm) {
      case Algorithm::winograd:
        return std::make_unique<WinogradConvolution>(p, n, stage, result);
      case Algorithm::taps:
        return std::make_unique<TapConvolution>(p, n, stage, result);
      case Algorithm::gemm:
        return std::make_unique<GemmConvolution>(p, n, stage, result);
      default:
        return std::make_unique<OneDnnConvolution>(p, n, stage, result);
    }
  }

  int index_;
  bool norm_;
  Value& value_;
  Bound result_;
  std::unique_ptr<ConvolutionKernel> kernel_;
  std::unique_ptr<Part> part_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Conv2d>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::ConvolutionStage>(program, stage, index);
}

CONVOY_FUNCTION host::Narrow Kernel<Host<f32>, graph::Conv2d>::narrow(host::Program& program,
                                                                      const graph::Stage& stage) {
  // A ReLU right after a convolution reads and writes f32.
  const bool narrow = host::ConvolutionStage::is_narrow(program, stage.leader);
  return {narrow, program.find<graph::BatchNorm>(stage) >= 0 || (narrow && stage.count == 1)};
}

#endif

}  // namespace convoy::exec
