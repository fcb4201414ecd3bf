// A linear layer and the cross-entropy after it as one stage. It never holds the logits of a whole batch if
// they are many: in a language model they are the largest values of a step. Logits are computed for one block
// of labels at a time, and their gradients overwrite them. In training this is left to backward, because only
// there the scale of the loss is known. If the loss is wanted before backward, or the model reads it, the
// logits are computed twice. If one block holds all logits, they are kept from forward to backward.
//
// The number of classes of a vocabulary seldom is a multiple of 16 bytes, which the fast kernels of products
// need. So products compute and read columns up to a multiple of 128 bytes. The logits behind the classes are
// products with whatever lies behind the weight. Nothing reads them, and their gradients are 0. The gradient
// of the weight has no room behind it: the classes behind the last multiple of 16 bytes get a product of
// their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <convoy/exec/cuda/kernel/bias.cuh>
#include <convoy/exec/cuda/kernel/reduce.cuh>
#include <convoy/exec/cuda/op/cross_entropy.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// A product of matrices of T, [rows, inner] by [inner, columns], in the precision of a program.
template <class T>
Product describe_product(const Program& p, std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  Product product;
  product.element = product.out = dtype_of<T>;
  product.reduced_products = p.libraries().reduced_products();
  product.rows = rows;
  product.columns = columns;
  product.inner = inner;
  return product;
}

/// A product and the bias that a linear layer adds to its rows, by the product's epilogue or, where cuBLASLt
/// has no algorithm with one, by a pass over the result.
template <class T>
class BiasedProduct {
 public:
  BiasedProduct() = default;
  /// `bias` is a parameter, or -1.
  BiasedProduct(Program& p, Product product, int bias)
      : bias_(bias), columns_(static_cast<int>(product.columns)), rows_(product.rows) {
    product.epilogue = bias >= 0 ? ProductEpilogue::bias : ProductEpilogue::none;
    plan_ = p.libraries().find(product);
    adds_ = plan_ == nullptr && bias >= 0;
    if (plan_ != nullptr) return;
    product.epilogue = ProductEpilogue::none;
    plan_ = p.libraries().plan(product);
  }

  void run(Program& p, const T* left, const T* right, T* out) const {
    plan_->run(left, right, bias_ >= 0 ? p.parameters().template operand<T>(bias_) : nullptr, out);
    if (adds_) add_bias<T>(p.stream(), rows_, columns_, p.parameters().value(bias_), out);
  }

 private:
  int bias_ = -1, columns_ = 0;
  std::int64_t rows_ = 0;
  std::unique_ptr<ProductPlan> plan_;
  bool adds_ = false;
};

/// The product that computes the gradient of a weight [outputs, inputs] and, from the same factor, that of
/// the bias: in the type of the product's result, which is f32 whatever the factors are, overwriting what was
/// there. Null if cuBLASLt has no algorithm for it, or if the product alone and a pass over the factor take
/// less time.
template <class T>
std::unique_ptr<ProductPlan> find_with_sums(Program& p, Product product) {
  const Product alone = product;
  const int outputs = static_cast<int>(alone.rows), stride = static_cast<int>(alone.left_row());
  memory::Array<std::byte, memory::Device> scratch;
  product.epilogue = ProductEpilogue::left_sums;
  return p.libraries().find(
      product, {alone, [&](const ProductMemory& memory) {
                  if (scratch.size() == 0)
                    scratch = {p.libraries().space(), static_cast<std::size_t>(column_sums_scratch<T>(
                                                          alone.inner, outputs, stride))};
                  column_sums<T>(p.stream(), alone.inner, outputs, stride, static_cast<const T*>(memory.left),
                                 static_cast<float*>(memory.vector), false, scratch.data());
                }});
}

template <class T>
class LinearCrossEntropyStage final : public StageOf<T> {
 public:
  LinearCrossEntropyStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        labels_(p.from(stage.output, 1)),
        weight_(p.parameter(stage.leader, 0)),
        bias_(graph::Linear::bias(p.plan().graph, stage.leader)),
        features_(p.node(p.from(stage.leader, 0)).shape.last()),
        task_(cross_entropy_task<T>(p, stage.output)),
        block_(labels_of(std::int64_t{p.libraries().options().logits_mib} << 20)),
        defers_(!keeps() && this->value_.wants_gradient && is_only_a_loss(p.plan(), stage.output)),
        memory_(p, task_, block_, index, this->kept_until(p), this->kept_until(p)) {
    this->value_.takes_second = false;
    task_.stride = columns_of(task_.classes);
    const int end = this->kept_until(p);
    p.keep(this->input(p, 0), end);
    for_each_block([&](Range labels) {
      Product product = describe_product<T>(p, labels.size(), task_.stride, features_);
      product.right_transposed = true;
      blocks_.push_back({labels, BiasedProduct<T>(p, product, bias_), nullptr, nullptr, nullptr});
    });
    logits_ = p.request(static_cast<std::size_t>(block_ * task_.stride) * sizeof(T), index, end);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    p.assign_other_layers(this->leader_);
    d_weight_ = p.contribute_parameter(weight_);
    if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_);
    dx_ = p.contribute(p.from(this->leader_, 0), true, time);
    std::int64_t scratch = 0;
    for (Block& block : blocks_) {
      const bool first = block.labels.begin == 0;
      if (d_weight_) {
        Product product =
            describe_product<T>(p, task_.classes - last_classes(), features_, block.labels.size());
        product.out = DType::f32;
        product.left_transposed = true;
        product.left_stride = task_.stride;
        product.accumulate = !first || d_weight_.accumulate;
        if (d_bias_ && first && !d_bias_.accumulate && last_classes() == 0)
          block.d_weight = find_with_sums<T>(p, product);
        block.sums_bias = block.d_weight != nullptr;
        if (!block.d_weight) block.d_weight = p.libraries().plan(product);
        product.rows = last_classes();
        if (product.rows > 0) block.d_last = p.libraries().plan(product);
      }
      if (dx_) {
        Product product = describe_product<T>(p, block.labels.size(), features_, task_.stride);
        product.accumulate = dx_.accumulates();
        block.dx = p.libraries().plan(product);
      }
      // A block of fewer labels may need more memory, as they are shared among more thread blocks.
      if (d_bias_ && !block.sums_bias)
        scratch = std::max(scratch, column_sums_scratch<T>(block.labels.size(), task_.classes, task_.stride));
    }
    if (scratch > 0) sums_ = p.request(static_cast<std::size_t>(scratch), time, time);
  }
  void bind(Program& p) override {
    T* const logits = p.address<T>(logits_);
    task_.logits = logits;
    task_.d_logits = logits;
    memory_.bind(p, labels_, this->value_, task_);
  }

  /// Backward computes the logits in any case, so forward does not, unless the model reads the loss.
  bool defers() const override { return defers_; }

  void forward(Program& p) override {
    if (!(defers_ && p.trains())) complete(p);
  }
  void complete(Program& p) override {
    int tallies = 0;
    for (const Block& block : blocks_) tallies = take(p, block, tallies);
    cross_entropy_sums(p.stream(), task_, tallies);
  }
  void backward(Program& p) override {
    int tallies = 0;
    for (const Block& block : blocks_) {
      task_.block = block.labels;
      if (!keeps()) tallies = take(p, block, tallies);
      cross_entropy_backward(p.stream(), task_);
      const bool first = block.labels.begin == 0;
      const std::int64_t at = block.labels.begin * features_;
      if (block.d_weight)
        block.d_weight->run(task_.logits, this->x(p, 0) + at, d_bias_.pointer, d_weight_.pointer);
      if (block.d_last) {
        const int from = task_.classes - last_classes();
        block.d_last->run(task_.logits + from, this->x(p, 0) + at, nullptr,
                          d_weight_.pointer + from * features_);
      }
      if (d_bias_ && !block.sums_bias)
        column_sums<T>(p.stream(), block.labels.size(), task_.classes, task_.stride, task_.logits,
                       d_bias_.pointer, !first || d_bias_.accumulate, p.address<void>(sums_));
      if (block.dx)
        block.dx->run(task_.logits, p.parameters().template operand<T>(weight_), nullptr,
                      dx_.template pointer<T>(p) + at);
    }
    if (!keeps()) cross_entropy_sums(p.stream(), task_, tallies);
  }

 private:
  /// The products for one block of labels.
  struct Block {
    Range labels;
    BiasedProduct<T> logits;
    std::unique_ptr<ProductPlan> d_weight, dx;
    std::unique_ptr<ProductPlan> d_last;  ///< of the last classes; null if there are none
    bool sums_bias = false;               ///< whether the gradient of the bias comes with that of the weight
  };

  static constexpr int columns_of(int classes) { return static_cast<int>(whole_lines(classes, dtype_of<T>)); }

  /// The classes behind the last multiple of 16 bytes, if there are so many classes that a second product for
  /// them pays.
  int last_classes() const { return task_.classes > 4096 ? task_.classes % device::lanes<T> : 0; }

  /// How many labels a block has: at most as many as have their logits in `bytes` bytes, or 64 if fewer have,
  /// which is enough that reading the weight costs little compared with multiplying by it. All blocks are
  /// about as large.
  std::int64_t labels_of(std::int64_t bytes) const {
    constexpr std::int64_t grain = 64;
    const std::int64_t count = task_.count();
    const std::int64_t fit = bytes / (columns_of(task_.classes) * std::int64_t{sizeof(T)}) / grain * grain;
    const std::int64_t most = std::max(fit, grain), blocks = (count + most - 1) / most;
    return std::min(count, (count + blocks * grain - 1) / (blocks * grain) * grain);
  }

  /// Whether one block holds the logits of all labels.
  bool keeps() const { return block_ == task_.count(); }
  template <class Visit>
  void for_each_block(Visit visit) const {
    for (std::int64_t begin = 0; begin < task_.count(); begin += block_)
      visit(Range{begin, std::min(begin + block_, task_.count())});
  }
  /// Computes the logits and losses of a block, and its tallies after the first `tallies`; returns the new
  /// number of tallies.
  int take(Program& p, const Block& block, int tallies) {
    block.logits.run(p, this->x(p, 0) + block.labels.begin * features_,
                     p.parameters().template operand<T>(weight_), p.address<T>(logits_));
    task_.block = block.labels;
    return cross_entropy_losses(p.stream(), task_, tallies);
  }

  int labels_, weight_, bias_;
  std::int64_t features_;
  CrossEntropyTask<T> task_;
  std::int64_t block_;
  bool defers_;
  std::vector<Block> blocks_;
  CrossEntropyMemory memory_;
  Location logits_, sums_;
  ParameterGradient d_weight_, d_bias_;
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(LinearCrossEntropyStage);

}  // namespace convoy::exec::cuda
