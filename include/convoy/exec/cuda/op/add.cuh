// Addition of two values, optionally followed by a ReLU. If a layer norm follows, ResidualNormStage computes
// both.
#pragma once

#include <memory>

#include <convoy/exec/cuda/residual_norm.cuh>

namespace convoy::exec::cuda {

template <class T>
class AddStage final : public StageOf<T> {
 public:
  AddStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), relu_(p.find<graph::Relu>(stage) >= 0) {}
  void plan_backward(Program& p) override {
    // One input may share the value's gradient, which then need not be copied.
    bool shares = !relu_ && !this->value_.second;
    for (int i = 0; i < 2; ++i)
      if (const int x = p.from(this->leader_, i); shares && p.share_gradient(x, this->value_.gradient))
        shares = false;
      else
        contribution_[i] = p.contribute(x, true, this->backward_time(p));
  }
  void forward(Program& p) override {
    add<T>(p.stream(), this->value_.elements(), this->x(p, 0), this->x(p, 1), this->y(p), relu_);
  }
  void backward(Program& p) override {
    for (const Contribution& contribution : contribution_)
      if (contribution)
        pass<T>(p.stream(), this->value_.elements(), this->dy(p), this->second(p),
                relu_ ? this->y(p) : nullptr, contribution.pointer<T>(p), contribution.accumulates());
  }

 private:
  bool relu_;
  Contribution contribution_[2];
};

CONVOY_COMPILED_STAGE(AddStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Add> {
  using Element = typename cuda::Precision<P>::Element;
  static std::unique_ptr<cuda::Stage> build(cuda::Program& program, const graph::Stage& stage, int index) {
    if (program.find<graph::LayerNorm>(stage) >= 0)
      return cuda::build<cuda::ResidualNormStage<Element>>(program, stage, index);
    return cuda::build_for_any_kind<cuda::AddStage, Element>(program, stage, index);
  }
  static constexpr cuda::Make make{build, cuda::mask_of<graph::Relu, graph::LayerNorm>};
};

}  // namespace convoy::exec
