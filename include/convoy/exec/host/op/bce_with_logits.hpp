// Binary cross-entropy of logits against a target.
#pragma once

#include <memory>

#include <convoy/exec/host/op/pointwise_loss.hpp>

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::BceWithLogits> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::BceWithLogits>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::PointwiseLossStage<host::LogitError>>(program, stage, index);
}

#endif

}  // namespace convoy::exec
