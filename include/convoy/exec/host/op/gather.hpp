// Gathers.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/gather.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Gather> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class GatherStage final : public UnaryStage {
 public:
  [[gnu::cold]] GatherStage(Program& p, const graph::Stage& stage, int index)
      : UnaryStage(p, stage, index), numbers_(p.from(stage.leader, 1)) {
    const Shape &sequence = p.node(input_).shape, &numbers = p.node(numbers_).shape;
    task_ = {p.rows(), sequence[0], sequence[1], numbers.size()};
  }
  void forward(Program& p) override {
    task_.numbers = p.integers(numbers_);
    gather_positions(task_, p.input(input_), y_, p.threads());
  }
  void backward(Program& p) override {
    if (contribution_)
      scatter_positions(task_, dy_, second_, contribution_.pointer(), contribution_.accumulates(),
                        p.threads());
  }

 private:
  int numbers_;
  GatherTask task_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Gather>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::GatherStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
