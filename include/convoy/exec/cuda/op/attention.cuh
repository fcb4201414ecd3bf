// Attention of sequences, by convoy's own kernels or, in 16 bits, by cuDNN's.
#pragma once

#include <cmath>
#include <cstddef>

#include <convoy/exec/cuda/fused_attention.cuh>
#include <convoy/exec/cuda/kernel/attention.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class AttentionStage final : public StageOf<T> {
 public:
  AttentionStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), extents_(graph::Attention::extents(p.plan().graph, stage.leader)) {
    task_.rows = p.rows();
    task_.heads = extents_.heads;
    task_.queries = extents_.queries;
    task_.keys = extents_.keys;
    task_.key_features = extents_.key_features;
    task_.value_features = extents_.value_features;
    task_.causal = extents_.causal;
    task_.rule = DropoutRule(extents_.dropout);
    if (extents_.dropout > 0) p.draw(stage.leader);
    task_.scale = 1.0f / std::sqrt(static_cast<float>(extents_.key_features));
    for (int part = 0; part < 3; ++part) task_.step[part] = extents_.features[part];
    for (int i = 0; i < p.node(stage.leader).inputs; ++i) p.keep(this->input(p, i), this->kept_until(p));
    kept_ = p.request(bytes(), index, this->kept_until(p));
    plan_fused(p);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    // Gradients that are written at once need separate memory, even if one value is two of the three inputs.
    for (int i = 0; i < (extents_.is_packed() ? 1 : 3); ++i)
      contribution_[i] = p.contribute(p.from(this->leader_, i), false, time);
    means_ = p.request(bytes(), time, time);
  }
  void bind(Program& p) override {
    for (int part = 0; part < 3; ++part) {
      const int input = extents_.input[part];
      task_.part[part] = this->x(p, input) + extents_.first[part];
      if (contribution_[input])
        task_.gradient[part] = contribution_[input].template pointer<T>(p) + extents_.first[part];
    }
    if (extents_.lengths >= 0) task_.lengths = p.address<i32>(this->input(p, extents_.lengths).data);
    task_.y = this->y(p);
    task_.kept = p.address<float>(kept_);
    task_.dy = this->dy(p);
    task_.second = this->second(p);
    task_.means = p.address<float>(means_);
    if (fused_forward_) fused_forward_.bind(p, task_);
    if (fused_backward_ && means_) fused_backward_.bind(p, task_);
  }
  void forward(Program& p) override {
    task_.draws = extents_.dropout > 0 && p.trains() ? p.draws(this->leader_) : nullptr;
    // With dropout, cuDNN's plan is for training only.
    if (fused_forward_ && (extents_.dropout == 0 || p.trains()))
      fused_forward_.run(p, task_);
    else
      attention_forward(p.stream(), task_);
  }
  void backward(Program& p) override {
    if (fused_backward_)
      fused_backward_.run(p, task_);
    else
      attention_backward(p.stream(), task_);
    for (const Contribution& contribution : contribution_) contribution.template finish<T>(p);
  }

 private:
  // cuDNN's backward reads the gradient of the value from one buffer, and computes all three gradients.
  void plan_fused(Program& p) {
    if constexpr (sizeof(T) == 2) {
      const auto shape = [&](bool backward) {
        return fused_attention_of(p.plan(), this->leader_, dtype_of<T>, p.rows(), backward);
      };
      fused_forward_.plan(p, shape(false), task_, this->index_);
      bool wants = this->value_.wants_gradient;
      for (const int input : extents_.input) wants = wants && this->input(p, input).wants_gradient;
      if (wants) fused_backward_.plan(p, shape(true), task_, this->backward_time(p));
      if (fused_backward_) this->value_.takes_second = false;
    }
  }
  std::size_t bytes() const { return static_cast<std::size_t>(task_.vectors()) * sizeof(float); }

  graph::Attention::Extents extents_;
  AttentionTask<T> task_;
  Location kept_, means_;
  Contribution contribution_[3];
  FusedAttentionPass<T> fused_forward_, fused_backward_;
};

CONVOY_COMPILED_STAGE(AttentionStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Attention> : cuda::KernelOf<P, cuda::AttentionStage> {};

}  // namespace convoy::exec
