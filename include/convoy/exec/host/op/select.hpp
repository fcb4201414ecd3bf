// Select: copies one position of each row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/concat.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Select> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class SelectStage final : public UnaryStage {
 public:
  [[gnu::cold]] SelectStage(Program& p, const graph::Stage& stage, int index)
      : UnaryStage(p, stage, index),
        row_(p.node(input_).shape.size()),
        features_(p.node(input_).shape[1]),
        at_(features_ * p.attributes<graph::Select>(stage.leader).position) {}
  void forward(Program& p) override {
    copy_runs({p.rows(), features_, p.input(input_) + at_, nullptr, row_, y_, features_, false}, p.threads());
  }
  void backward(Program& p) override {
    if (!contribution_) return;
    float* const dx = contribution_.pointer();
    if (!contribution_.accumulates())
      parallel(p.rows() * row_ < loop_tuning.worth_a_team ? 1 : p.threads(), [&](int thread, int team) {
        const Range range = share(p.rows() * row_, thread, team, 1024);
        std::fill(dx + range.begin, dx + range.end, 0.0f);
      });
    copy_runs({p.rows(), features_, dy_, second_, features_, dx + at_, row_, contribution_.accumulates()},
              p.threads());
  }

 private:
  std::int64_t row_, features_, at_;  // elements of a row, of a position, and before the selected position
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Select>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::SelectStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
