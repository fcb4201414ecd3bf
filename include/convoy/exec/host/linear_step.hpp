// A linear layer by oneDNN's inner product, with a ReLU or without.
#pragma once

#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

class LinearStep final : public Step {
  using ForwardDesc = dnnl::inner_product_forward::primitive_desc;
  using DataDesc = dnnl::inner_product_backward_data::primitive_desc;
  using WeightsDesc = dnnl::inner_product_backward_weights::primitive_desc;

 public:
  LinearStep(Program& p, const graph::Step& step, int index)
      : node_(step.main),
        input_(p.node(step.main).input[0]),
        index_(index),
        weight_(p.node(step.main).parameter),
        relu_(step.relu >= 0),
        value_(p.yield(step.output, index)) {
    value_.takes_second = relu_;
    const auto f32 = dnnl::memory::data_type::f32;
    const Shape& in = p.node(input_).shape;
    source_ = p.plain_view(input_);
    // The plan's own order serves all three directions, so weights are never copied.
    slot_ = {p.parameters().plain(weight_), Place::fixed(p.parameters().value(weight_))};
    shape_.src = {{p.rows(), in.size()}, f32, Tag::ab};
    shape_.weights = slot_.desc;
    if (p.node(node_).parameters > 1) shape_.bias = {{p.node(node_).shape[0]}, f32, Tag::x};
    shape_.dst = value_.data.desc;
    forward_ = describe(p, "forward", [&] { return describe_forward(p.backend().engine, shape_); });
    scratch_ = {forward_->scratchpad_desc(), p.scratchpad(forward_->scratchpad_desc())};
    p.keep(p.value(input_), index);
  }

  void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    auto& engine = p.backend().engine;
    if (p.parameters().trained(weight_)) {
      backward_weights_ = describe(p, "backward (weights)",
                                   [&] { return describe_backward_weights(engine, shape_, *forward_); });
      scratch_weights_ = {backward_weights_->scratchpad_desc(),
                          p.scratchpad(backward_weights_->scratchpad_desc())};
      p.keep(p.value(input_), time);
    }
    contribution_ = p.contribute(input_, false, time);
    if (!contribution_) return;
    backward_data_ =
        describe(p, "backward (data)", [&] { return describe_backward_data(engine, shape_, *forward_); });
    scratch_data_ = {backward_data_->scratchpad_desc(), p.scratchpad(backward_data_->scratchpad_desc())};
  }

  void bind(Program& p) override {
    contribution_.bind(p);
    Bound bias, bias_gradient;
    if (!is_empty(shape_.bias)) {
      bias = {shape_.bias, Place::fixed(p.parameters().value(weight_ + 1))};
      bias_gradient = {shape_.bias, Place::fixed(p.parameters().gradient(weight_ + 1))};
    }
    const Bound dy{value_.data.desc, value_.gradient};
    forward_call_ = p.call(dnnl::inner_product_forward(*forward_), {{DNNL_ARG_SRC, source_},
                                                                    {DNNL_ARG_WEIGHTS, slot_},
                                                                    {DNNL_ARG_BIAS, bias},
                                                                    {DNNL_ARG_DST, value_.data},
                                                                    {DNNL_ARG_SCRATCHPAD, scratch_}});
    if (backward_weights_)
      weights_call_ =
          p.call(dnnl::inner_product_backward_weights(*backward_weights_),
                 {{DNNL_ARG_SRC, source_},
                  {DNNL_ARG_DIFF_DST, dy},
                  {DNNL_ARG_DIFF_WEIGHTS, {slot_.desc, Place::fixed(p.parameters().gradient(weight_))}},
                  {DNNL_ARG_DIFF_BIAS, bias_gradient},
                  {DNNL_ARG_SCRATCHPAD, scratch_weights_}});
    if (backward_data_)
      data_call_ = p.call(dnnl::inner_product_backward_data(*backward_data_),
                          {{DNNL_ARG_DIFF_DST, dy},
                           {DNNL_ARG_WEIGHTS, slot_},
                           {DNNL_ARG_DIFF_SRC, {shape_.src, contribution_.target().place}},
                           {DNNL_ARG_SCRATCHPAD, scratch_data_}});
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }

  void forward(Program& p, Mode) override {
    forward_call_();
    if (relu_) for_each_share<ReluLoop>(p.threads(), value_.elements(), static_cast<const float*>(y_), y_);
  }
  void backward(Program& p) override {
    if (relu_)
      for_each_share<PassLoop>(p.threads(), value_.elements(), static_cast<const float*>(dy_),
                               static_cast<const float*>(second_), static_cast<const float*>(y_), dy_, false);
    if (backward_weights_) weights_call_();
    if (!backward_data_) return;
    p.gradients_final();
    data_call_();
    contribution_.finish(p.threads());
  }
  std::string implementation() const override { return forward_->impl_info_str(); }

 private:
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

  int node_, input_, index_, weight_;
  bool relu_;
  Value& value_;
  Bound source_, slot_;
  InnerProductShape shape_;
  std::optional<ForwardDesc> forward_;
  std::optional<DataDesc> backward_data_;
  std::optional<WeightsDesc> backward_weights_;
  Bound scratch_, scratch_weights_, scratch_data_;
  Contribution contribution_;
  Call forward_call_, weights_call_, data_call_;
  float* y_ = nullptr;
  float* dy_ = nullptr;
  float* second_ = nullptr;
};

}  // namespace convoy::exec::host
