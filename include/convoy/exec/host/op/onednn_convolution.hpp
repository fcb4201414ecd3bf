// Convolution by oneDNN over the live taps of a filter, forward and both gradients, in the layouts that its
// fast kernels want. A kernel that would be oneDNN's reference code is never used.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

/// The multiplication of a convolution, apart from what is fused around it.
class ConvolutionKernel {
 public:
  virtual ~ConvolutionKernel() = default;
  /// `dy` is the gradient of the result, in the layout of the result; the input's is written for `dx` (if it
  /// is one).
  virtual void plan_backward(Program&, const Bound& dy) = 0;
  virtual void bind(Program&) = 0;
  virtual void forward(Program&) = 0;
  virtual void backward(Program&) = 0;
  virtual std::string implementation() const = 0;
};

class OneDnnConvolution final : public ConvolutionKernel {
  using ForwardDesc = dnnl::convolution_forward::primitive_desc;
  using DataDesc = dnnl::convolution_backward_data::primitive_desc;
  using WeightsDesc = dnnl::convolution_backward_weights::primitive_desc;

 public:
  OneDnnConvolution(Program& p, int n, int stage, const Bound& result)
      : node_(n),
        input_(p.from(n, 0)),
        stage_(stage),
        weight_(p.parameter(n, 0)),
        bias_(p.node(n).uses > 1 ? p.parameter(n, 1) : -1),
        result_(result) {
    const graph::Node& node = p.node(n);
    const graph::Taps taps = p.plan().live_taps(weight_);
    const Shape& in = p.node(input_).shape;
    const auto f32 = dnnl::memory::data_type::f32;
    const graph::Conv2d::Attributes w = p.attributes<graph::Conv2d>(n);
    auto low = [&](int first) { return w.padding - first * w.dilation; };
    auto high = [&](int extent, int first, int live, int out) {
      return std::max(0, (out - 1) * w.stride + w.reach(live) - extent - low(first));
    };
    shape_.strides = {w.stride, w.stride};
    shape_.dilates = {w.dilation - 1, w.dilation - 1};
    shape_.padding_low = {low(taps.top), low(taps.left)};
    shape_.padding_high = {high(in[1], taps.top, taps.height(), node.shape[1]),
                           high(in[2], taps.left, taps.width(), node.shape[2])};
    any_weights_ = {p.parameters().filter_dims(weight_), f32, Tag::any};
    if (bias_ >= 0) shape_.bias = {{node.shape[0]}, f32, Tag::x};

    const Value& x = p.value(input_);
    plain_src_ = describe_plain(p.rows(), p.node(input_));
    blocked_src_ = describe_blocked(blocked_map(p.rows(), in, p.backend().lanes));
    plain_dst_ = describe_plain(p.rows(), node);
    any_src_ = {{p.rows(), in[0], in[1], in[2]}, f32, Tag::any};
    any_dst_ = {{p.rows(), node.shape[0], node.shape[1], node.shape[2]}, f32, Tag::any};
    // oneDNN's first-layer kernels read a few channels as they come.
    prefers_plain_ = x.is_input && in[0] <= 3;
    winograd_ = pays_as_winograd(p, n);

    auto fixed = p.parameters().fixed(weight_);
    if (fixed)
      forward_ = choose<ForwardDesc>(*fixed, [&] { return describe_forward(p.backend().engine, shape_); });
    if (!forward_)
      forward_ =
          choose<ForwardDesc>(any_weights_, [&] { return describe_forward(p.backend().engine, shape_); });
    if (!forward_) refuse(p, "forward");
    if (!fixed) p.parameters().choose(weight_, forward_->weights_desc());
    fixed = p.parameters().fixed(weight_);
    slot_ = {fixed ? *fixed : p.parameters().plain(weight_), Place::fixed(p.parameters().value(weight_))};
    const int backward = p.backward_time(stage);
    source_ = p.convert(x.data, forward_->src_desc(), stage, backward);
    weights_ = p.convert(slot_, forward_->weights_desc(), stage, stage);
    made_ = p.deliver(forward_->dst_desc(), result_, stage);
    scratch_ = {forward_->scratchpad_desc(), p.scratchpad(forward_->scratchpad_desc())};
    p.keep(p.value(input_), stage);
  }

  /// Whether to ask oneDNN for Winograd's algorithm: on smaller maps its tiles of 4x4 results are mostly
  /// waste.
  static bool pays_as_winograd(Program& p, int n) {
    const graph::Node& node = p.node(n);
    const graph::Conv2d::Attributes w = p.attributes<graph::Conv2d>(n);
    constexpr int smallest = 12;
    return p.backend().winograd && w.groups == 1 && w.dilation == 1 && w.height == 3 && w.width == 3 &&
           w.stride == 1 && w.padding == 1 && node.shape[1] >= smallest && node.shape[2] >= smallest &&
           node.shape[0] % 16 == 0 && p.node(p.from(n, 0)).shape[0] % 16 == 0;
  }

  void plan_backward(Program& p, const Bound& dy) override {
    const int time = p.backward_time(stage_);
    auto& engine = p.backend().engine;
    if (p.parameters().trained(weight_)) {
      auto make = [&] { return describe_backward_weights(engine, shape_, *forward_); };
      backward_weights_ = choose<WeightsDesc>(slot_.desc, make);
      if (!backward_weights_) backward_weights_ = choose<WeightsDesc>(any_weights_, make);
      if (!backward_weights_) refuse(p, "backward (weights)");
      p.assign(weight_);
      if (bias_ >= 0) p.assign(bias_);
      p.keep(p.value(input_), time);
      weights_source_ = p.convert(p.value(input_).data, backward_weights_->src_desc(), time, time);
      if (!(source_.to().place == source_.from().place) &&
          source_.to().desc == Layout(backward_weights_->src_desc()))
        weights_source_ = {source_.to(), source_.to()};
      weights_dy_ = p.convert(dy, backward_weights_->diff_dst_desc(), time, time);
      gradient_ = p.deliver(backward_weights_->diff_weights_desc(),
                            {slot_.desc, Place::fixed(p.parameters().gradient(weight_))}, time);
      scratch_weights_ = {backward_weights_->scratchpad_desc(),
                          p.scratchpad(backward_weights_->scratchpad_desc())};
    }
    if (!p.value(input_).wants_gradient) return;
    auto make = [&] { return describe_backward_data(engine, shape_, *forward_); };
    backward_data_ = choose<DataDesc>(any_weights_, make);
    if (!backward_data_) refuse(p, "backward (data)");
    contribution_ = p.contribute(input_, false, time);
    data_weights_ = p.convert(slot_, backward_data_->weights_desc(), time, time);
    data_dy_ = p.convert(dy, backward_data_->diff_dst_desc(), time, time);
    dx_ = p.deliver(backward_data_->diff_src_desc(), contribution_.target(), time);
    scratch_data_ = {backward_data_->scratchpad_desc(), p.scratchpad(backward_data_->scratchpad_desc())};
  }

  void bind(Program& p) override {
    for (Conversion* c : conversions()) c->bind(p);
    contribution_.bind(p);
    Bound bias, bias_gradient;
    if (bias_ >= 0) {
      bias = {shape_.bias, Place::fixed(p.parameters().value(bias_))};
      bias_gradient = {shape_.bias, Place::fixed(p.parameters().gradient(bias_))};
    }
    forward_call_ = p.call(dnnl::convolution_forward(*forward_), {{DNNL_ARG_SRC, source_.to()},
                                                                  {DNNL_ARG_WEIGHTS, weights_.to()},
                                                                  {DNNL_ARG_BIAS, bias},
                                                                  {DNNL_ARG_DST, made_.from()},
                                                                  {DNNL_ARG_SCRATCHPAD, scratch_}});
    if (backward_weights_)
      weights_call_ = p.call(dnnl::convolution_backward_weights(*backward_weights_),
                             {{DNNL_ARG_SRC, weights_source_.to()},
                              {DNNL_ARG_DIFF_DST, weights_dy_.to()},
                              {DNNL_ARG_DIFF_WEIGHTS, gradient_.from()},
                              {DNNL_ARG_DIFF_BIAS, bias_gradient},
                              {DNNL_ARG_SCRATCHPAD, scratch_weights_}});
    if (backward_data_)
      data_call_ =
          p.call(dnnl::convolution_backward_data(*backward_data_), {{DNNL_ARG_DIFF_DST, data_dy_.to()},
                                                                    {DNNL_ARG_WEIGHTS, data_weights_.to()},
                                                                    {DNNL_ARG_DIFF_SRC, dx_.from()},
                                                                    {DNNL_ARG_SCRATCHPAD, scratch_data_}});
  }

  void forward(Program&) override {
    source_.run();
    weights_.run();
    forward_call_();
    made_.run();
  }

  void backward(Program& p) override {
    if (backward_weights_) {
      weights_source_.run();
      weights_dy_.run();
      weights_call_();
      gradient_.run();
    }
    if (!backward_data_) return;
    p.gradients_final();
    data_weights_.run();
    data_dy_.run();
    data_call_();
    dx_.run();
    contribution_.finish(p.threads());
  }

  std::string implementation() const override {
    std::string text = forward_->impl_info_str();
    auto also = [&](const char* name) {
      if (text != name) text += concat(" | ", name);
    };
    if (backward_data_) also(backward_data_->impl_info_str());
    if (backward_weights_) also(backward_weights_->impl_info_str());
    return text;
  }

 private:
  std::vector<Conversion*> conversions() {
    return {&source_,       &weights_, &made_, &weights_source_, &weights_dy_, &gradient_,
            &data_weights_, &data_dy_, &dx_};
  }

  /// The first implementation that is not reference code, over the layouts worth trying.
  template <class Description, class Make>
  std::optional<Description> choose(const Desc& weights, Make make) {
    const Desc& first = prefers_plain_ ? plain_src_ : blocked_src_;
    const Desc& other = prefers_plain_ ? blocked_src_ : plain_src_;
    const std::pair<Desc, Desc> attempts[] = {
        {first, result_.desc}, {other, result_.desc}, {any_src_, any_dst_}, {plain_src_, plain_dst_}};
    shape_.weights = weights;
    for (const auto algorithm :
         {dnnl::algorithm::convolution_winograd, dnnl::algorithm::convolution_direct}) {
      if (algorithm == dnnl::algorithm::convolution_winograd && !winograd_) continue;
      shape_.algorithm = algorithm;
      for (const auto& [src, dst] : attempts) {
        shape_.src = src;
        shape_.dst = dst;
        try {
          auto description = make();
          if (!is_reference(description.impl_info_str())) return description;
        } catch (const dnnl::error&) {
          // Not supported in this layout: the next one.
        }
      }
    }
    return std::nullopt;
  }

  [[noreturn]] void refuse(const Program& p, const char* direction) const {
    fail<ExecError>("exec: oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR, " has no fast ", direction,
                    " convolution for ", p.node(node_).name, " of ", p.node(node_).shape,
                    " on this processor");
  }

  int node_, input_, stage_, weight_, bias_;
  Bound result_, slot_;
  ConvolutionShape shape_;
  Desc any_weights_, any_src_, any_dst_, plain_src_, blocked_src_, plain_dst_;
  bool prefers_plain_ = false, winograd_ = false;
  std::optional<ForwardDesc> forward_;
  std::optional<DataDesc> backward_data_;
  std::optional<WeightsDesc> backward_weights_;
  Conversion source_, weights_, made_, weights_source_, weights_dy_, gradient_, data_weights_, data_dy_, dx_;
  Bound scratch_, scratch_weights_, scratch_data_;
  Contribution contribution_;
  Call forward_call_, weights_call_, data_call_;
};

}  // namespace convoy::exec::host
