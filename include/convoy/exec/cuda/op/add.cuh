// Addition of two values, with a ReLU behind it or without.
#pragma once

#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class AddStage final : public StageOf<T> {
 public:
  AddStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), relu_(p.find<graph::Relu>(stage) >= 0) {}
  void plan_backward(Program& p) override {
    for (int i = 0; i < 2; ++i)
      contribution_[i] = p.contribute(p.from(this->leader_, i), true, this->backward_time(p));
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

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Add> : cuda::KernelOf<P, cuda::AddStage, cuda::mask_of<graph::Relu>> {};

}  // namespace convoy::exec
