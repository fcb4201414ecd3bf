// Gaussian error linear units.
#pragma once

#include <memory>

#include <convoy/exec/host/op/activation.hpp>

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Gelu> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static std::unique_ptr<host::Part> fuse(host::Program& program, const graph::Stage& stage, int index,
                                          const host::Bound& x, const host::Value& y);
  static constexpr host::Make make{build, 0, fuse};
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Gelu>::build(host::Program& program,
                                                                                   const graph::Stage& stage,
                                                                                   int index) {
  if (program.attributes<graph::Gelu>(stage.leader).form == graph::GeluForm::tanh)
    return std::make_unique<host::ActivationStage<host::GeluTanh>>(program, stage, index);
  return std::make_unique<host::ActivationStage<host::GeluErf>>(program, stage, index);
}

CONVOY_FUNCTION std::unique_ptr<host::Part> Kernel<Host<f32>, graph::Gelu>::fuse(host::Program& program,
                                                                                 const graph::Stage& stage,
                                                                                 int, const host::Bound& x,
                                                                                 const host::Value& y) {
  if (program.attributes<graph::Gelu>(program.find<graph::Gelu>(stage)).form == graph::GeluForm::tanh)
    return host::fuse_activation<host::GeluTanh>(x.place, y);
  return host::fuse_activation<host::GeluErf>(x.place, y);
}

#endif

}  // namespace convoy::exec
