// Dropout, by the same draws as on every other Exec.
#pragma once

#include <convoy/exec/cuda/kernel/dropout.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class DropoutStage final : public StageOf<T> {
 public:
  DropoutStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), rule_(p.attributes<graph::Dropout>(stage.leader).p) {
    p.draw(stage.leader);
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    if (p.trains())
      drop(p, this->x(p, 0), nullptr, this->y(p), false);
    else
      device::check(cudaMemcpyAsync(this->y(p), this->x(p, 0), this->value_.bytes(), cudaMemcpyDeviceToDevice,
                                    p.stream()),
                    "copy a value");
  }
  void backward(Program& p) override {
    if (dx_) drop(p, this->dy(p), this->second(p), dx_.template pointer<T>(p), dx_.accumulates());
  }

 private:
  void drop(Program& p, const T* from, const T* second, T* to, bool accumulate) const {
    const Value& v = this->value_;
    if (v.is_image())
      dropout_image<T>(p.stream(), p.draws(this->leader_), rule_, v.rows, v.channels, v.positions(), from,
                       second, to, accumulate);
    else
      dropout<T>(p.stream(), p.draws(this->leader_), rule_, v.rows, v.row_elements(), from, second, to,
                 accumulate);
  }

  DropoutRule rule_;
  Contribution dx_;
};

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Dropout> : cuda::KernelOf<P, cuda::DropoutStage> {};

}  // namespace convoy::exec
