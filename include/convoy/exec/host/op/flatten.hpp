// Flatten: a view of plain memory, or a copy out of blocks.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Flatten> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

/// A flatten of blocked memory to plain rows. A flatten of plain memory is a view without a stage.
class FlattenStage final : public Stage {
 public:
  [[gnu::cold]] FlattenStage(Program& p, const graph::Stage& stage, int index)
      : index_(index), input_(p.from(stage.leader, 0)), value_(p.yield(stage.output, index)) {
    const Value& x = p.value(input_);
    forward_ = {x.data, {describe_plain(p.rows(), p.node(input_)), value_.data.place}};
    p.keep(p.value(input_), index);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, false, p.backward_time(index_));
    if (contribution_)
      backward_ = {{describe_plain(p.rows(), p.node(input_)), value_.gradient}, contribution_.target()};
  }
  [[gnu::cold]] void bind(Program& p) override {
    forward_.bind(p);
    backward_.bind(p);
    contribution_.bind(p);
  }
  void forward(Program&) override { forward_.run(); }
  void backward(Program& p) override {
    backward_.run();
    contribution_.finish(p.threads());
  }

 private:
  int index_, input_;
  Value& value_;
  Conversion forward_, backward_;
  Contribution contribution_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Flatten>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  const int input = program.from(stage.leader, 0);
  if (!host::Program::is_plain(program.value(input)))
    return std::make_unique<host::FlattenStage>(program, stage, index);
  program.alias(stage.leader, input);
  return nullptr;
}

#endif

}  // namespace convoy::exec
