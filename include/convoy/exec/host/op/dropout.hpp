// Dropout, with or without an addition after it. If a layer norm follows the addition, its kernel computes
// all three.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/dropout.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Dropout> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, host::mask_of<graph::Add, graph::LayerNorm>};
};

#if CONVOY_DEFINITIONS
namespace host {

class DropoutStage final : public UnaryStage {
 public:
  [[gnu::cold]] DropoutStage(Program& p, const graph::Stage& stage, int index)
      : UnaryStage(p, stage, index), node_(stage.leader), addend_(addend_of(p.plan(), stage)) {
    source_ = read(p, input_);
    if (addend_ >= 0) addend_source_ = read(p, addend_);
    task_.rule = DropoutRule(p.attributes<graph::Dropout>(node_).p);
    task_.rows = p.rows();
    task_.elements = p.node(node_).shape.size();
    if (!Program::is_plain(value_)) task_.map = &value_.map;
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    if (addend_ >= 0 && (value_.second || !p.share_gradient(addend_, value_)))
      d_addend_ = p.contribute(addend_, true, time);
    UnaryStage::plan_backward(p);
  }
  [[gnu::cold]] void bind(Program& p) override {
    UnaryStage::bind(p);
    source_.bind(p);
    addend_source_.bind(p);
    d_addend_.bind(p);
  }
  void forward(Program& p) override {
    source_.run();
    addend_source_.run();
    const float *x = p.address(source_.to().place), *addend = p.address(addend_source_.to().place);
    if (p.pass().mode == Mode::evaluate) {
      const float* none = nullptr;
      for_each_share<PassLoop>(p.threads(), value_.elements(), x, addend, none, y_, false);
      return;
    }
    task_.draws = Draws(p.pass(), p.node(node_).name.view());
    task_.x = x;
    task_.second = nullptr;
    task_.addend = addend;
    task_.y = y_;
    dropout(task_, p.threads());
  }
  void backward(Program& p) override {
    if (d_addend_) {
      const float* none = nullptr;
      for_each_share<PassLoop>(p.threads(), value_.elements(), dy_, second_, none, d_addend_.pointer(),
                               d_addend_.accumulates());
    }
    if (!contribution_) return;
    task_.x = dy_;
    task_.second = second_;
    task_.y = contribution_.pointer();
    task_.addend = contribution_.accumulates() ? task_.y : nullptr;
    dropout(task_, p.threads());
  }

 private:
  [[gnu::cold]] Conversion read(Program& p, int n) {
    p.keep(p.value(n), index_);
    return value_.is_blocked ? p.blocked(n, index_, index_) : Conversion(p.plain_view(n), p.plain_view(n));
  }

  int node_, addend_;  // `addend_` is -1 if nothing is added
  Conversion source_, addend_source_;
  Contribution d_addend_;
  DropoutTask task_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Dropout>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  if (program.find<graph::LayerNorm>(stage) >= 0) return program.hand_over<graph::LayerNorm>(stage, index);
  return std::make_unique<host::DropoutStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
