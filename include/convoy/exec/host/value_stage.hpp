// Shared parts of stages that yield one f32 value.
#pragma once

#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

/// A stage with one value, whose gradient is the sum of up to two buffers.
class ValueStage : public Stage {
 public:
  [[gnu::cold]] void bind(Program& p) override {
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }

 protected:
  [[gnu::cold]] ValueStage(Program& p, const graph::Stage& stage, int index)
      : index_(index), value_(p.yield(stage.output, index)) {
    value_.takes_second = true;
  }

  int index_;
  Value& value_;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
  const float* second_ = nullptr;  // null if the gradient is in one buffer
};

/// A value stage with one input, to whose gradient it adds if that is wanted.
class UnaryStage : public ValueStage {
 public:
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    ValueStage::bind(p);
    contribution_.bind(p);
  }

 protected:
  /// Keeps the input until this stage has run forward.
  [[gnu::cold]] UnaryStage(Program& p, const graph::Stage& stage, int index)
      : ValueStage(p, stage, index), input_(p.from(stage.leader, 0)) {
    p.keep(p.value(input_), index);
  }

  int input_;
  Contribution contribution_;
};

}  // namespace convoy::exec::host
