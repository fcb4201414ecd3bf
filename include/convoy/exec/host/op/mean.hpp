// Means over positions.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/mean.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Mean> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class MeanStage final : public UnaryStage {
 public:
  [[gnu::cold]] MeanStage(Program& p, const graph::Stage& stage, int index)
      : UnaryStage(p, stage, index),
        lengths_(p.node(stage.leader).inputs > 1 ? p.from(stage.leader, 1) : -1) {
    const Shape& sequence = p.node(input_).shape;
    task_ = {p.rows(), sequence[0], sequence[1]};
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
  int lengths_;  // -1: means over whole sequences
  MeanTask task_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Mean>::build(host::Program& program,
                                                                                   const graph::Stage& stage,
                                                                                   int index) {
  return std::make_unique<host::MeanStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
