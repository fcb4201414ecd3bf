// ReLU, and addition with or without ReLU, in one loop each. If a layer norm follows an addition, its kernel
// computes both.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/activation_part.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Relu> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static std::unique_ptr<host::Part> fuse(host::Program& program, const graph::Stage& stage, int index,
                                          const host::Bound& x, const host::Value& y);
  static constexpr host::Make make{build, 0, fuse};
};
template <>
struct Kernel<Host<f32>, graph::Add> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, host::mask_of<graph::Relu, graph::LayerNorm>};
};

#if CONVOY_DEFINITIONS
namespace host {

/// A ReLU or an addition (with or without ReLU) that leads its stage.
class ElementwiseStage final : public ValueStage {
 public:
  [[gnu::cold]] ElementwiseStage(Program& p, const graph::Stage& stage, int index)
      : ValueStage(p, stage, index),
        inputs_(p.node(stage.leader).inputs),
        relu_(p.find<graph::Relu>(stage) >= 0) {
    for (int i = 0; i < inputs_; ++i) {
      input_[i] = p.from(stage.leader, i);
      source_[i] = value_.is_blocked ? p.blocked(input_[i], index, index)
                                     : Conversion(p.plain_view(input_[i]), p.plain_view(input_[i]));
      p.keep(p.value(input_[i]), index);
    }
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    // One input can share the gradient, which then need not be copied.
    bool shares = inputs_ == 2 && !relu_ && !value_.second;
    for (int i = 0; i < inputs_; ++i)
      if (shares && p.share_gradient(input_[i], value_))
        shares = false;
      else
        contribution_[i] = p.contribute(input_[i], true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    ValueStage::bind(p);
    for (int i = 0; i < inputs_; ++i) {
      source_[i].bind(p);
      contribution_[i].bind(p);
    }
  }
  void forward(Program& p) override {
    const float* x[2] = {};
    for (int i = 0; i < inputs_; ++i) {
      source_[i].run();
      x[i] = p.address(source_[i].to().place);
    }
    if (inputs_ == 1)
      for_each_share<ReluLoop>(p.threads(), value_.elements(), x[0], y_);
    else
      for_each_share<AddLoop>(p.threads(), value_.elements(), x[0], x[1], y_, relu_);
  }
  void backward(Program& p) override {
    for (int i = 0; i < inputs_; ++i)
      if (contribution_[i])
        for_each_share<PassLoop>(p.threads(), value_.elements(), dy_, second_,
                                 relu_ ? static_cast<const float*>(y_) : nullptr, contribution_[i].pointer(),
                                 contribution_[i].accumulates());
  }

 private:
  int inputs_;
  int input_[2] = {-1, -1};
  bool relu_;
  Conversion source_[2];
  Contribution contribution_[2];
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Relu>::build(host::Program& program,
                                                                                   const graph::Stage& stage,
                                                                                   int index) {
  return std::make_unique<host::ElementwiseStage>(program, stage, index);
}

CONVOY_FUNCTION std::unique_ptr<host::Part> Kernel<Host<f32>, graph::Relu>::fuse(host::Program&,
                                                                                 const graph::Stage&, int,
                                                                                 const host::Bound& x,
                                                                                 const host::Value& y) {
  return std::make_unique<host::ActivationPart>(
      x.place, y, true, &host::for_each_share<host::ReluLoop, const float*, float*>,
      &host::for_each_share<host::PassLoop, const float*, const float*, const float*, float*, bool>);
}

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Add>::build(host::Program& program,
                                                                                  const graph::Stage& stage,
                                                                                  int index) {
  if (program.find<graph::LayerNorm>(stage) >= 0) return program.hand_over<graph::LayerNorm>(stage, index);
  return std::make_unique<host::ElementwiseStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
