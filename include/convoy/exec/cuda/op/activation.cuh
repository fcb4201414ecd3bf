// Activations: a function of each element.
#pragma once

#include <memory>

#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// `F` has `value`, `gradient` and `of_output`, which tells whether the gradient is a function of the output
/// or of the input.
template <class T, class F>
class ActivationStage final : public StageOf<T> {
 public:
  ActivationStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    p.keep(this->input(p, 0), this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    contribution_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    apply<F, T>(p.stream(), this->value_.elements(), this->x(p, 0), this->y(p));
  }
  void backward(Program& p) override {
    if (contribution_)
      slope<F, T>(p.stream(), this->value_.elements(), this->dy(p), this->second(p),
                  F::of_output ? this->y(p) : this->x(p, 0), contribution_.template pointer<T>(p),
                  contribution_.accumulates());
  }

 private:
  Contribution contribution_;
};

template <class T>
using ReluStage = ActivationStage<T, Relu>;
template <class T>
using SigmoidStage = ActivationStage<T, Sigmoid>;
template <class T>
using TanhStage = ActivationStage<T, Tanh>;

template <class T>
using GeluStage = ActivationStage<T, Gelu<graph::GeluForm::erf>>;
template <class T>
using TanhGeluStage = ActivationStage<T, Gelu<graph::GeluForm::tanh>>;

template <class T>
std::unique_ptr<Stage> build_gelu(Program& p, const graph::Stage& stage, int index) {
  return p.attributes<graph::Gelu>(stage.leader).form == graph::GeluForm::erf
             ? build_for_any_kind<GeluStage, T>(p, stage, index)
             : build_for_any_kind<TanhGeluStage, T>(p, stage, index);
}

CONVOY_COMPILED_STAGE(ReluStage);
CONVOY_COMPILED_STAGE(SigmoidStage);
CONVOY_COMPILED_STAGE(TanhStage);
CONVOY_COMPILED_STAGE(GeluStage);
CONVOY_COMPILED_STAGE(TanhGeluStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Relu> : cuda::KernelForAnyKind<P, cuda::ReluStage> {};
template <class P>
struct Kernel<Cuda<P>, graph::Sigmoid> : cuda::KernelForAnyKind<P, cuda::SigmoidStage> {};
template <class P>
struct Kernel<Cuda<P>, graph::Tanh> : cuda::KernelForAnyKind<P, cuda::TanhStage> {};
template <class P>
struct Kernel<Cuda<P>, graph::Gelu> {
  static constexpr cuda::Make make{cuda::build_gelu<typename cuda::Precision<P>::Element>};
};

}  // namespace convoy::exec
