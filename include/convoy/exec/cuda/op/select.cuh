// Select: one position of each row.
#pragma once

#include <convoy/exec/cuda/kernel/concat.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class SelectStage final : public StageOf<T> {
 public:
  SelectStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        features_(this->value_.shape[0]),
        row_(static_cast<int>(this->input(p, 0).row_elements())),
        at_(features_ * p.attributes<graph::Select>(stage.leader).position) {
    p.keep(this->input(p, 0), index);
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    copy_runs<T>(p.stream(), {p.rows(), features_, row_, features_}, this->x(p, 0) + at_, nullptr, this->y(p),
                 false);
  }
  void backward(Program& p) override {
    if (!dx_) return;
    T* const dx = dx_.template pointer<T>(p);
    if (!dx_.accumulates())
      device::check(cudaMemsetAsync(dx, 0, this->input(p, 0).bytes(), p.stream()), "clear a gradient");
    copy_runs<T>(p.stream(), {p.rows(), features_, features_, row_}, this->dy(p), this->second(p), dx + at_,
                 dx_.accumulates());
  }

 private:
  int features_, row_, at_;  // elements of a position, of a row, and before the position that is read
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(SelectStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Select> : cuda::KernelOf<P, cuda::SelectStage> {};

}  // namespace convoy::exec
