// Position embedding: a table added to each row of the batch.
#pragma once

#include <cstddef>

#include <convoy/exec/cuda/kernel/position_embedding.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class PositionEmbeddingStage final : public StageOf<T> {
 public:
  PositionEmbeddingStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        weight_(p.parameter(stage.leader, 0)),
        row_(static_cast<int>(this->value_.row_elements())) {
    p.keep(this->input(p, 0), index);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    d_weight_ = p.contribute_parameter(weight_);
    if (d_weight_)
      scratch_ =
          p.request(static_cast<std::size_t>(column_sums_scratch<T>(p.rows(), row_, row_)), time, time);
    dx_ = p.contribute(p.from(this->leader_, 0), true, time);
  }
  void forward(Program& p) override {
    add_to_rows<T>(p.stream(), p.rows(), row_, this->x(p, 0), p.parameters().value(weight_), this->y(p));
  }
  void backward(Program& p) override {
    if (d_weight_) {
      sum_rows<T>(p.stream(), p.rows(), row_, this->dy(p), this->second(p), d_weight_.pointer,
                  d_weight_.accumulate, p.address<void>(scratch_));
      const auto unread = static_cast<std::size_t>(p.plan().parameter(weight_).shape.size() - row_);
      if (!d_weight_.accumulate && unread > 0)
        device::check(cudaMemsetAsync(d_weight_.pointer + row_, 0, unread * sizeof(float), p.stream()),
                      "clear a gradient");
    }
    if (dx_)
      pass<T>(p.stream(), this->value_.elements(), this->dy(p), this->second(p), nullptr,
              dx_.template pointer<T>(p), dx_.accumulates());
  }

 private:
  int weight_, row_;
  Location scratch_;
  ParameterGradient d_weight_;
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(PositionEmbeddingStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::PositionEmbedding> : cuda::KernelOf<P, cuda::PositionEmbeddingStage> {};

}  // namespace convoy::exec
