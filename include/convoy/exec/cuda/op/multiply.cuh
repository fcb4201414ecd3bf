// Elementwise multiplication of two values.
#pragma once

#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class MultiplyStage final : public StageOf<T> {
 public:
  MultiplyStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    for (int i = 0; i < 2; ++i) p.keep(this->input(p, i), this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    for (int i = 0; i < 2; ++i)
      contribution_[i] = p.contribute(p.from(this->leader_, i), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    multiply<T>(p.stream(), this->value_.elements(), this->x(p, 0), this->x(p, 1), this->y(p));
  }
  void backward(Program& p) override {
    for (int i = 0; i < 2; ++i)
      if (contribution_[i])
        multiply_backward<T>(p.stream(), this->value_.elements(), this->dy(p), this->second(p),
                             this->x(p, 1 - i), contribution_[i].template pointer<T>(p),
                             contribution_[i].accumulates());
  }

 private:
  Contribution contribution_[2];
};

CONVOY_COMPILED_STAGE(MultiplyStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Multiply> : cuda::KernelForAnyKind<P, cuda::MultiplyStage> {};

}  // namespace convoy::exec
