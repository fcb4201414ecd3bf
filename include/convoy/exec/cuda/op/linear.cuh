// Linear layers by cuBLASLt: y = x weight^T + bias over the last axis, and a cross-entropy behind one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <convoy/exec/cuda/kernel/reduce.cuh>
#include <convoy/exec/cuda/linear_cross_entropy.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class LinearStage final : public StageOf<T> {
 public:
  LinearStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        weight_(p.parameter(stage.leader, 0)),
        bias_(p.node(stage.leader).uses > 1 ? p.parameter(stage.leader, 1) : -1),
        in_(p.node(p.from(stage.leader, 0)).shape.last()),
        out_(this->value_.shape.last()),
        vectors_(this->value_.elements() / out_) {
    this->value_.takes_second = false;
    p.keep(this->input(p, 0), this->kept_until(p));
    Product product = describe_product<T>(p, vectors_, out_, in_);
    product.right_transposed = true;
    if (bias_ >= 0) product.epilogue = Epilogue::bias;
    forward_ = p.libraries().plan(product);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    d_weight_ = p.contribute_parameter(weight_);
    if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_);
    dx_ = p.contribute(p.from(this->leader_, 0), true, time);
    if (d_weight_) {
      Product product = describe_product<T>(p, out_, in_, vectors_);
      product.out = DType::f32;
      product.left_transposed = true;
      product.accumulate = d_weight_.accumulate;
      if (d_bias_ && !d_bias_.accumulate) backward_weight_ = find_with_sums(p, product);
      sums_bias_ = backward_weight_ != nullptr;
      if (!backward_weight_) backward_weight_ = p.libraries().plan(product);
    }
    if (d_bias_ && !sums_bias_)
      sums_ = p.request(static_cast<std::size_t>(column_sums_scratch<T>(vectors_, out_)), time, time);
    if (dx_) {
      Product product = describe_product<T>(p, vectors_, in_, out_);
      product.accumulate = dx_.accumulates();
      backward_input_ = p.libraries().plan(product);
    }
  }
  void forward(Program& p) override {
    forward_->run(this->x(p, 0), weight(p), bias_ >= 0 ? p.parameters().template operand<T>(bias_) : nullptr,
                  this->y(p));
  }
  void backward(Program& p) override {
    if (d_weight_) backward_weight_->run(this->dy(p), this->x(p, 0), d_bias_.pointer, d_weight_.pointer);
    if (d_bias_ && !sums_bias_)
      column_sums<T>(p.stream(), vectors_, out_, out_, this->dy(p), d_bias_.pointer, d_bias_.accumulate,
                     p.address<void>(sums_));
    if (dx_) backward_input_->run(this->dy(p), weight(p), nullptr, dx_.template pointer<T>(p));
  }

 private:
  const T* weight(Program& p) const { return p.parameters().template operand<T>(weight_); }

  int weight_, bias_, in_, out_;
  std::int64_t vectors_;
  std::unique_ptr<ProductPlan> forward_, backward_weight_, backward_input_;
  bool sums_bias_ = false;  // whether the gradient of the bias comes with that of the weight
  Location sums_;
  ParameterGradient d_weight_, d_bias_;
  Contribution dx_;
};

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Linear> {
  using Element = typename cuda::Precision<P>::Element;
  static std::unique_ptr<cuda::Stage> build(cuda::Program& program, const graph::Stage& stage, int index) {
    if (program.find<graph::CrossEntropy>(stage) >= 0)
      return std::make_unique<cuda::LinearCrossEntropyStage<Element>>(program, stage, index);
    return std::make_unique<cuda::LinearStage<Element>>(program, stage, index);
  }
  static constexpr cuda::Make make{build, cuda::mask_of<graph::CrossEntropy>};
};

}  // namespace convoy::exec
