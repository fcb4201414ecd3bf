// Steps of convoy's own loops: ReLU, addition, pooling, flatten.
#pragma once

#include <convoy/exec/host/pooling.hpp>
#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

/// A ReLU or an addition (with or without ReLU) that leads its step.
class ElementwiseStep final : public Step {
 public:
  ElementwiseStep(Program& p, const graph::Step& step, int index)
      : index_(index),
        inputs_(p.node(step.main).inputs),
        relu_(step.op == graph::Op::relu || step.relu >= 0),
        value_(p.yield(step.output, index)) {
    value_.takes_second = true;
    for (int i = 0; i < inputs_; ++i) {
      input_[i] = p.node(step.main).input[i];
      source_[i] = value_.is_blocked ? p.blocked(input_[i], index, index)
                                     : Conversion(p.plain_view(input_[i]), p.plain_view(input_[i]));
      p.keep(p.value(input_[i]), index);
    }
  }
  void plan_backward(Program& p) override {
    for (int i = 0; i < inputs_; ++i)
      contribution_[i] = p.contribute(input_[i], true, p.backward_time(index_));
  }
  void bind(Program& p) override {
    for (int i = 0; i < inputs_; ++i) {
      source_[i].bind(p);
      contribution_[i].bind(p);
    }
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }
  void forward(Program& p, Mode) override {
    const float* x[2] = {};
    for (int i = 0; i < inputs_; ++i) {
      source_[i].run();
      x[i] = p.address(source_[i].to().place);
    }
    if (inputs_ == 1)
      for_each_share<ReluLoop>(p.threads(), value_.elements(), x[0], y_);
    else
      for_each_share<AddLoop>(p.threads(), value_.elements(), x[0], x[1], y_, relu_);
  }
  void backward(Program& p) override {
    for (int i = 0; i < inputs_; ++i)
      if (contribution_[i])
        for_each_share<PassLoop>(p.threads(), value_.elements(), dy_, second_,
                                 relu_ ? static_cast<const float*>(y_) : nullptr, contribution_[i].pointer(),
                                 contribution_[i].accumulates());
  }

 private:
  int index_, inputs_;
  int input_[2] = {-1, -1};
  bool relu_;
  Value& value_;
  Conversion source_[2];
  Contribution contribution_[2];
  float* y_ = nullptr;
  const float* dy_ = nullptr;
  const float* second_ = nullptr;
};

class PoolStep final : public Step {
 public:
  PoolStep(Program& p, const graph::Step& step, int index)
      : index_(index),
        input_(p.node(step.main).input[0]),
        max_(step.op == graph::Op::max_pool),
        value_(p.yield(step.output, index)) {
    task_.map = blocked_map(p.rows(), p.node(input_).shape, p.backend().lanes);
    task_.out = value_.map;
    task_.window = p.node(step.main).window;
    source_ = p.blocked(input_, index, index);
    p.keep(p.value(input_), index);
    if (max_)
      winner_ = p.request(value_.elements() * static_cast<std::int64_t>(sizeof(std::int32_t)), index,
                          value_.wants_gradient ? p.backward_time(index) : index);
  }
  void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
  }
  void bind(Program& p) override {
    source_.bind(p);
    contribution_.bind(p);
    task_.winner = reinterpret_cast<std::int32_t*>(p.address(winner_));
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
  }
  void forward(Program& p, Mode) override {
    source_.run();
    task_.x = p.address(source_.to().place);
    task_.y = y_;
    if (max_)
      pool<MaxPoolLoop>(task_, p.threads());
    else
      pool<AveragePoolLoop>(task_, p.threads());
  }
  void backward(Program& p) override {
    if (!contribution_) return;
    task_.x = contribution_.pointer();
    task_.y = dy_;
    task_.accumulate = contribution_.accumulates();
    if (max_)
      pool<MaxPoolBackwardLoop>(task_, p.threads());
    else
      pool<AveragePoolBackwardLoop>(task_, p.threads());
  }

 private:
  int index_, input_;
  bool max_;
  Value& value_;
  Conversion source_;
  Contribution contribution_;
  Place winner_;
  PoolTask task_;
  float* y_ = nullptr;
  float* dy_ = nullptr;
};

/// A flatten of blocked memory into plain rows; of plain memory it is a view and no step at all.
class FlattenStep final : public Step {
 public:
  FlattenStep(Program& p, const graph::Step& step, int index)
      : index_(index), input_(p.node(step.main).input[0]), value_(p.yield(step.output, index)) {
    const Value& x = p.value(input_);
    forward_ = {x.data, {describe_plain(p.rows(), x.shape), value_.data.place}};
    p.keep(p.value(input_), index);
  }
  void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, false, p.backward_time(index_));
    if (contribution_)
      backward_ = {{describe_plain(p.rows(), p.value(input_).shape), value_.gradient},
                   contribution_.target()};
  }
  void bind(Program& p) override {
    forward_.bind(p);
    backward_.bind(p);
    contribution_.bind(p);
  }
  void forward(Program&, Mode) override { forward_.run(); }
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

}  // namespace convoy::exec::host
