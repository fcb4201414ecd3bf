// Linear layers by cuBLASLt: y = x weight^T + bias over the last axis, optionally followed by a GELU or a
// cross-entropy.
//
// A product can compute the tanh GELU of its result, and the product that computes the gradient of the GELU's
// value can apply the derivative. The erf GELU, which cuBLASLt lacks, takes a pass over memory each way. So
// does a ReLU, in a stage of its own: cuBLASLt does not guarantee that NaN stays, which shows that a run
// diverged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <convoy/exec/cuda/kernel/reduce.cuh>
#include <convoy/exec/cuda/linear_cross_entropy.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// Whether a linear layer is the only reader of the value of node `n`.
inline bool feeds_one_linear(const Plan& plan, int n) {
  const graph::Graph& g = plan.graph;
  int readers = 0, linear = 0;
  for (int i = 0; i < g.count.edges; ++i) readers += g.edges[i] == n;
  for (int m = 0; m < g.count.nodes; ++m)
    linear += graph::is<graph::Linear>(plan.node(m)) && g.input(m, 0) == n;
  return readers == 1 && linear == 1;
}

template <class T>
class LinearStage final : public StageOf<T> {
 public:
  LinearStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        gelu_(p.find<graph::Gelu>(stage)),
        weight_(p.parameter(stage.leader, 0)),
        bias_(graph::Linear::bias(p.plan().graph, stage.leader)),
        in_(p.node(p.from(stage.leader, 0)).shape.last()),
        out_(this->value_.shape.last()),
        vectors_(this->value_.elements() / out_) {
    this->value_.takes_second = gelu_ >= 0;
    p.keep(this->input(p, 0), this->kept_until(p));
    Product product = describe_product<T>(p, vectors_, out_, in_);
    product.right_transposed = true;
    if (gelu_ >= 0) {
      before_gelu_ = p.request(this->value_.bytes(), index, this->kept_until(p));
      form_ = p.attributes<graph::Gelu>(gelu_).form;
      const bool known = form_ == graph::GeluForm::tanh && out_ % gelu_lanes == 0;
      Product alone = product;
      alone.epilogue = ProductEpilogue::bias;
      product.epilogue = ProductEpilogue::bias_gelu;
      if (known && bias_ >= 0)
        with_gelu_ = p.libraries().find(product, {alone, [&](const ProductMemory& memory) {
                                                    apply<Gelu<graph::GeluForm::tanh>, T>(
                                                        p.stream(), this->value_.elements(),
                                                        static_cast<const T*>(memory.out),
                                                        static_cast<T*>(memory.matrix));
                                                  }});
      if (known && feeds_one_linear(p.plan(), gelu_)) this->value_.before_gelu = before_gelu_;
    }
    if (!with_gelu_) forward_ = BiasedProduct<T>(p, product, bias_);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    p.assign_other_layers(this->leader_);
    d_weight_ = p.contribute_parameter(weight_);
    if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_);
    Value& x = this->input(p, 0);
    dx_ = p.contribute(p.from(this->leader_, 0), true, time);
    if (d_weight_) {
      Product product = describe_product<T>(p, out_, in_, vectors_);
      product.out = DType::f32;
      product.left_transposed = true;
      product.accumulate = d_weight_.accumulate;
      if (d_bias_ && !d_bias_.accumulate) backward_weight_ = find_with_sums<T>(p, product);
      sums_bias_ = backward_weight_ != nullptr;
      if (!backward_weight_) backward_weight_ = p.libraries().plan(product);
    }
    if (d_bias_ && !sums_bias_)
      sums_ = p.request(static_cast<std::size_t>(column_sums_scratch<T>(vectors_, out_, out_)), time, time);
    if (dx_) {
      Product product = describe_product<T>(p, vectors_, in_, out_);
      const Product alone = product;
      product.epilogue = ProductEpilogue::gelu_slope;
      if (x.before_gelu)
        backward_input_ = p.libraries().find(product, {alone, [&](const ProductMemory& memory) {
                                                         T* const dx = static_cast<T*>(memory.out);
                                                         slope<Gelu<graph::GeluForm::tanh>, T>(
                                                             p.stream(), x.elements(), dx, nullptr,
                                                             static_cast<const T*>(memory.matrix), dx, false);
                                                       }});
      x.gradient_before_gelu = backward_input_ != nullptr;
      product.epilogue = ProductEpilogue::none;
      product.accumulate = dx_.accumulates();
      if (!backward_input_) backward_input_ = p.libraries().plan(product);
    }
  }
  void forward(Program& p) override {
    T* const y = this->y(p);
    T* const before = gelu_ >= 0 ? p.address<T>(before_gelu_) : nullptr;
    if (with_gelu_) {
      with_gelu_->run(this->x(p, 0), weight(p), p.parameters().template operand<T>(bias_), y, before);
      return;
    }
    forward_.run(p, this->x(p, 0), weight(p), gelu_ >= 0 ? before : y);
    if (gelu_ >= 0)
      in_form([&](auto f) { apply<decltype(f), T>(p.stream(), this->value_.elements(), before, y); });
  }
  void backward(Program& p) override {
    if (gelu_ >= 0 && !this->value_.gradient_before_gelu) {
      T* const dy = p.address<T>(this->value_.gradient);
      in_form([&](auto f) {
        slope<decltype(f), T>(p.stream(), this->value_.elements(), dy, this->second(p),
                              p.address<T>(before_gelu_), dy, false);
      });
    }
    if (d_weight_) backward_weight_->run(this->dy(p), this->x(p, 0), d_bias_.pointer, d_weight_.pointer);
    if (d_bias_ && !sums_bias_)
      column_sums<T>(p.stream(), vectors_, out_, out_, this->dy(p), d_bias_.pointer, d_bias_.accumulate,
                     p.address<void>(sums_));
    if (dx_)
      backward_input_->run(this->dy(p), weight(p), nullptr, dx_.template pointer<T>(p),
                           p.address<void>(this->input(p, 0).before_gelu));
  }

 private:
  const T* weight(Program& p) const { return p.parameters().template operand<T>(weight_); }
  template <class Visit>
  void in_form(Visit visit) const {
    if (form_ == graph::GeluForm::erf)
      visit(Gelu<graph::GeluForm::erf>{});
    else
      visit(Gelu<graph::GeluForm::tanh>{});
  }

  int gelu_;  // the GELU's node, or -1
  int weight_, bias_, in_, out_;
  std::int64_t vectors_;
  graph::GeluForm form_ = graph::GeluForm::erf;
  std::unique_ptr<ProductPlan> with_gelu_;  // the forward product if it also computes the GELU
  BiasedProduct<T> forward_;                // otherwise
  std::unique_ptr<ProductPlan> backward_weight_, backward_input_;
  bool sums_bias_ = false;  // whether the product for the weight's gradient computes that of the bias
  Location before_gelu_, sums_;
  ParameterGradient d_weight_, d_bias_;
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(LinearStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Linear> {
  using Element = typename cuda::Precision<P>::Element;
  static std::unique_ptr<cuda::Stage> build(cuda::Program& program, const graph::Stage& stage, int index) {
    if (program.find<graph::CrossEntropy>(stage) >= 0)
      return cuda::build<cuda::LinearCrossEntropyStage<Element>>(program, stage, index);
    return cuda::build<cuda::LinearStage<Element>>(program, stage, index);
  }
  static constexpr cuda::Make make{build, cuda::mask_of<graph::Gelu, graph::CrossEntropy>};
};

}  // namespace convoy::exec
