// Softmax cross-entropy without stored probabilities.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/cross_entropy.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// The labels of node `n`, a cross-entropy, of which all are at hand unless its stage says otherwise.
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

template <class T>
class CrossEntropyStage final : public StageOf<T> {
 public:
  CrossEntropyStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), task_(cross_entropy_task<T>(p, stage.leader)) {
    this->value_.takes_second = false;
    p.keep(this->input(p, 0), this->kept_until(p));
    normalizers_ =
        p.request(static_cast<std::size_t>(task_.count()) * sizeof(float), index, this->kept_until(p));
    scratch_ = p.request(static_cast<std::size_t>(cross_entropy_scratch(task_, task_.count())), index, index);
    tally_ = p.request(2 * sizeof(std::int64_t), index, index);
  }
  void plan_backward(Program& p) override {
    contribution_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void bind(Program& p) override {
    task_.logits = this->x(p, 0);
    task_.labels = p.address<i32>(this->input(p, 1).data);
    task_.losses = p.address<float>(this->value_.data);
    task_.normalizers = p.address<float>(normalizers_);
    std::int64_t* const measured = p.take_tally();
    task_.tally = measured != nullptr ? measured : p.address<std::int64_t>(tally_);
    task_.scratch = p.address<void>(scratch_);
    task_.d_losses = p.address<float>(this->value_.gradient);
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
  Location normalizers_, scratch_, tally_;
  Contribution contribution_;
};

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::CrossEntropy> : cuda::KernelOf<P, cuda::CrossEntropyStage> {};

}  // namespace convoy::exec
