// Layer norm over the last axis.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/layer_norm.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class LayerNormStage final : public StageOf<T> {
 public:
  LayerNormStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        features_(this->value_.shape.last()),
        vectors_(this->value_.elements() / features_) {
    p.keep(this->input(p, 0), this->kept_until(p));
    moments_ = p.request(static_cast<std::size_t>(2 * vectors_) * sizeof(float), index, this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    dx_ = p.contribute(p.from(this->leader_, 0), true, time);
    for (int k = 0; k < p.node(this->leader_).uses; ++k)
      d_parameter_[k] = p.contribute_parameter(p.parameter(this->leader_, k));
    scratch_ = p.request(static_cast<std::size_t>(layer_norm_scratch<T>(vectors_, features_)), time, time);
  }
  void forward(Program& p) override { layer_norm_forward(p.stream(), task(p)); }
  void backward(Program& p) override {
    LayerNormTask<T> t = task(p);
    t.dy = this->dy(p);
    t.second = this->second(p);
    t.dx = dx_ ? dx_.template pointer<T>(p) : nullptr;
    t.accumulate_dx = dx_.accumulates();
    t.d_weight = d_parameter_[0].pointer;
    t.d_bias = d_parameter_[1].pointer;
    t.accumulate_weight = d_parameter_[0].accumulate;
    t.accumulate_bias = d_parameter_[1].accumulate;
    t.scratch = p.address<void>(scratch_);
    layer_norm_backward(p.stream(), t);
  }

 private:
  LayerNormTask<T> task(Program& p) const {
    const int leader = this->leader_;
    LayerNormTask<T> t;
    t.rows = vectors_;
    t.features = features_;
    t.epsilon = p.attributes<graph::LayerNorm>(leader).epsilon;
    t.weight = p.parameters().value(p.parameter(leader, 0));
    t.bias = p.node(leader).uses > 1 ? p.parameters().value(p.parameter(leader, 1)) : nullptr;
    t.x = this->x(p, 0);
    t.y = this->y(p);
    t.mean = p.address<float>(moments_);
    t.inverse = t.mean + vectors_;
    return t;
  }

  int features_;
  std::int64_t vectors_;
  Location moments_, scratch_;
  Contribution dx_;
  ParameterGradient d_parameter_[2];
};

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::LayerNorm> : cuda::KernelOf<P, cuda::LayerNormStage> {};

}  // namespace convoy::exec
