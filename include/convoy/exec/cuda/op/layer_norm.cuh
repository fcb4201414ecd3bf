// Layer norm over the last axis.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/layer_norm.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// Shared parts of the stages that end with a layer norm: the value and the parameters of the norm.
template <class T>
class NormOfRows : public StageOf<T> {
 protected:
  NormOfRows(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        node_(stage.output),
        features_(this->value_.shape.last()),
        vectors_(this->value_.elements() / features_) {
    moments_ = p.request(static_cast<std::size_t>(2 * vectors_) * sizeof(float), index, this->kept_until(p));
  }
  void plan_parameters(Program& p) {
    const int time = this->backward_time(p);
    for (int k = 0; k < p.node(node_).uses; ++k)
      d_parameter_[k] = p.contribute_parameter(p.parameter(node_, k));
    scratch_ = p.request(static_cast<std::size_t>(layer_norm_scratch<T>(vectors_, features_)), time, time);
  }
  LayerNormTask<T> norm(Program& p, const T* x) const {
    LayerNormTask<T> t;
    t.rows = vectors_;
    t.features = features_;
    t.epsilon = p.attributes<graph::LayerNorm>(node_).epsilon;
    t.weight = p.parameters().value(p.parameter(node_, 0));
    t.bias = p.node(node_).uses > 1 ? p.parameters().value(p.parameter(node_, 1)) : nullptr;
    t.x = x;
    t.y = this->y(p);
    t.mean = p.address<float>(moments_);
    t.inverse = t.mean + vectors_;
    return t;
  }
  /// Sets what backward reads and the gradients of the parameters.
  void take_gradients(Program& p, LayerNormTask<T>& t) const {
    t.dy = this->dy(p);
    t.second = this->second(p);
    t.d_weight = d_parameter_[0].pointer;
    t.d_bias = d_parameter_[1].pointer;
    t.accumulate_weight = d_parameter_[0].accumulate;
    t.accumulate_bias = d_parameter_[1].accumulate;
    t.scratch = p.address<void>(scratch_);
  }

 private:
  int node_, features_;
  std::int64_t vectors_;
  Location moments_, scratch_;
  ParameterGradient d_parameter_[2];
};

template <class T>
class LayerNormStage final : public NormOfRows<T> {
 public:
  LayerNormStage(Program& p, const graph::Stage& stage, int index) : NormOfRows<T>(p, stage, index) {
    p.keep(this->input(p, 0), this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
    this->plan_parameters(p);
  }
  void forward(Program& p) override { layer_norm_forward(p.stream(), this->norm(p, this->x(p, 0))); }
  void backward(Program& p) override {
    LayerNormTask<T> t = this->norm(p, this->x(p, 0));
    this->take_gradients(p, t);
    t.dx = dx_ ? dx_.template pointer<T>(p) : nullptr;
    t.accumulate_dx = dx_.accumulates();
    layer_norm_backward(p.stream(), t);
  }

 private:
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(LayerNormStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::LayerNorm> : cuda::KernelOf<P, cuda::LayerNormStage> {};

}  // namespace convoy::exec
