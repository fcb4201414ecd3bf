// Max pooling, with or without a ReLU, and average pooling.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/pooling.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::MaxPool> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static host::Narrow narrow(host::Program&, const graph::Stage&) { return {true, true}; }
  static constexpr host::Make make{build, host::mask_of<graph::Relu>, nullptr, narrow};
};
template <>
struct Kernel<Host<f32>, graph::AvgPool> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static host::Narrow narrow(host::Program&, const graph::Stage&) { return {true, true}; }
  static constexpr host::Make make{build, 0, nullptr, narrow};
};

#if CONVOY_DEFINITIONS
namespace host {

class PoolStage final : public Stage {
 public:
  using Run = void(const PoolTask&, int threads);

  [[gnu::cold]] PoolStage(Program& p, const graph::Stage& stage, int index, const graph::Window& window,
                          bool notes_winners, Run* run_forward, Run* run_backward)
      : index_(index),
        input_(p.from(stage.leader, 0)),
        forward_(run_forward),
        backward_(run_backward),
        value_(p.yield(stage.output, index)) {
    task_.map = blocked_map(p.rows(), p.node(input_).shape, p.backend().images);
    task_.out = value_.map;
    task_.window = window;
    task_.relu = p.find<graph::Relu>(stage) >= 0;
    value_.takes_second = true;
    source_ = p.blocked(input_, index, index);
    p.keep(p.value(input_), index);
    if (notes_winners)
      winner_ = p.request(value_.elements() * static_cast<std::int64_t>(sizeof(std::int32_t)), index,
                          value_.wants_gradient ? p.backward_time(index) : index);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    source_.bind(p);
    contribution_.bind(p);
    task_.winner = reinterpret_cast<std::int32_t*>(p.address(winner_));
    y_ = p.pixels(value_.data);
    dy_ = {p.address(value_.gradient), value_.is_narrow};
    second_ = {p.address(value_.second), value_.is_narrow};
  }
  void forward(Program& p) override {
    source_.run();
    task_.x = p.pixels(source_.to());
    task_.y = y_;
    forward_(task_, p.threads());
  }
  void backward(Program& p) override {
    if (!contribution_) return;
    task_.x = contribution_.pixels();
    task_.y = dy_;
    task_.second = second_;
    task_.accumulate = contribution_.accumulates();
    backward_(task_, p.threads());
  }

 private:
  int index_, input_;
  Run* forward_;
  Run* backward_;
  Value& value_;
  Conversion source_;
  Contribution contribution_;
  Location winner_;
  PoolTask task_;
  Pixels y_, dy_, second_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::MaxPool>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::PoolStage>(
      program, stage, index, program.attributes<graph::MaxPool>(stage.leader), true,
      &host::pool<host::MaxPoolLoop>, &host::pool<host::MaxPoolBackwardLoop>);
}

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::AvgPool>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::PoolStage>(
      program, stage, index, program.attributes<graph::AvgPool>(stage.leader), false,
      &host::pool<host::AveragePoolLoop>, &host::pool<host::AveragePoolBackwardLoop>);
}

#endif

}  // namespace convoy::exec
