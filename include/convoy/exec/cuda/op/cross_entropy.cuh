// Softmax cross-entropy without stored probabilities.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/cross_entropy.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// The task of node `n`, a cross-entropy. The logits of all labels are available unless its stage changes
/// that.
template <class T>
CrossEntropyTask<T> cross_entropy_task(const Program& p, int n) {
  const int label = p.from(n, 1);
  CrossEntropyTask<T> t;
  t.rows = p.rows();
  t.positions = static_cast<int>(p.node(label).shape.size());
  t.classes = p.node(p.from(n, 0)).shape.last();
  t.ignored = p.attributes<graph::LabelInput>(label).ignore;
  t.ignores = t.ignored != graph::no_label;
  t.smoothing = p.attributes<graph::CrossEntropy>(n).smoothing;
  t.block = {0, t.count()};
  t.stride = t.classes;
  return t;
}

/// Memory of a cross-entropy stage besides values.
struct CrossEntropyMemory {
  Location normalizers, scratch, tally;

  /// Requests memory from `begin` on: normalizers until `end`, what the losses need until `measured`. Logits
  /// are available for `labels` labels at a time.
  template <class T>
  CrossEntropyMemory(Program& p, const CrossEntropyTask<T>& t, std::int64_t labels, int begin, int measured,
                     int end)
      : normalizers(p.request(static_cast<std::size_t>(t.count()) * sizeof(float), begin, end)),
        scratch(p.request(static_cast<std::size_t>(cross_entropy_scratch(t, labels)), begin, measured)),
        tally(p.request(2 * sizeof(std::int64_t), begin, measured)) {}

  /// Sets the addresses in `t`, with the labels of node `labels` and the losses that the stage yields.
  template <class T>
  void bind(Program& p, int labels, const Value& losses, CrossEntropyTask<T>& t) const {
    t.labels = p.address<i32>(p.value(labels).data);
    t.losses = p.address<float>(losses.data);
    t.d_losses = p.address<float>(losses.gradient);
    t.normalizers = p.address<float>(normalizers);
    t.scratch = p.address<void>(scratch);
    std::int64_t* const measured = p.take_tally();
    t.tally = measured != nullptr ? measured : p.address<std::int64_t>(tally);
  }
};

template <class T>
class CrossEntropyStage final : public StageOf<T> {
 public:
  CrossEntropyStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        task_(cross_entropy_task<T>(p, stage.leader)),
        memory_(p, task_, task_.count(), index, index, this->kept_until(p)) {
    this->value_.takes_second = false;
    p.keep(this->input(p, 0), this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    contribution_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void bind(Program& p) override {
    memory_.bind(p, p.from(this->leader_, 1), this->value_, task_);
    task_.logits = this->x(p, 0);
    task_.d_logits = contribution_ ? contribution_.template pointer<T>(p) : nullptr;
    task_.accumulate = contribution_.accumulates();
  }
  void forward(Program& p) override {
    cross_entropy_sums(p.stream(), task_, cross_entropy_losses(p.stream(), task_));
  }
  void backward(Program& p) override {
    if (contribution_) cross_entropy_backward(p.stream(), task_);
  }

 private:
  CrossEntropyTask<T> task_;
  CrossEntropyMemory memory_;
  Contribution contribution_;
};

CONVOY_COMPILED_STAGE(CrossEntropyStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::CrossEntropy> : cuda::KernelOf<P, cuda::CrossEntropyStage> {};

}  // namespace convoy::exec
