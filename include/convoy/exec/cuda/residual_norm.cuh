// A layer norm of a sum as one stage; one summand may go through dropout. Of the values within the stage only
// the sum is kept for backward. The sum's gradient overwrites the value's if the addend can share it.
#pragma once

#include <cstddef>

#include <convoy/exec/cuda/kernel/residual_norm.cuh>
#include <convoy/exec/cuda/op/layer_norm.cuh>

namespace convoy::exec::cuda {

template <class T>
class ResidualNormStage final : public NormOfRows<T> {
 public:
  ResidualNormStage(Program& p, const graph::Stage& stage, int index)
      : NormOfRows<T>(p, stage, index),
        dropout_(p.find<graph::Dropout>(stage)),
        addend_(addend_of(p.plan(), stage)) {
    if (dropout_ >= 0) {
      rule_ = DropoutRule(p.attributes<graph::Dropout>(dropout_).p);
      p.draw(dropout_);
    }
    sum_ = p.request(this->value_.bytes(), index, this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    shares_ = p.share_gradient(addend_, this->value_.gradient);
    if (!shares_) d_addend_ = p.contribute(addend_, true, time);
    d_branch_ = p.contribute(p.from(this->leader_, 0), true, time);
    this->plan_parameters(p);
  }
  void forward(Program& p) override {
    ResidualNormTask<T> t = task(p);
    // If no backward follows, the sum need not outlive its norm, which overwrites it.
    t.sum = p.trains() ? p.address<T>(sum_) : this->y(p);
    if (!p.trains()) t.draws = nullptr;
    t.branch = this->x(p, 0);
    t.addend = p.address<T>(p.value(addend_).data);
    residual_norm_forward(p.stream(), t);
  }
  void backward(Program& p) override {
    ResidualNormTask<T> t = task(p);
    this->take_gradients(p, t);
    t.d_addend = d_addend_.template pointer<T>(p);
    t.accumulate_addend = d_addend_.accumulates();
    if (shares_) t.d_addend = p.address<T>(this->value_.gradient);
    t.d_branch = d_branch_.template pointer<T>(p);
    t.accumulate_branch = d_branch_.accumulates();
    residual_norm_backward(p.stream(), t);
  }

 private:
  ResidualNormTask<T> task(Program& p) const {
    ResidualNormTask<T> t{this->norm(p, p.address<T>(sum_))};
    t.draws = dropout_ < 0 ? nullptr : p.draws(dropout_);
    t.rule = rule_;
    t.batch_row = static_cast<int>(t.rows / p.rows());
    return t;
  }

  int dropout_, addend_;  // dropout_ is -1 if nothing is dropped
  DropoutRule rule_{0};
  bool shares_ = false;
  Location sum_;
  Contribution d_addend_, d_branch_;
};

CONVOY_COMPILED_STAGE(ResidualNormStage);

}  // namespace convoy::exec::cuda
