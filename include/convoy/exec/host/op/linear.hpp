// A linear layer by oneDNN's inner product, with an activation or without.
#pragma once

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/activation.hpp>
#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Linear> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, host::mask_of<graph::Relu, graph::Gelu>};
};

}  // namespace convoy::exec

#if CONVOY_DEFINITIONS

namespace convoy::exec::host {

class LinearStage final : public Stage {
  using ForwardDesc = dnnl::inner_product_forward::primitive_desc;
  using DataDesc = dnnl::inner_product_backward_data::primitive_desc;
  using WeightsDesc = dnnl::inner_product_backward_weights::primitive_desc;

 public:
  LinearStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.leader),
        input_(p.from(stage.leader, 0)),
        index_(index),
        weight_(p.parameter(stage.leader, 0)),
        bias_(p.node(stage.leader).uses > 1 ? p.parameter(stage.leader, 1) : -1),
        vectors_(p.rows() * (p.node(stage.leader).shape.size() / p.node(stage.leader).shape.last())),
        relu_(p.find<graph::Relu>(stage) >= 0),
        gelu_(p.find<graph::Gelu>(stage)),
        value_(p.yield(stage.output, index)) {
    value_.takes_second = relu_ || gelu_ >= 0;
    const auto f32 = dnnl::memory::data_type::f32;
    const Dims::value_type in = p.node(input_).shape.last(), out = p.node(node_).shape.last();
    const Layout x = Desc({vectors_, in}, f32, Tag::ab), y = Desc({vectors_, out}, f32, Tag::ab);
    source_ = {x, p.plain_view(input_).place};
    result_ = {y, value_.data.place};
    // Its slope is a function of what goes into it.
    if (gelu_ >= 0)
      result_.place = p.request(y, index, value_.wants_gradient ? p.backward_time(index) : index);
    // The plan's own order serves all three directions, so weights are never copied.
    slot_ = {p.parameters().plain(weight_), Place::fixed(p.parameters().value(weight_))};
    shape_.src = x.desc();
    shape_.weights = slot_.desc.desc();
    if (bias_ >= 0) shape_.bias = {{out}, f32, Tag::x};
    shape_.dst = y.desc();
    forward_ = describe(p, "forward", [&] { return describe_forward(p.backend().engine, shape_); });
    scratch_ = {forward_->scratchpad_desc(), p.scratchpad(forward_->scratchpad_desc())};
    p.keep(p.value(input_), index);
  }

  void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    auto& engine = p.backend().engine;
    // A frozen weight of the model's own may have a bias that is trained.
    if (p.parameters().trained(weight_) || (bias_ >= 0 && p.parameters().trained(bias_))) {
      backward_weights_ = describe(p, "backward (weights)",
                                   [&] { return describe_backward_weights(engine, shape_, *forward_); });
      scratch_weights_ = {backward_weights_->scratchpad_desc(),
                          p.scratchpad(backward_weights_->scratchpad_desc())};
      p.keep(p.value(input_), time);
      d_weight_ = p.contribute_parameter(weight_, slot_.desc, time);
      weight_gradient_ =
          d_weight_ ? d_weight_.target() : Bound{slot_.desc, p.request(slot_.desc, time, time)};
      if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_, Desc(shape_.bias), time);
    }
    contribution_ = p.contribute(input_, false, time);
    if (!contribution_) return;
    backward_data_ =
        describe(p, "backward (data)", [&] { return describe_backward_data(engine, shape_, *forward_); });
    scratch_data_ = {backward_data_->scratchpad_desc(), p.scratchpad(backward_data_->scratchpad_desc())};
  }

  void bind(Program& p) override {
    contribution_.bind(p);
    d_weight_.bind(p);
    d_bias_.bind(p);
    Bound bias;
    if (bias_ >= 0) bias = {shape_.bias, Place::fixed(p.parameters().value(bias_))};
    const Bound dy{result_.desc, value_.gradient};
    forward_call_ = p.call(dnnl::inner_product_forward(*forward_), {{DNNL_ARG_SRC, source_},
                                                                    {DNNL_ARG_WEIGHTS, slot_},
                                                                    {DNNL_ARG_BIAS, bias},
                                                                    {DNNL_ARG_DST, result_},
                                                                    {DNNL_ARG_SCRATCHPAD, scratch_}});
    if (backward_weights_)
      weights_call_ = p.call(dnnl::inner_product_backward_weights(*backward_weights_),
                             {{DNNL_ARG_SRC, source_},
                              {DNNL_ARG_DIFF_DST, dy},
                              {DNNL_ARG_DIFF_WEIGHTS, weight_gradient_},
                              {DNNL_ARG_DIFF_BIAS, d_bias_.target()},
                              {DNNL_ARG_SCRATCHPAD, scratch_weights_}});
    if (backward_data_)
      data_call_ = p.call(dnnl::inner_product_backward_data(*backward_data_),
                          {{DNNL_ARG_DIFF_DST, dy},
                           {DNNL_ARG_WEIGHTS, slot_},
                           {DNNL_ARG_DIFF_SRC, {shape_.src, contribution_.target().place}},
                           {DNNL_ARG_SCRATCHPAD, scratch_data_}});
    product_ = p.address(result_.place);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }

  void forward(Program& p) override {
    forward_call_();
    if (relu_) for_each_share<ReluLoop>(p.threads(), value_.elements(), static_cast<const float*>(y_), y_);
    if (gelu_ >= 0)
      gelu(p, [&](auto form) {
        for_each_share<ApplyLoop<decltype(form)>>(p.threads(), value_.elements(), product_, y_);
      });
  }
  void backward(Program& p) override {
    if (relu_)
      for_each_share<PassLoop>(p.threads(), value_.elements(), static_cast<const float*>(dy_),
                               static_cast<const float*>(second_), static_cast<const float*>(y_), dy_, false);
    if (gelu_ >= 0)
      gelu(p, [&](auto form) {
        for_each_share<SlopeLoop<decltype(form)>>(p.threads(), value_.elements(),
                                                  static_cast<const float*>(dy_),
                                                  static_cast<const float*>(second_), product_, dy_, false);
      });
    if (backward_weights_) {
      weights_call_();
      d_weight_.finish(p.threads());
      d_bias_.finish(p.threads());
    }
    if (!backward_data_) return;
    p.gradients_final();
    data_call_();
    contribution_.finish(p.threads());
  }
  std::string implementation() const override { return forward_->impl_info_str(); }

 private:
  template <class Run>
  void gelu(const Program& p, Run run) const {
    if (p.attributes<graph::Gelu>(gelu_).form == graph::GeluForm::tanh)
      run(GeluTanh{});
    else
      run(GeluErf{});
  }

  template <class Make>
  std::invoke_result_t<Make> describe(const Program& p, const char* direction, Make make) const {
    auto refuse = [&] {
      fail<ExecError>("exec: oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR, " has no fast ",
                      direction, " inner product for ", p.node(node_).name, " on this processor");
    };
    try {
      auto description = make();
      if (is_reference(description.impl_info_str())) refuse();
      return description;
    } catch (const dnnl::error&) {
      refuse();
      throw;
    }
  }

  int node_, input_, index_, weight_, bias_;
  std::int64_t vectors_;  // rows of the batch, times positions where they are sequences
  bool relu_;
  int gelu_;  // the node, or -1
  Value& value_;
  Bound source_, slot_, result_, weight_gradient_;
  InnerProductShape shape_;
  std::optional<ForwardDesc> forward_;
  std::optional<DataDesc> backward_data_;
  std::optional<WeightsDesc> backward_weights_;
  Bound scratch_, scratch_weights_, scratch_data_;
  Contribution contribution_, d_weight_, d_bias_;
  Call forward_call_, weights_call_, data_call_;
  const float* product_ = nullptr;
  float* y_ = nullptr;
  float* dy_ = nullptr;
  float* second_ = nullptr;
};

}  // namespace convoy::exec::host

namespace convoy::exec {

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Linear>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::LinearStage>(program, stage, index);
}

}  // namespace convoy::exec

#endif
