// Embedding: rows of a table by index.
#pragma once

#include <convoy/exec/cuda/kernel/embedding.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class EmbeddingStage final : public StageOf<T> {
 public:
  EmbeddingStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), weight_(p.parameter(stage.leader, 0)) {
    const Shape& table = p.plan().parameter(weight_).shape;
    task_ = {static_cast<int>(this->value_.elements() / table[1]), table[0], table[1]};
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    d_weight_ = p.contribute_parameter(weight_);
    if (d_weight_) scratch_ = p.request(scatter_scratch(task_), time, time);
  }
  void forward(Program& p) override {
    gather_rows<T>(p.stream(), task_, ids(p), p.parameters().template operand<T>(weight_), this->y(p));
  }
  void backward(Program& p) override {
    if (d_weight_)
      scatter_rows<T>(p.stream(), task_, ids(p), this->dy(p), this->second(p), d_weight_.pointer,
                      p.address<void>(scratch_), d_weight_.accumulate);
  }

 private:
  const i32* ids(Program& p) const { return p.address<i32>(this->input(p, 0).data); }

  int weight_;
  EmbeddingTask task_;
  Location scratch_;
  ParameterGradient d_weight_;
};

CONVOY_COMPILED_STAGE(EmbeddingStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Embedding> : cuda::KernelOf<P, cuda::EmbeddingStage> {};

}  // namespace convoy::exec
