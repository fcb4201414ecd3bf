// What stages have in common that yield one value in f32.
#pragma once

#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

/// A stage's value, and the gradient of it, which two readers may have made.
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
  const float* second_ = nullptr;  // null where one reader has made all of the gradient
};

/// Of one other value, to whose gradient the stage adds if that is wanted.
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
  /// The input is read in the forward pass.
  [[gnu::cold]] UnaryStage(Program& p, const graph::Stage& stage, int index)
      : ValueStage(p, stage, index), input_(p.from(stage.leader, 0)) {
    p.keep(p.value(input_), index);
  }

  int input_;
  Contribution contribution_;
};

}  // namespace convoy::exec::host
