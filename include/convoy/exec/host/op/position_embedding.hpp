// Position embeddings.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/position_embedding.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::PositionEmbedding> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class PositionEmbeddingStage final : public UnaryStage {
 public:
  [[gnu::cold]] PositionEmbeddingStage(Program& p, const graph::Stage& stage, int index)
      : UnaryStage(p, stage, index),
        weight_(p.parameter(stage.leader, 0)),
        source_(p.plain_view(input_).place) {}
  [[gnu::cold]] void plan_backward(Program& p) override {
    const Shape& table = p.plan().parameter(weight_).shape;
    d_weight_ =
        p.contribute_parameter(weight_, Layout({table[0], table[1]}, dnnl_ab), p.backward_time(index_), true);
    UnaryStage::plan_backward(p);
    unread_ = table.size() - value_.shape.size();
  }
  [[gnu::cold]] void bind(Program& p) override {
    UnaryStage::bind(p);
    d_weight_.bind(p);
  }
  void forward(Program& p) override {
    add_to_rows(p.threads(), p.rows(), value_.shape.size(), p.address(source_), p.parameters().value(weight_),
                y_);
  }
  void backward(Program& p) override {
    if (d_weight_) {
      sum_rows(p.threads(), p.rows(), value_.shape.size(), dy_, second_, d_weight_.pointer(),
               d_weight_.accumulates());
      if (!d_weight_.accumulates()) std::fill_n(d_weight_.pointer() + value_.shape.size(), unread_, 0.0f);
    }
    if (!contribution_) return;
    p.gradients_final();
    const float* none = nullptr;
    for_each_share<PassLoop>(p.threads(), value_.elements(), dy_, second_, none, contribution_.pointer(),
                             contribution_.accumulates());
  }

 private:
  int weight_;
  Location source_;
  Contribution d_weight_;
  std::int64_t unread_ = 0;  // elements of the table past the sequence's last position
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::PositionEmbedding>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::PositionEmbeddingStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
