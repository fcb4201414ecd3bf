// Softmax cross-entropy over plain logits.
#pragma once

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/cross_entropy.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::CrossEntropy> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

}  // namespace convoy::exec

#if CONVOY_DEFINITIONS

namespace convoy::exec::host {

class CrossEntropyStage final : public Stage {
 public:
  CrossEntropyStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.leader),
        index_(index),
        logits_(p.from(node_, 0)),
        labels_(p.from(node_, 1)),
        classes_(p.node(logits_).shape.last()),
        positions_(static_cast<int>(p.node(labels_).shape.size())),
        value_(p.yield(stage.output, index)) {
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    normalizers_ =
        p.request(std::int64_t{p.rows()} * positions_ * static_cast<std::int64_t>(sizeof(float)), index, end);
    p.keep(p.value(logits_), end);
  }
  void plan_backward(Program& p) override {
    contribution_ = p.contribute(logits_, true, p.backward_time(index_));
  }
  void bind(Program& p) override {
    contribution_.bind(p);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    sums_ = p.address(normalizers_);
  }
  void forward(Program& p) override {
    const auto count = p.rows() * static_cast<std::int64_t>(positions_);
    p.tally(node_,
            cross_entropy_forward(p.rows(), positions_, classes_, p.input(logits_), p.integers(labels_), y_,
                                  sums_),
            count);
  }
  void backward(Program& p) override {
    if (contribution_)
      cross_entropy_backward(p.rows(), positions_, classes_, p.input(logits_), p.integers(labels_), sums_,
                             dy_, contribution_.pointer(), contribution_.accumulates());
  }

 private:
  int node_, index_, logits_, labels_, classes_, positions_;
  Value& value_;
  Place normalizers_;
  Contribution contribution_;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
  float* sums_ = nullptr;
};

}  // namespace convoy::exec::host

namespace convoy::exec {

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::CrossEntropy>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::CrossEntropyStage>(program, stage, index);
}

}  // namespace convoy::exec

#endif
