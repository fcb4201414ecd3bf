// Softmax cross-entropy over plain logits.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/cross_entropy.hpp>
#include <convoy/exec/host/linear_cross_entropy.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::CrossEntropy> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class CrossEntropyStage final : public Stage {
 public:
  [[gnu::cold]] CrossEntropyStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.leader),
        index_(index),
        logits_(p.from(node_, 0)),
        labels_(p.from(node_, 1)),
        value_(p.yield(stage.output, index)) {
    task_.rows = p.rows();
    task_.positions = static_cast<int>(p.node(labels_).shape.size());
    task_.classes = p.node(logits_).shape.last();
    task_.ignored = p.attributes<graph::LabelInput>(labels_).ignore;
    task_.ignores = task_.ignored != graph::no_label;
    task_.smoothing = p.attributes<graph::CrossEntropy>(node_).smoothing;
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    normalizers_ = p.request(task_.count() * static_cast<std::int64_t>(sizeof(float)), index, end);
    p.keep(p.value(logits_), end);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(logits_, true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    contribution_.bind(p);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    task_.normalizers = p.address(normalizers_);
  }
  void forward(Program& p) override {
    task_.logits = p.input(logits_);
    task_.labels = p.integers(labels_);
    const std::int64_t correct = cross_entropy_forward(task_, y_, p.threads());
    p.tally(node_, correct, graph::CrossEntropy::counted(p.plan().graph, node_, task_.labels, p.rows()));
  }
  void backward(Program& p) override {
    if (contribution_)
      cross_entropy_backward(task_, dy_, contribution_.pointer(), contribution_.accumulates(), p.threads());
  }

 private:
  int node_, index_, logits_, labels_;
  Value& value_;
  Location normalizers_;
  Contribution contribution_;
  CrossEntropyTask task_;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::CrossEntropy>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  if (graph::is<graph::Linear>(program.node(stage.leader)))
    return std::make_unique<host::LinearCrossEntropyStage>(program, stage, index);
  return std::make_unique<host::CrossEntropyStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
