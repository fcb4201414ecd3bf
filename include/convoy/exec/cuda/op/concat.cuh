// Concatenation: inputs are copied as runs within the runs of the value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/exec/cuda/kernel/concat.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class ConcatStage final : public StageOf<T> {
 public:
  ConcatStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), contribution_(static_cast<std::size_t>(p.node(stage.leader).inputs)) {
    const int whole = run_of(p, stage.leader);
    int at = 0;
    for (int i = 0; i < p.node(stage.leader).inputs; ++i) {
      const int length = run_of(p, p.from(stage.leader, i));
      parts_.push_back({this->value_.elements() / whole, length, at, whole});
      at += length;
    }
  }
  void plan_backward(Program& p) override {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      contribution_[i] =
          p.contribute(p.from(this->leader_, static_cast<int>(i)), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      copy_runs<T>(p.stream(), {part.count, part.length, part.length, part.whole},
                   this->x(p, static_cast<int>(i)), nullptr, this->y(p) + part.at, false);
    }
  }
  void backward(Program& p) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!contribution_[i]) continue;
      const Part& part = parts_[i];
      const T* second = this->second(p);
      copy_runs<T>(p.stream(), {part.count, part.length, part.whole, part.length}, this->dy(p) + part.at,
                   second == nullptr ? nullptr : second + part.at, contribution_[i].template pointer<T>(p),
                   contribution_[i].accumulates());
    }
  }

 private:
  struct Part {
    std::int64_t count;
    int length, at, whole;
  };
  // Length of the contiguous runs of node `n`: the channels of a position, the features of a vector. A row
  // may be a view of a sequence.
  static int run_of(Program& p, int n) {
    const graph::Node& node = p.node(n);
    return node.kind == Kind::image ? p.value(n).channels : node.shape.last();
  }

  std::vector<Part> parts_;
  std::vector<Contribution> contribution_;
};

CONVOY_COMPILED_STAGE(ConcatStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Concat> : cuda::KernelOf<P, cuda::ConcatStage> {};

}  // namespace convoy::exec
