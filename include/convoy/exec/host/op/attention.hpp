// Attention over plain sequences.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <cmath>

#include <convoy/exec/host/kernel/attention.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Attention> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class AttentionStage final : public Stage {
 public:
  [[gnu::cold]] AttentionStage(Program& p, const graph::Stage& stage, int index)
      : extents_(graph::Attention::extents(p.plan().graph, stage.leader)),
        node_(stage.leader),
        index_(index),
        value_(p.yield(stage.output, index)) {
    value_.takes_second = true;
    task_.rows = p.rows();
    task_.heads = extents_.heads;
    task_.queries = extents_.queries;
    task_.keys = extents_.keys;
    task_.key_features = extents_.key_features;
    task_.value_features = extents_.value_features;
    task_.causal = extents_.causal;
    task_.rule = DropoutRule(extents_.dropout);
    task_.drops = extents_.dropout > 0;  // for the size of scratch memory
    task_.scale = 1.0f / std::sqrt(static_cast<float>(extents_.key_features));
    for (int part = 0; part < 3; ++part) task_.step[part] = extents_.features[part];
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    for (int i = 0; i < p.node(node_).inputs; ++i) p.keep(p.value(p.from(node_, i)), end);
    log_sums_ = p.request(std::int64_t{task_.rows} * task_.heads * task_.queries * element, index, end);
    forward_scratch_ = p.request(p.threads() * task_.scratch_of_forward() * element, index, index);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    // The kernel writes its gradients at once, so each needs a buffer of its own, even if one value is two of
    // its inputs.
    for (int i = 0; i < inputs(); ++i) contribution_[i] = p.contribute(p.from(node_, i), false, time);
    backward_scratch_ = p.request(p.threads() * task_.scratch_of_backward() * element, time, time);
  }
  [[gnu::cold]] void bind(Program& p) override {
    for (Contribution& contribution : contribution_) contribution.bind(p);
    for (int part = 0; part < 3; ++part) {
      float* const to = contribution_[extents_.input[part]].pointer();
      task_.gradient[part] = to == nullptr ? nullptr : to + extents_.first[part];
    }
    task_.y = p.address(value_.data.place);
    task_.log_sums = p.address(log_sums_);
    task_.dy = p.address(value_.gradient);
    task_.second = p.address(value_.second);
  }
  void forward(Program& p) override {
    locate(p);
    task_.drops = extents_.dropout > 0 && p.pass().mode == Mode::train;
    task_.draws = Draws(p.pass(), p.node(node_).name.view());
    task_.scratch = p.address(forward_scratch_);
    attention_forward(task_, p.threads());
  }
  void backward(Program& p) override {
    locate(p);
    task_.scratch = p.address(backward_scratch_);
    attention_backward(task_, p.threads());
    for (const Contribution& contribution : contribution_) contribution.finish(p.threads());
  }

 private:
  static constexpr auto element = static_cast<std::int64_t>(sizeof(float));

  /// The number of inputs that have gradients.
  int inputs() const { return extents_.is_packed() ? 1 : 3; }
  // The addresses of a batch's fields change from call to call.
  void locate(Program& p) {
    for (int part = 0; part < 3; ++part)
      task_.part[part] = p.input(p.from(node_, extents_.input[part])) + extents_.first[part];
    if (extents_.lengths >= 0) task_.lengths = p.integers(p.from(node_, extents_.lengths));
  }

  graph::Attention::Extents extents_;
  int node_, index_;
  Value& value_;
  Location log_sums_, forward_scratch_, backward_scratch_;
  Contribution contribution_[3];
  AttentionTask task_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Attention>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::AttentionStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
