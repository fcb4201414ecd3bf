// Convolution by oneDNN over the live taps of a filter, forward and both gradients, in the layouts that its
// fast kernels want. oneDNN's reference implementations are refused.
//
// In bf16, images that are not kept in bf16 (Program::choose_narrow) are copied: the source once for forward
// and the gradient of the weights, the gradient of the output once for both gradients. A batch norm before or
// after the convolution writes the copy instead. Weights are copied in forward and again in backward: they
// are small compared with activations, and keeping the copy would take memory for the whole step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include <convoy/exec/host/onednn_product.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// A convolution without the operations fused around it.
class ConvolutionKernel {
 public:
  virtual ~ConvolutionKernel() = default;
  /// Chooses the implementations of backward. Returns the layout in which they read the gradient of the
  /// result without a copy; empty if there is no single such layout.
  virtual Layout choose_backward(Program&) { return {}; }
  /// `dy` is the gradient of the result, in the result's layout or in that which choose_backward returned.
  virtual void plan_backward(Program&, const Bound& dy) = 0;
  virtual void bind(Program&) = 0;
  virtual void forward(Program&) = 0;
  virtual void backward(Program&) = 0;
  virtual std::string implementation() const = 0;
};

class OneDnnConvolution final : public ConvolutionKernel {
 public:
  [[gnu::cold]] OneDnnConvolution(Program& p, int n, int stage, const Bound& result)
      : node_(n),
        input_(p.from(n, 0)),
        stage_(stage),
        weight_(p.parameter(n, 0)),
        bias_(p.node(n).uses > 1 ? p.parameter(n, 1) : -1),
        result_(result) {
    describe_window(p);
    if (bias_ >= 0) bias_layout_ = {{p.node(n).shape[0]}, dnnl_x};
    multiply_.shape.bias = bias_layout_.get();
    choose_attempts(p);
    choose_forward(p);
    const auto layout = [&](OneDnnProduct::Tensor t) { return multiply_.layout(Direction::forward, t); };
    source_ = p.factor(input_, layout(OneDnnProduct::src), stage, p.backward_time(stage));
    weights_ = p.convert(slot_, layout(OneDnnProduct::weights), stage, stage);
    made_ = p.deliver(layout(OneDnnProduct::dst), result_, stage);
    p.keep(p.value(input_), stage);
  }

  [[gnu::cold]] Layout choose_backward(Program& p) override {
    Layout wanted;
    if (p.parameters().trained(weight_) && has_matrix_gradient(p)) {
      wanted = describe_blocked(out_, p.backend().factor);
    } else if (p.parameters().trained(weight_)) {
      if (copies_weights(p) || !choose(p, Direction::weights, slot_.desc)) require(p, Direction::weights);
      wanted = multiply_.layout(Direction::weights, OneDnnProduct::dst);
    }
    if (!p.value(input_).wants_gradient) return wanted;
    require(p, Direction::data);
    const Layout data = multiply_.layout(Direction::data, OneDnnProduct::dst);
    return !wanted || wanted == data ? data : Layout();
  }

  [[gnu::cold]] void plan_backward(Program& p, const Bound& dy) override {
    const int time = p.backward_time(stage_);
    if (p.parameters().trained(weight_)) {
      const bool matrices = has_matrix_gradient(p);
      const auto layout = [&](OneDnnProduct::Tensor t, const Map& map) {
        return matrices ? describe_blocked(map, p.backend().factor) : multiply_.layout(Direction::weights, t);
      };
      p.assign(weight_);
      if (bias_ >= 0) p.assign(bias_);
      const Layout src = layout(OneDnnProduct::src, in_);
      if (source_.to().desc == src && !(source_.to().place == p.value(input_).data.place)) {
        weights_source_ = {source_.to(), source_.to()};
      } else {
        p.keep(p.value(input_), time);
        weights_source_ = p.convert(p.value(input_).data, src, time, time);
      }
      weights_dy_ = p.convert(dy, layout(OneDnnProduct::dst, out_), time, time);
      const Bound gradient{slot_.desc, Location::fixed(p.parameters().gradient(weight_))};
      if (matrices) {
        const Map sample =
            blocked_map(out_.rows, {in_.channels, out_.height, out_.width}, p.backend().images);
        if (multiply_.shape.strides[0] > 1)
          sample_ = p.request(describe_blocked(sample, p.backend().factor), time, time);
        matrix_gradient_ = std::make_unique<MatrixProduct>(p, true, false, out_.channels, in_.channels,
                                                           out_.count(), out_.channels, false);
        gradient_ = {gradient, gradient};
      } else {
        gradient_ = p.deliver(multiply_.layout(Direction::weights, OneDnnProduct::weights), gradient, time);
      }
    }
    if (!p.value(input_).wants_gradient) return;
    auto layout = [&](OneDnnProduct::Tensor t) { return multiply_.layout(Direction::data, t); };
    contribution_ = p.contribute(input_, false, time);
    data_weights_ = p.convert(slot_, layout(OneDnnProduct::weights), time, time);
    const Layout dst = layout(OneDnnProduct::dst);
    data_dy_ = weights_dy_.to().desc == dst ? Conversion(weights_dy_.to(), weights_dy_.to())
                                            : p.convert(dy, dst, time, time);
    dx_ = p.deliver(layout(OneDnnProduct::src), contribution_.target(), time);
  }

  [[gnu::cold]] void bind(Program& p) override {
    for (Conversion* c : {&source_, &weights_, &made_, &weights_source_, &weights_dy_, &gradient_,
                          &data_weights_, &data_dy_, &dx_})
      c->bind(p);
    contribution_.bind(p);
    Bound bias, bias_gradient;
    if (bias_ >= 0) {
      bias = {bias_layout_, Location::fixed(p.parameters().value(bias_))};
      bias_gradient = {bias_layout_, Location::fixed(p.parameters().gradient(bias_))};
    }
    multiply_.bind(p, Direction::forward, source_.to(), weights_.to(), bias, made_.from());
    if (multiply_.has(Direction::weights))
      multiply_.bind(p, Direction::weights, weights_source_.to(), gradient_.from(), bias_gradient,
                     weights_dy_.to());
    if (matrix_gradient_)
      matrix_gradient_->bind(p, weights_dy_.to().place, sample_ ? sample_ : weights_source_.to().place,
                             gradient_.from().place);
    if (multiply_.has(Direction::data))
      multiply_.bind(p, Direction::data, dx_.from(), data_weights_.to(), {}, data_dy_.to());
  }

  void forward(Program&) override {
    source_.run();
    weights_.run();
    multiply_.run(Direction::forward);
    made_.run();
  }

  void backward(Program& p) override {
    if (matrix_gradient_ || multiply_.has(Direction::weights)) {
      weights_source_.run();
      if (sample_) sample(p);
      weights_dy_.run();
      matrix_gradient_ ? (*matrix_gradient_)() : multiply_.run(Direction::weights);
      gradient_.run();
    }
    if (!multiply_.has(Direction::data)) return;
    p.gradients_final();
    data_weights_.run();
    data_dy_.run();
    multiply_.run(Direction::data);
    dx_.run();
    contribution_.finish(p.threads());
  }

  [[gnu::cold]] std::string implementation() const override {
    std::string text(multiply_.implementation(Direction::forward));
    for (const Direction direction : {Direction::data, Direction::weights})
      if (multiply_.has(direction) && multiply_.implementation(direction) != text)
        text.append(" | ").append(multiply_.implementation(direction));
    if (matrix_gradient_) text.append(" | matmul ").append(matrix_gradient_->implementation());
    return text;
  }

 private:
  struct Attempt {
    dnnl_format_tag_t src, dst;
  };

  /// The live taps as a filter of their own, with the padding that this takes.
  [[gnu::cold]] void describe_window(Program& p) {
    const graph::Node& node = p.node(node_);
    const graph::Taps taps = p.plan().live_taps(weight_);
    const Shape& in = p.node(input_).shape;
    const graph::Conv2d::Attributes w = p.attributes<graph::Conv2d>(node_);
    ProductShape& shape = multiply_.shape;
    shape.is_convolution = true;
    for (int axis = 0; axis < 2; ++axis) {
      const int first = axis == 0 ? taps.top : taps.left, live = axis == 0 ? taps.height() : taps.width();
      const int low = w.padding - first * w.dilation;
      shape.strides[axis] = w.stride;
      shape.dilates[axis] = w.dilation - 1;
      shape.padding_low[axis] = low;
      shape.padding_high[axis] = std::max(
          0, (node.shape[axis + 1] - 1) * w.stride + static_cast<int>(w.reach(live)) - in[axis + 1] - low);
    }
  }
  /// Chooses the layouts worth trying, the best first.
  [[gnu::cold]] void choose_attempts(Program& p) {
    const Shape& in = p.node(input_).shape;
    const graph::Conv2d::Attributes w = p.attributes<graph::Conv2d>(node_);
    const Value& x = p.value(input_);
    in_ = blocked_map(p.rows(), in, p.backend().images);
    out_ = blocked_map(p.rows(), p.node(node_).shape, p.backend().images);
    multiplies_matrices_ = w.height == 1 && w.width == 1 && w.padding == 0 && w.groups == 1 && bias_ < 0 &&
                           !x.is_input && in_.channels_last && out_.channels_last;
    const dnnl_format_tag_t out = tag_of(out_);
    const dnnl_format_tag_t blocked = x.is_input && out_.channels_last ? dnnl_nhwc : tag_of(in_);
    // oneDNN's first-layer kernels read inputs of few channels in plain layout, those for AMX in nhwc.
    const bool prefers_plain = x.is_input && in[0] <= 3 && blocked != dnnl_nhwc;
    attempts_[0] = {prefers_plain ? dnnl_nchw : blocked, out};
    attempts_[1] = {prefers_plain ? blocked : dnnl_nchw, out};
    attempts_[2] = {dnnl_format_tag_any, dnnl_format_tag_any};
    attempts_[3] = {dnnl_nchw, dnnl_nchw};
  }
  /// Chooses the implementation of forward, and the order of the weights in their slot unless another
  /// operation has chosen that order.
  [[gnu::cold]] void choose_forward(Program& p) {
    const Layout fixed = p.parameters().fixed(weight_);
    if (!fixed || copies_weights(p) || !choose(p, Direction::forward, fixed)) require(p, Direction::forward);
    // Weights that are read in place get the order that forward wants. Weights that are copied anyway get the
    // order in which their gradient is computed.
    if (!fixed && !copies_weights(p)) {
      p.parameters().choose(weight_, multiply_.layout(Direction::forward, OneDnnProduct::weights));
    } else if (!fixed && p.parameters().trained(weight_) && !multiplies_matrices_) {
      require(p, Direction::weights);
      p.parameters().choose(weight_, multiply_.layout(Direction::weights, OneDnnProduct::weights));
    }
    const Layout chosen = p.parameters().fixed(weight_);
    slot_ = {chosen ? chosen : p.parameters().plain(weight_), Location::fixed(p.parameters().value(weight_))};
  }

  /// Whether weights are copied before they are multiplied, so that their order in the slot costs nothing.
  static bool copies_weights(Program& p) { return p.backend().factor != dnnl_f32; }
  /// Whether a product of matrices computes the gradient of the weights, which then are in plain order: that
  /// of a 1x1 filter between images with channels last. oneDNN's convolution takes two to five times as long.
  bool has_matrix_gradient(Program& p) const {
    return multiplies_matrices_ && slot_.desc == p.parameters().plain(weight_);
  }
  /// Copies the positions of the input that a strided 1x1 filter reads.
  void sample(Program& p) const {
    const auto bytes = static_cast<std::size_t>(in_.channels) *
                       (p.backend().factor == dnnl_bf16 ? sizeof(bf16) : sizeof(float));
    const auto* const from = reinterpret_cast<const std::byte*>(p.address(weights_source_.to().place));
    auto* const to = reinterpret_cast<std::byte*>(p.address(sample_));
    const std::int64_t step = multiply_.shape.strides[0];
    parallel(p.threads(), [&](int thread, int team) {
      const Range lines = share(static_cast<std::int64_t>(out_.rows) * out_.height, thread, team);
      for (std::int64_t line = lines.begin; line < lines.end; ++line)
        for (std::int64_t x = 0; x < out_.width; ++x) {
          const std::int64_t y = line / out_.height * in_.height + line % out_.height * step;
          std::memcpy(to + static_cast<std::size_t>(line * out_.width + x) * bytes,
                      from + static_cast<std::size_t>(y * in_.width + x * step) * bytes, bytes);
        }
    });
  }
  /// Chooses the first implementation that is not reference code among the layouts worth trying; false if
  /// there is none.
  bool choose(Program& p, Direction direction, Layout weights) {
    const auto image = [&](int n, dnnl_format_tag_t tag, OneDnnProduct::Tensor tensor) {
      const Shape& shape = p.node(n).shape;
      auto type = OneDnnProduct::type(p.backend(), direction, tensor);
      if (direction == Direction::forward && tensor == OneDnnProduct::dst) type = result_.desc.type();
      if (direction == Direction::data && tensor == OneDnnProduct::src) type = p.value(n).type();
      return Layout({p.rows(), shape[0], shape[1], shape[2]}, tag, type);
    };
    multiply_.shape.weights = weights.get();
    for (const Attempt& attempt : attempts_) {
      multiply_.shape.src = image(input_, attempt.src, OneDnnProduct::src).get();
      multiply_.shape.dst = image(node_, attempt.dst, OneDnnProduct::dst).get();
      if (multiply_.describe(p, direction)) return true;
    }
    return false;
  }
  /// The same with the weights in any order that oneDNN chooses; throws ExecError if there is none.
  void require(Program& p, Direction direction) {
    const auto type = OneDnnProduct::type(p.backend(), direction, OneDnnProduct::weights);
    if (choose(p, direction, p.parameters().any(weight_, type))) return;
    fail<ExecError>("exec: oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR, " has no fast ",
                    direction_names[static_cast<int>(direction)], " convolution for ", p.node(node_).name,
                    " of ", p.node(node_).shape, " on this processor");
  }

  int node_, input_, stage_, weight_, bias_;
  Map in_, out_;
  bool multiplies_matrices_ = false;
  Bound result_, slot_;
  OneDnnProduct multiply_;
  std::unique_ptr<MatrixProduct> matrix_gradient_;
  Location sample_;  // what `sample` copies; none if the filter reads every position
  Layout bias_layout_;
  Attempt attempts_[4];
  Conversion source_, weights_, made_, weights_source_, weights_dy_, gradient_, data_weights_, data_dy_, dx_;
  Contribution contribution_;
};

}  // namespace convoy::exec::host
