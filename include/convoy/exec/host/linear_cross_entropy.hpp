// A linear layer and the cross-entropy after it as one stage that never holds the logits of a whole batch if
// these are large: the logits of a language model are the largest values of its step. Logits are computed a
// block of labels at a time, and their gradients overwrite them. In training, forward defers this work to
// backward, because the loss scale and the gradient arena can only be used there. If the loss is wanted
// before backward or read within the model, or if the layer reads the batch itself, the logits are computed
// twice. If one block holds all logits, they are kept from forward to backward.
//
// In bf16 the source and the weight are copied once for both forward and backward, which follow one another
// here, and gradients of logits are rounded when they are computed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <convoy/exec/host/kernel/cross_entropy.hpp>
#include <convoy/exec/host/onednn_product.hpp>
#include <convoy/exec/host/program.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

class LinearCrossEntropyStage final : public Stage {
 public:
  [[gnu::cold]] LinearCrossEntropyStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.output),
        index_(index),
        input_(p.from(stage.leader, 0)),
        labels_(p.from(node_, 1)),
        weight_(p.parameter(stage.leader, 0)),
        bias_(graph::Linear::bias(p.plan().graph, stage.leader)),
        features_(p.node(input_).shape.last()),
        value_(p.yield(node_, index)),
        only_a_loss_(is_only_a_loss(p.plan(), node_)) {
    task_.rows = p.rows();
    task_.positions = static_cast<int>(p.node(labels_).shape.size());
    task_.classes = p.node(stage.leader).shape.last();
    task_.ignored = p.attributes<graph::LabelInput>(labels_).ignore;
    task_.ignores = task_.ignored != graph::no_label;
    task_.smoothing = p.attributes<graph::CrossEntropy>(node_).smoothing;
    block_ = block_of(task_, p.backend().logits_bytes);
    const bool rounds = p.backend().factor == dnnl_bf16;
    logit_stride_ = rounds ? rounded_up(task_.classes, tuning.logit_grain) : task_.classes;
    gradient_stride_ = has_isa(dnnl_cpu_isa_avx512_core_amx)
                           ? task_.classes
                           : rounded_up(task_.classes, tuning.row_bytes / factor_bytes);
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    const auto floats = [&](std::int64_t count, int until) {
      return p.request(count * static_cast<std::int64_t>(sizeof(float)), index, until);
    };
    const auto in_factors = [&](std::int64_t rows, Location place) {
      const Layout factors({rows, features_}, dnnl_ab, p.backend().factor);
      return p.convert({{{rows, features_}, dnnl_ab}, place}, factors, index, end);
    };
    source_ = in_factors(task_.count(), p.plain_view(input_).place);
    weights_ = in_factors(task_.classes, Location::fixed(p.parameters().value(weight_)));
    if (rounds)
      weights_ = {weights_.from(),
                  {weights_.to().desc, p.request(logit_stride_ * features_ * factor_bytes, index, end)}};
    p.keep(p.value(input_), source_.is_needed() ? index : end);
    if (weights_.is_needed())
      for_each_block([&](std::int64_t first, std::int64_t last) {
        blocks_.push_back({});
        blocks_.back().logits = std::make_unique<MatrixProduct>(p, false, true, last - first, logit_stride_,
                                                                features_, features_, false);
      });
    normalizers_ = floats(task_.count(), end);
    label_losses_ = floats(task_.count(), end);
    logits_ = floats(block_ * logit_stride_, end);
    if (defers()) labels_seen_ = std::vector<i32>(static_cast<std::size_t>(task_.count()));
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    p.assign_other_layers(p.from(node_, 0));
    d_weight_ = p.contribute_parameter(weight_, Layout({task_.classes, features_}, dnnl_ab), time, true);
    if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_, Layout({task_.classes}, dnnl_x), time, true);
    contribution_ = p.contribute(input_, true, time);
    if (blocks_.empty()) return;
    gradient_factors_ = p.request(block_ * gradient_stride_ * factor_bytes, time, time);
    std::int64_t begin = 0;
    for (Block& block : blocks_) {
      const std::int64_t labels = std::min(block_, task_.count() - begin);
      if (d_weight_)
        block.d_weight =
            std::make_unique<MatrixProduct>(p, true, false, task_.classes, features_, labels,
                                            gradient_stride_, begin > 0 || d_weight_.accumulates());
      if (contribution_)
        block.dx = std::make_unique<MatrixProduct>(p, false, false, labels, features_, task_.classes,
                                                   gradient_stride_, contribution_.accumulates());
      begin += labels;
    }
  }
  [[gnu::cold]] void bind(Program& p) override {
    d_weight_.bind(p);
    d_bias_.bind(p);
    contribution_.bind(p);
    source_.bind(p);
    weights_.bind(p);
    if (bias_ >= 0) biases_ = p.parameters().value(bias_);
    task_.normalizers = p.address(normalizers_);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    bind_blocks(p);
  }

  /// Backward computes the logits anyway, so forward defers its loss unless something in the model reads it.
  /// If no backward follows, `complete` may run after the caller has reused the batch, so that the source
  /// must not be a field of it.
  bool defers() const override {
    return !keeps() && value_.wants_gradient && only_a_loss_ &&
           source_.to().place.kind != Location::Kind::field;
  }

  void forward(Program& p) override {
    source_.run();
    weights_.run();
    if (weights_.is_needed())
      std::fill_n(reinterpret_cast<bf16*>(p.address(weights_.to().place)) + task_.classes * features_,
                  (logit_stride_ - task_.classes) * features_, bf16());
    task_.labels = p.integers(labels_);
    measured_ = false;
    if (!defers() || p.pass().mode != Mode::train) return complete(p);
    // Copies the labels, which are a field of the batch.
    std::copy_n(task_.labels, labels_seen_.size(), labels_seen_.begin());
    task_.labels = labels_seen_.data();
  }

  void complete(Program& p) override {
    correct_ = 0;
    for_each_block([&](std::int64_t begin, std::int64_t end) {
      make_logits(p, begin, end, p.address(logits_));
      for_each_label(p, begin, end, true, false);
    });
    finish_loss(p);
  }

  void backward(Program& p) override {
    float* const logits = p.address(logits_);
    const bool measures = !measured_;
    if (measures) correct_ = 0;
    for_each_block([&](std::int64_t begin, std::int64_t end) {
      if (!keeps()) make_logits(p, begin, end, logits);
      for_each_label(p, begin, end, measures, true);
      const bool first = begin == 0;
      const Block* const block = block_at(begin);
      if (d_weight_ && block != nullptr)
        (*block->d_weight)();
      else if (d_weight_)
        multiply_matrices(task_.classes, features_, end - begin, {logits, task_.classes, true},
                          {p.address(source_.to().place) + begin * features_, features_},
                          first && !d_weight_.accumulates() ? 0.0f : 1.0f, d_weight_.pointer());
      if (d_bias_) add_to_bias(p, logits, end - begin, first && !d_bias_.accumulates());
      if (end == task_.count()) p.gradients_final();
      if (contribution_ && block != nullptr)
        (*block->dx)();
      else if (contribution_)
        multiply_matrices(end - begin, features_, task_.classes, {logits, task_.classes},
                          {p.address(weights_.to().place), features_},
                          contribution_.accumulates() ? 1.0f : 0.0f,
                          contribution_.pointer() + begin * features_);
    });
    if (measures) finish_loss(p);
  }
  [[gnu::cold]] std::string implementation() const override { return "gemm and convoy"; }

 private:
  static constexpr std::int64_t factor_bytes = 2;
  static constexpr LinearCrossEntropyTuning tuning = linear_cross_entropy_tuning;
  static constexpr std::int64_t rounded_up(std::int64_t count, std::int64_t grain) {
    return (count + grain - 1) / grain * grain;
  }

  /// The labels per block: as many as have logits of at most `bytes`, but at least one grain, in blocks of
  /// about equal size. Larger blocks read the weight and add to its gradient less often.
  static std::int64_t block_of(const CrossEntropyTask& task, std::int64_t bytes) {
    constexpr std::int64_t grain = tuning.label_grain;
    const std::int64_t row_bytes = task.classes * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t most = std::max<std::int64_t>(bytes / row_bytes / grain * grain, grain);
    const std::int64_t blocks = (task.count() + most - 1) / most;
    const std::int64_t even = (task.count() + blocks - 1) / blocks;
    return std::min(task.count(), (even + grain - 1) / grain * grain);
  }

  /// Computes the losses of a block's labels and the gradients of its logits: in place, rounded to bf16 as
  /// factors, or both.
  void for_each_label(Program& p, std::int64_t begin, std::int64_t end, bool losses, bool gradients) {
    float *const logits = p.address(logits_), *const each = p.address(label_losses_);
    auto* const factors = reinterpret_cast<bf16*>(p.address(gradient_factors_));
    const bool in_place = factors == nullptr || d_bias_;
    parallel(team(p, end - begin), [&](int thread, int team) {
      const Range range = share(end - begin, thread, team);
      std::int64_t correct = 0;
      for (std::int64_t i = begin + range.begin; i < begin + range.end; ++i) {
        float* const row = logits + (i - begin) * logit_stride_;
        if (losses) each[i] = task_.counts(i) ? label_loss(task_, i, row, correct) : 0.0f;
        if (gradients)
          label_gradient(task_, i, row, dy_[i / task_.positions], in_place ? row : nullptr, false,
                         factors == nullptr ? nullptr : factors + (i - begin) * gradient_stride_);
      }
      correct_ += correct;
    });
  }
  /// Sums the losses of each row's labels.
  void finish_loss(Program& p) {
    const float* each = p.address(label_losses_);
    for (std::int64_t r = 0; r < task_.rows; ++r) {
      y_[r] = 0;
      for (int k = 0; k < task_.positions; ++k) y_[r] += *each++;
    }
    p.tally(node_, correct_, graph::CrossEntropy::counted(p.plan().graph, node_, task_.labels, p.rows()));
    measured_ = true;
  }

  /// Whether one block holds the logits of all labels.
  bool keeps() const { return block_ == task_.count(); }
  int team(const Program& p, std::int64_t labels) const {
    return labels * task_.classes < loop_tuning.worth_a_team ? 1 : p.threads();
  }
  template <class Visit>
  void for_each_block(Visit visit) const {
    for (std::int64_t begin = 0; begin < task_.count(); begin += block_)
      visit(begin, std::min(begin + block_, task_.count()));
  }

  /// The bf16 products of one block.
  struct Block {
    std::unique_ptr<MatrixProduct> logits, d_weight, dx;
  };
  /// Null in f32.
  const Block* block_at(std::int64_t begin) const {
    return blocks_.empty() ? nullptr : &blocks_[static_cast<std::size_t>(begin / block_)];
  }
  [[gnu::cold]] void bind_blocks(Program& p) {
    const auto at = [&](const Location& place, std::int64_t bytes) {
      return Location::fixed(
          reinterpret_cast<float*>(reinterpret_cast<std::byte*>(p.address(place)) + bytes));
    };
    std::int64_t begin = 0;
    for (Block& block : blocks_) {
      const std::int64_t labels = std::min(block_, task_.count() - begin);
      const Location x = at(source_.to().place, begin * features_ * factor_bytes), w = weights_.to().place;
      block.logits->bind(p, x, w, logits_);
      if (block.d_weight) block.d_weight->bind(p, gradient_factors_, x, Location::fixed(d_weight_.pointer()));
      if (block.dx)
        block.dx->bind(p, gradient_factors_, w, Location::fixed(contribution_.pointer() + begin * features_));
      begin += labels;
    }
  }

  void make_logits(Program& p, std::int64_t begin, std::int64_t end, float* logits) const {
    if (const Block* const block = block_at(begin))
      (*block->logits)();
    else
      multiply_matrices(end - begin, task_.classes, features_,
                        {p.address(source_.to().place) + begin * features_, features_},
                        {p.address(weights_.to().place), features_, true}, 0.0f, logits);
    if (biases_ == nullptr) return;
    parallel(team(p, end - begin), [&](int thread, int team) {
      const Range range = share(end - begin, thread, team);
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        float* const row = logits + i * logit_stride_;
        simd::run<AddLoop>(std::int64_t{0}, std::int64_t{task_.classes}, static_cast<const float*>(row),
                           biases_, row, false);
      }
    });
  }

  /// Adds the rows of a block to the bias gradient in order; threads share the classes.
  void add_to_bias(Program& p, const float* rows, std::int64_t count, bool assign) const {
    const float* const none = nullptr;
    parallel(team(p, count), [&](int thread, int team) {
      const Range range = share(task_.classes, thread, team, 16);
      for (std::int64_t i = 0; i < count; ++i)
        simd::run<PassLoop>(range.begin, range.end, rows + i * logit_stride_, none, none, d_bias_.pointer(),
                            !assign || i > 0);
    });
  }

  int node_, index_, input_, labels_, weight_, bias_;
  std::int64_t features_, block_ = 0;
  // Elements from one label to the next: of logits, and of their gradients in bf16.
  std::int64_t logit_stride_ = 0, gradient_stride_ = 0;
  Value& value_;
  CrossEntropyTask task_;
  Conversion source_, weights_;
  bool only_a_loss_;
  bool measured_ = false;  // whether the losses of the last pass are known
  std::vector<i32> labels_seen_;
  std::atomic<std::int64_t> correct_ = 0;
  Location normalizers_, label_losses_, logits_, gradient_factors_;
  Contribution d_weight_, d_bias_, contribution_;
  std::vector<Block> blocks_;
  const float* biases_ = nullptr;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
};

}  // namespace convoy::exec::host
