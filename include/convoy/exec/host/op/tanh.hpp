// The hyperbolic tangent.
#pragma once

#include <memory>

#include <convoy/exec/host/op/activation.hpp>

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Tanh> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Tanh>::build(host::Program& program,
                                                                                   const graph::Stage& stage,
                                                                                   int index) {
  return std::make_unique<host::ActivationStage<host::HyperbolicTangent>>(program, stage, index);
}

#endif

}  // namespace convoy::exec
