// Means over positions.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/mean.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Mean> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

}  // namespace convoy::exec

#if CONVOY_DEFINITIONS

namespace convoy::exec::host {

class MeanStage final : public Stage {
 public:
  [[gnu::cold]] MeanStage(Program& p, const graph::Stage& stage, int index)
      : index_(index),
        input_(p.from(stage.leader, 0)),
        lengths_(p.node(stage.leader).inputs > 1 ? p.from(stage.leader, 1) : -1),
        value_(p.yield(stage.output, index)) {
    value_.takes_second = true;
    const Shape& sequence = p.node(input_).shape;
    task_ = {p.rows(), sequence[0], sequence[1]};
    p.keep(p.value(input_), index);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    contribution_.bind(p);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }
  void forward(Program& p) override {
    if (lengths_ >= 0) task_.lengths = p.integers(lengths_);
    mean_forward(task_, p.input(input_), y_, p.threads());
  }
  void backward(Program& p) override {
    if (contribution_)
      mean_backward(task_, dy_, second_, contribution_.pointer(), contribution_.accumulates(), p.threads());
  }

 private:
  int index_, input_, lengths_;
  Value& value_;
  MeanTask task_;
  Contribution contribution_;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
  const float* second_ = nullptr;
};

}  // namespace convoy::exec::host

namespace convoy::exec {

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Mean>::build(host::Program& program,
                                                                                   const graph::Stage& stage,
                                                                                   int index) {
  return std::make_unique<host::MeanStage>(program, stage, index);
}

}  // namespace convoy::exec

#endif
