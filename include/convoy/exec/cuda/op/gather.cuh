// Gather: positions of sequences by index.
#pragma once

#include <convoy/exec/cuda/kernel/gather.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class GatherStage final : public StageOf<T> {
 public:
  GatherStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    const Shape& sequence = this->input(p, 0).shape;
    task_ = {p.rows(), sequence[0], sequence[1], static_cast<int>(this->input(p, 1).shape.size())};
    p.keep(this->input(p, 0), index);
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void bind(Program& p) override { task_.numbers = p.address<i32>(this->input(p, 1).data); }
  void forward(Program& p) override { gather_positions<T>(p.stream(), task_, this->x(p, 0), this->y(p)); }
  void backward(Program& p) override {
    if (dx_)
      scatter_positions<T>(p.stream(), task_, this->dy(p), this->second(p), dx_.template pointer<T>(p),
                           dx_.accumulates());
  }

 private:
  GatherTask task_;
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(GatherStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Gather> : cuda::KernelOf<P, cuda::GatherStage> {};

}  // namespace convoy::exec
