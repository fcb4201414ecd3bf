// Embeddings.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/embedding.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Embedding> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class EmbeddingStage final : public ValueStage {
 public:
  [[gnu::cold]] EmbeddingStage(Program& p, const graph::Stage& stage, int index)
      : ValueStage(p, stage, index),
        ids_(p.from(stage.leader, 0)),
        weight_(p.parameter(stage.leader, 0)),
        entries_(p.plan().parameter(weight_).shape[0]),
        features_(p.plan().parameter(weight_).shape[1]) {}
  [[gnu::cold]] void plan_backward(Program& p) override {
    const Layout layout({entries_, features_}, dnnl_ab);
    d_weight_ = p.contribute_parameter(weight_, layout, p.backward_time(index_), true);
  }
  [[gnu::cold]] void bind(Program& p) override {
    ValueStage::bind(p);
    d_weight_.bind(p);
  }
  void forward(Program& p) override {
    gather_rows(p.threads(), count(), features_, p.integers(ids_), p.parameters().value(weight_), y_);
  }
  void backward(Program& p) override {
    if (d_weight_)
      scatter_rows(p.threads(), count(), entries_, features_, p.integers(ids_), dy_, second_,
                   d_weight_.pointer(), !d_weight_.accumulates());
  }

 private:
  std::int64_t count() const { return value_.elements() / features_; }

  int ids_, weight_;
  std::int64_t entries_, features_;
  Contribution d_weight_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Embedding>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::EmbeddingStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
