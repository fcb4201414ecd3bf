// Losses that are means over the elements of a row.
#pragma once

#include <convoy/exec/cuda/kernel/pointwise_loss.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// `F` has `loss`, and the derivatives in the value and in its target.
template <class T, class F>
class PointwiseLossStage final : public StageOf<T> {
 public:
  PointwiseLossStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    this->value_.takes_second = false;
    for (int i = 0; i < 2; ++i) p.keep(this->input(p, i), this->kept_until(p));
    task_.rows = p.rows();
    task_.n = this->input(p, 0).row_elements();
  }
  void plan_backward(Program& p) override {
    for (int i = 0; i < 2; ++i)
      contribution_[i] = p.contribute(p.from(this->leader_, i), true, this->backward_time(p));
  }
  void bind(Program& p) override {
    task_.x = this->x(p, 0);
    task_.target = this->x(p, 1);
    task_.losses = p.address<float>(this->value_.data);
    task_.d_losses = p.address<float>(this->value_.gradient);
    if (contribution_[0]) task_.dx = contribution_[0].template pointer<T>(p);
    task_.accumulate_dx = contribution_[0].accumulates();
    if (contribution_[1]) task_.d_target = contribution_[1].template pointer<T>(p);
    task_.accumulate_target = contribution_[1].accumulates();
  }
  void forward(Program& p) override { pointwise_loss_forward<F, T>(p.stream(), task_); }
  void backward(Program& p) override {
    if (contribution_[0] || contribution_[1]) pointwise_loss_backward<F, T>(p.stream(), task_);
  }

 private:
  PointwiseLossTask<T> task_;
  Contribution contribution_[2];
};

template <class T>
using MseStage = PointwiseLossStage<T, SquaredError>;
template <class T>
using BceStage = PointwiseLossStage<T, LogitError>;

CONVOY_COMPILED_STAGE(MseStage);
CONVOY_COMPILED_STAGE(BceStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::MseLoss> : cuda::KernelForAnyKind<P, cuda::MseStage> {};
template <class P>
struct Kernel<Cuda<P>, graph::BceWithLogits> : cuda::KernelForAnyKind<P, cuda::BceStage> {};

}  // namespace convoy::exec
