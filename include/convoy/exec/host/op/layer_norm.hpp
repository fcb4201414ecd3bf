// Layer norm over plain rows and sequences.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/layer_norm.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::LayerNorm> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

}  // namespace convoy::exec

#if CONVOY_DEFINITIONS

namespace convoy::exec::host {

class LayerNormStage final : public Stage {
 public:
  [[gnu::cold]] LayerNormStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.leader), input_(p.from(node_, 0)), index_(index), value_(p.yield(stage.output, index)) {
    value_.takes_second = true;
    task_.features = p.node(node_).shape.last();
    task_.vectors = value_.elements() / task_.features;
    task_.epsilon = p.attributes<graph::LayerNorm>(node_).epsilon;
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    p.keep(p.value(input_), end);
    kept_ = p.request(2 * task_.vectors * static_cast<std::int64_t>(sizeof(float)), index, end);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    contribution_ = p.contribute(input_, true, time);
    for (int k = 0; k < p.node(node_).uses; ++k)
      d_parameter_[k] = p.contribute_parameter(p.parameter(node_, k), Layout({task_.features}, dnnl_x), time);
    partial_ =
        p.request(p.threads() * 2 * task_.features * static_cast<std::int64_t>(sizeof(float)), time, time);
  }
  [[gnu::cold]] void bind(Program& p) override {
    contribution_.bind(p);
    for (Contribution& parameter : d_parameter_) parameter.bind(p);
    task_.weight = p.parameters().value(p.parameter(node_, 0));
    if (p.node(node_).uses > 1) task_.bias = p.parameters().value(p.parameter(node_, 1));
    task_.d_weight = d_parameter_[0].pointer();
    task_.d_bias = d_parameter_[1].pointer();
    task_.y = p.address(value_.data.place);
    task_.kept = p.address(kept_);
    task_.dy = p.address(value_.gradient);
    task_.second = p.address(value_.second);
    task_.dx = contribution_.pointer();
    task_.accumulate_dx = contribution_.accumulates();
    task_.partial = p.address(partial_);
  }
  void forward(Program& p) override {
    task_.x = p.input(input_);
    layer_norm_forward(task_, p.threads());
  }
  void backward(Program& p) override {
    layer_norm_backward(task_, p.threads());
    for (const Contribution& parameter : d_parameter_) parameter.finish(p.threads());
  }

 private:
  int node_, input_, index_;
  Value& value_;
  Place kept_, partial_;
  Contribution contribution_, d_parameter_[2];
  LayerNormTask task_;
};

}  // namespace convoy::exec::host

namespace convoy::exec {

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::LayerNorm>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::LayerNormStage>(program, stage, index);
}

}  // namespace convoy::exec

#endif
