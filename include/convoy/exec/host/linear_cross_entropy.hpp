// A linear layer and the cross-entropy behind it as one stage, which never holds the logits of a whole batch
// where these are many: a language model's are the largest values of its step. They are made a block of
// labels at a time, and made again in backward, where their gradients take their place. Forward keeps one
// number a label. Backward could not be done together with forward: only there are the scale of the loss, and
// the arena that gradients of parameters belong into, this stage's to use. What making logits twice costs is
// a third more multiplications in this layer alone; where one block holds them all they are kept.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include <convoy/exec/host/kernel/cross_entropy.hpp>
#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

/// C = A B + beta C in f32, with A [m, k] or, transposed, [k, m], B and C likewise, all row-major; by oneDNN,
/// on as many threads as OpenMP gives the caller.
inline void multiply_matrices(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                              std::int64_t k, const float* a, const float* b, float beta, float* c) {
  check(dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, transpose_a ? m : k, b,
                   transpose_b ? k : n, beta, c, n),
        "multiply two matrices");
}

class LinearCrossEntropyStage final : public Stage {
 public:
  /// Logits of a block take at most so many bytes, unless those of 16 labels take more: enough labels that
  /// reading the weight is little beside multiplying by it.
  static constexpr std::int64_t block_bytes = std::int64_t{32} << 20;

  [[gnu::cold]] LinearCrossEntropyStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.output),
        index_(index),
        input_(p.from(stage.leader, 0)),
        labels_(p.from(node_, 1)),
        weight_(p.parameter(stage.leader, 0)),
        bias_(p.node(stage.leader).uses > 1 ? p.parameter(stage.leader, 1) : -1),
        features_(p.node(input_).shape.last()),
        value_(p.yield(node_, index)) {
    task_.rows = p.rows();
    task_.positions = static_cast<int>(p.node(labels_).shape.size());
    task_.classes = p.node(stage.leader).shape.last();
    task_.ignored = p.attributes<graph::LabelInput>(labels_).ignore;
    task_.ignores = task_.ignored != graph::no_label;
    task_.smoothing = p.attributes<graph::CrossEntropy>(node_).smoothing;
    const std::int64_t fit =
        block_bytes / (task_.classes * static_cast<std::int64_t>(sizeof(float))) / 16 * 16;
    block_ = std::min(task_.count(), std::max<std::int64_t>(fit, 16));
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    const auto floats = [&](std::int64_t count, int until) {
      return p.request(count * static_cast<std::int64_t>(sizeof(float)), index, until);
    };
    source_ = p.plain_view(input_).place;
    p.keep(p.value(input_), end);
    normalizers_ = floats(task_.count(), end);
    label_losses_ = floats(task_.count(), index);
    logits_ = floats(block_ * task_.classes, keeps() ? end : index);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    d_weight_ = p.contribute_parameter(weight_, Layout({task_.classes, features_}, dnnl_ab), time, true);
    if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_, Layout({task_.classes}, dnnl_x), time, true);
    contribution_ = p.contribute(input_, true, time);
    gradients_ =
        keeps() ? logits_
                : p.request(block_ * task_.classes * static_cast<std::int64_t>(sizeof(float)), time, time);
  }
  [[gnu::cold]] void bind(Program& p) override {
    d_weight_.bind(p);
    d_bias_.bind(p);
    contribution_.bind(p);
    weights_ = p.parameters().value(weight_);
    if (bias_ >= 0) biases_ = p.parameters().value(bias_);
    task_.normalizers = p.address(normalizers_);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
  }

  void forward(Program& p) override {
    task_.labels = p.integers(labels_);
    float *const logits = p.address(logits_), *const each = p.address(label_losses_);
    const float* const x = p.address(source_);
    std::atomic<std::int64_t> correct = 0;
    for_each_block([&](std::int64_t begin, std::int64_t end) {
      make_logits(p, x, begin, end, logits);
      parallel(team(p, end - begin), [&](int thread, int team) {
        const Range range = share(end - begin, thread, team);
        std::int64_t mine = 0;
        for (std::int64_t i = begin + range.begin; i < begin + range.end; ++i)
          each[i] = task_.counts(i) ? label_loss(task_, i, logits + (i - begin) * task_.classes, mine) : 0.0f;
        correct += mine;
      });
    });
    for (std::int64_t r = 0; r < task_.rows; ++r) {
      y_[r] = 0;
      for (int k = 0; k < task_.positions; ++k) y_[r] += each[r * task_.positions + k];
    }
    p.tally(node_, correct, graph::CrossEntropy::counted(p.plan().graph, node_, task_.labels, p.rows()));
  }

  void backward(Program& p) override {
    float* const logits = p.address(gradients_);
    const float* const x = p.address(source_);
    for_each_block([&](std::int64_t begin, std::int64_t end) {
      if (!keeps()) make_logits(p, x, begin, end, logits);
      parallel(team(p, end - begin), [&](int thread, int team) {
        const Range range = share(end - begin, thread, team);
        for (std::int64_t i = begin + range.begin; i < begin + range.end; ++i) {
          float* const row = logits + (i - begin) * task_.classes;
          label_gradient(task_, i, row, dy_[i / task_.positions], row, false);
        }
      });
      const bool first = begin == 0;
      if (d_weight_)
        multiply_matrices(true, false, task_.classes, features_, end - begin, logits, x + begin * features_,
                          first && !d_weight_.accumulates() ? 0.0f : 1.0f, d_weight_.pointer());
      if (d_bias_) add_to_bias(p, logits, end - begin, first && !d_bias_.accumulates());
      if (end == task_.count()) p.gradients_final();
      if (contribution_)
        multiply_matrices(false, false, end - begin, features_, task_.classes, logits, weights_,
                          contribution_.accumulates() ? 1.0f : 0.0f,
                          contribution_.pointer() + begin * features_);
    });
  }
  [[gnu::cold]] std::string implementation() const override { return "gemm and convoy"; }

 private:
  /// Whether one block holds the logits of all labels.
  bool keeps() const { return block_ == task_.count(); }
  int team(const Program& p, std::int64_t labels) const {
    return labels * task_.classes < parallel_threshold ? 1 : p.threads();
  }
  template <class Visit>
  void for_each_block(Visit visit) const {
    for (std::int64_t begin = 0; begin < task_.count(); begin += block_)
      visit(begin, std::min(begin + block_, task_.count()));
  }

  void make_logits(Program& p, const float* x, std::int64_t begin, std::int64_t end, float* logits) const {
    multiply_matrices(false, true, end - begin, task_.classes, features_, x + begin * features_, weights_,
                      0.0f, logits);
    if (biases_ == nullptr) return;
    parallel(team(p, end - begin), [&](int thread, int team) {
      const Range range = share(end - begin, thread, team);
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        float* const row = logits + i * task_.classes;
        simd::run<AddLoop>(std::int64_t{0}, std::int64_t{task_.classes}, static_cast<const float*>(row),
                           biases_, row, false);
      }
    });
  }

  /// Adds the rows of a block in their order; threads share the classes.
  void add_to_bias(Program& p, const float* rows, std::int64_t count, bool assign) const {
    const float* const none = nullptr;
    parallel(team(p, count), [&](int thread, int team) {
      const Range range = share(task_.classes, thread, team, 16);
      for (std::int64_t i = 0; i < count; ++i)
        simd::run<PassLoop>(range.begin, range.end, rows + i * task_.classes, none, none, d_bias_.pointer(),
                            !assign || i > 0);
    });
  }

  int node_, index_, input_, labels_, weight_, bias_;
  std::int64_t features_, block_ = 0;
  Value& value_;
  CrossEntropyTask task_;
  Place source_, normalizers_, label_losses_, logits_, gradients_;
  Contribution d_weight_, d_bias_, contribution_;
  const float* weights_ = nullptr;
  const float* biases_ = nullptr;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
};

}  // namespace convoy::exec::host
