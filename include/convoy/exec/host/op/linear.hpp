// A linear layer by oneDNN's inner product, with or without an activation. In f32 a matrix product computes
// its forward pass, and on AVX2 the gradient of a large weight. If a cross-entropy follows, its kernel
// computes both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/weight_blocks.hpp>
#include <convoy/exec/host/onednn_product.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/exec/host/weight_gradient.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Linear> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, host::mask_of<graph::Relu, graph::Gelu, graph::CrossEntropy>};
};

#if CONVOY_DEFINITIONS
namespace host {

/// Copies a weight [rows, columns] to the layout of a product; by convoy's own kernel if that writes the
/// layout.
class WeightCopy {
 public:
  WeightCopy() = default;
  [[gnu::cold]] WeightCopy(const Conversion& conversion, std::int64_t rows, std::int64_t columns)
      : conversion_(conversion), rows_(rows), columns_(columns) {
    if (!conversion.is_needed() || !(conversion.from().desc == Layout({rows, columns}, dnnl_ab))) return;
    static constexpr std::pair<dnnl_format_tag_t, WeightBlocks> known[] = {
        {dnnl_AB8b16a2b, {16, 8}},   {dnnl_AB8b32a2b, {32, 8}},   {dnnl_AB8b64a2b, {64, 8}},
        {dnnl_AB16b16a2b, {16, 16}}, {dnnl_AB16b32a2b, {32, 16}}, {dnnl_AB16b48a2b, {48, 16}},
        {dnnl_AB16b64a2b, {64, 16}}};
    for (const auto& [tag, blocks] : known)
      if (blocks.cuts(rows, columns) && conversion.to().desc == Layout({rows, columns}, tag, dnnl_bf16))
        blocks_ = blocks;
  }
  bool is_needed() const { return conversion_.is_needed(); }
  const Bound& to() const { return conversion_.to(); }

  [[gnu::cold]] void bind(Program& p) {
    if (!blocks_) return conversion_.bind(p);
    from_ = p.address(conversion_.from().place);
    to_ = reinterpret_cast<bf16*>(p.address(conversion_.to().place));
  }
  void run(int threads) const {
    if (blocks_)
      copy_into_blocks(blocks_, rows_, columns_, from_, to_, threads);
    else
      conversion_.run();
  }

 private:
  Conversion conversion_;
  WeightBlocks blocks_;
  std::int64_t rows_ = 0, columns_ = 0;
  const float* from_ = nullptr;
  bf16* to_ = nullptr;
};

class LinearStage final : public Stage {
 public:
  [[gnu::cold]] LinearStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.leader),
        input_(p.from(stage.leader, 0)),
        index_(index),
        weight_(p.parameter(stage.leader, 0)),
        bias_(graph::Linear::bias(p.plan().graph, stage.leader)),
        vectors_(p.rows() * (p.node(stage.leader).shape.size() / p.node(stage.leader).shape.last())),
        value_(p.yield(stage.output, index)) {
    const std::int64_t in = p.node(input_).shape.last(), out = p.node(node_).shape.last();
    const Bound given{{{vectors_, in}, dnnl_ab}, p.plain_view(input_).place};
    result_ = {{{vectors_, out}, dnnl_ab}, value_.data.place};
    // GELU's derivative is a function of its input, so the input gets memory of its own.
    if (p.find<graph::Gelu>(stage) >= 0)
      result_.place = p.request(result_.desc, index, value_.wants_gradient ? p.backward_time(index) : index);
    slot_ = {{{out, in}, dnnl_oi}, Location::fixed(p.parameters().value(weight_))};
    if (bias_ >= 0) bias_slot_ = {{{out}, dnnl_x}, Location::fixed(p.parameters().value(bias_))};
    multiply_.shape.bias = bias_slot_.desc.get();
    describe(p, Direction::forward);
    if (p.backend().factor == dnnl_f32 && vectors_ >= linear_tuning.many_vectors)
      forward_ = std::make_unique<MatrixProduct>(p, false, true, vectors_, out, in, in, false, bias_ >= 0);
    source_ = p.convert(given, multiply_.layout(Direction::forward, OneDnnProduct::src), index,
                        value_.wants_gradient ? p.backward_time(index) : index);
    weights_ = {p.convert(slot_, multiply_.layout(Direction::forward, OneDnnProduct::weights), index, index),
                out, in};
    part_ = p.fuse<graph::Gelu>(stage, index, result_, value_);
    if (!part_) part_ = p.fuse<graph::Relu>(stage, index, result_, value_);
    value_.takes_second = part_ != nullptr;
    p.keep(p.value(input_), index);
  }

  [[gnu::cold]] void plan_backward(Program& p) override {
    const Bound dy{result_.desc, value_.gradient};
    if (part_) part_->plan_backward(p, value_, dy, false);
    plan_parameter_gradients(p, dy);
    contribution_ = p.contribute(input_, false, p.backward_time(index_));
    if (contribution_) plan_input_gradient(p, dy);
  }

  [[gnu::cold]] void bind(Program& p) override {
    if (part_) part_->bind(p);
    for (Conversion* c : {&source_, &dy_}) c->bind(p);
    for (WeightCopy* c : {&weights_, &data_weights_}) c->bind(p);
    contribution_.bind(p);
    d_weight_.bind(p);
    d_bias_.bind(p);
    if (forward_)
      forward_->bind(p, source_.to().place, weights_.to().place, result_.place, bias_slot_.place);
    else
      multiply_.bind(p, Direction::forward, source_.to(), weights_.to(), bias_slot_, result_);
    if (multiply_.has(Direction::weights))
      multiply_.bind(p, Direction::weights, source_.to(), weight_gradient_, d_bias_.target(), dy_.to());
    if (multiply_.has(Direction::data))
      multiply_.bind(p, Direction::data, {source_.from().desc, contribution_.target().place},
                     data_weights_.to(), {}, dy_.to());
  }

  void forward(Program& p) override {
    source_.run();
    weights_.run(p.threads());
    if (forward_)
      (*forward_)();
    else
      multiply_.run(Direction::forward);
    if (part_) part_->forward(p);
  }
  void backward(Program& p) override {
    if (part_) part_->backward(p);
    dy_.run();
    if (from_copies_)
      (*from_copies_)(p, p.address(source_.to().place), p.address(value_.gradient), d_weight_.pointer(),
                      d_bias_.pointer());
    else if (multiply_.has(Direction::weights))
      multiply_.run(Direction::weights);
    d_weight_.finish(p.threads());
    d_bias_.finish(p.threads());
    if (!multiply_.has(Direction::data)) return;
    p.gradients_final();
    data_weights_.run(p.threads());
    multiply_.run(Direction::data);
    contribution_.finish(p.threads());
  }
  [[gnu::cold]] std::string implementation() const override {
    return std::string(forward_ ? forward_->implementation() : multiply_.implementation(Direction::forward));
  }

 private:
  [[gnu::cold]] void plan_parameter_gradients(Program& p, const Bound& dy) {
    const bool trains_bias = bias_ >= 0 && p.parameters().trained(bias_);
    if (!p.parameters().trained(weight_) && !trains_bias) return;
    const int time = p.backward_time(index_);
    const std::int64_t in = p.node(input_).shape.last(), out = p.node(node_).shape.last();
    if (!source_.is_needed()) p.keep(p.value(input_), time);
    if (p.parameters().trained(weight_) && WeightGradient::pays(p.backend(), vectors_, in, out)) {
      from_copies_ = std::make_unique<WeightGradient>(p, vectors_, in, out, time);
    } else {
      multiply_.shape.bias = trains_bias ? bias_slot_.desc.get() : nullptr;
      describe(p, Direction::weights);
      dy_ = p.convert(dy, multiply_.layout(Direction::weights, OneDnnProduct::dst), time, time);
    }
    p.assign_other_layers(node_);
    d_weight_ = p.contribute_parameter(weight_, slot_.desc, time);
    // oneDNN computes the gradient of a frozen weight, too, if the bias is trained.
    weight_gradient_ = d_weight_ ? d_weight_.target() : Bound{slot_.desc, p.request(slot_.desc, time, time)};
    if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_, bias_slot_.desc, time);
  }

  [[gnu::cold]] void plan_input_gradient(Program& p, const Bound& dy) {
    const int time = p.backward_time(index_);
    const std::int64_t in = p.node(input_).shape.last(), out = p.node(node_).shape.last();
    describe(p, Direction::data);
    const Layout wanted = multiply_.layout(Direction::data, OneDnnProduct::weights);
    if (weights_.is_needed() && weights_.to().desc == wanted) {
      p.extend(weights_.to().place, time);
      data_weights_ = {{weights_.to(), weights_.to()}, out, in};
    } else {
      data_weights_ = {p.convert(slot_, wanted, time, time), out, in};
    }
    // Both gradients read the output's gradient in the same layout.
    if (!multiply_.has(Direction::weights))
      dy_ = p.convert(dy, multiply_.layout(Direction::data, OneDnnProduct::dst), time, time);
  }

  /// Asks oneDNN for one direction; throws ExecError if it has no fast implementation. In f32 all three
  /// directions use the plan's order, so weights are never copied. In bf16 the rounded copy has the order
  /// that oneDNN prefers. Forward and backward mostly prefer the same order and then share the copy.
  void describe(Program& p, Direction direction) {
    const auto type = [&](OneDnnProduct::Tensor tensor) {
      return OneDnnProduct::type(p.backend(), direction, tensor);
    };
    const std::int64_t in = p.node(input_).shape.last(), out = p.node(node_).shape.last();
    const auto weights = type(OneDnnProduct::weights);
    multiply_.shape.src = Layout({vectors_, in}, dnnl_ab, type(OneDnnProduct::src)).get();
    multiply_.shape.weights =
        (weights == dnnl_f32 ? slot_.desc : Layout({out, in}, dnnl_format_tag_any, weights)).get();
    multiply_.shape.dst = Layout({vectors_, out}, dnnl_ab, type(OneDnnProduct::dst)).get();
    if (!multiply_.describe(p, direction))
      fail<ExecError>("exec: oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR, " has no fast ",
                      direction_names[static_cast<int>(direction)], " inner product for ", p.node(node_).name,
                      " on this processor");
  }

  int node_, input_, index_, weight_, bias_;
  std::int64_t vectors_;  // rows of the batch, times positions if they are sequences
  Value& value_;
  Bound slot_, bias_slot_, result_, weight_gradient_;
  Conversion source_, dy_;
  WeightCopy weights_, data_weights_;
  OneDnnProduct multiply_;
  std::unique_ptr<MatrixProduct> forward_;       // null if the inner product computes the forward pass
  std::unique_ptr<WeightGradient> from_copies_;  // null if the inner product computes the weight's gradient
  std::unique_ptr<Part> part_;
  Contribution contribution_, d_weight_, d_bias_;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Linear>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  if (program.find<graph::CrossEntropy>(stage) >= 0)
    return program.hand_over<graph::CrossEntropy>(stage, index);
  return std::make_unique<host::LinearStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
