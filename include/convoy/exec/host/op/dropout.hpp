// Dropout.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/dropout.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Dropout> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

}  // namespace convoy::exec

#if CONVOY_DEFINITIONS

namespace convoy::exec::host {

class DropoutStage final : public Stage {
 public:
  [[gnu::cold]] DropoutStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.leader), input_(p.from(node_, 0)), index_(index), value_(p.yield(stage.output, index)) {
    value_.takes_second = true;
    source_ = value_.is_blocked ? p.blocked(input_, index, index)
                                : Conversion(p.plain_view(input_), p.plain_view(input_));
    p.keep(p.value(input_), index);
    task_.rule = DropoutRule(p.attributes<graph::Dropout>(node_).p);
    task_.rows = p.rows();
    task_.elements = p.node(node_).shape.size();
    if (!Program::is_plain(value_)) task_.map = &value_.map;
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    source_.bind(p);
    contribution_.bind(p);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }
  void forward(Program& p) override {
    source_.run();
    const float* x = p.address(source_.to().place);
    if (p.pass().mode == Mode::evaluate) {
      const float* none = nullptr;
      for_each_share<PassLoop>(p.threads(), value_.elements(), x, none, none, y_, false);
      return;
    }
    task_.draws = Draws(p.pass(), p.node(node_).name.view());
    task_.x = x;
    task_.second = nullptr;
    task_.y = y_;
    task_.accumulate = false;
    dropout(task_, p.threads());
  }
  void backward(Program& p) override {
    if (!contribution_) return;
    task_.x = dy_;
    task_.second = second_;
    task_.y = contribution_.pointer();
    task_.accumulate = contribution_.accumulates();
    dropout(task_, p.threads());
  }

 private:
  int node_, input_, index_;
  Value& value_;
  Conversion source_;
  Contribution contribution_;
  DropoutTask task_;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
  const float* second_ = nullptr;
};

}  // namespace convoy::exec::host

namespace convoy::exec {

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Dropout>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::DropoutStage>(program, stage, index);
}

}  // namespace convoy::exec

#endif
