// Mean over positions.
#pragma once

#include <convoy/exec/cuda/kernel/mean.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class MeanStage final : public StageOf<T> {
 public:
  MeanStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    const Shape& sequence = this->input(p, 0).shape;
    task_ = {p.rows(), sequence[0], sequence[1]};
    p.keep(this->input(p, 0), index);
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void bind(Program& p) override {
    if (p.node(this->leader_).inputs > 1) task_.lengths = p.address<i32>(this->input(p, 1).data);
  }
  void forward(Program& p) override { mean_forward<T>(p.stream(), task_, this->x(p, 0), this->y(p)); }
  void backward(Program& p) override {
    if (dx_)
      mean_backward<T>(p.stream(), task_, this->dy(p), this->second(p), dx_.template pointer<T>(p),
                       dx_.accumulates());
  }

 private:
  MeanTask task_;
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(MeanStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Mean> : cuda::KernelOf<P, cuda::MeanStage> {};

}  // namespace convoy::exec
