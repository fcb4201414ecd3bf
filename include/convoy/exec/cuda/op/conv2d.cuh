// Convolution by cuDNN over the live taps of its weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/exec/cuda/convolution_rival.cuh>
#include <convoy/exec/cuda/kernel/bias.cuh>
#include <convoy/exec/cuda/kernel/concat.cuh>
#include <convoy/exec/cuda/kernel/reduce.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// If the input has more channels in memory than in the plan, the weight is copied with zeros in between, and
/// its gradient is copied out. cuDNN writes gradients of weights in the type of values; 16-bit gradients are
/// then widened. In 16 bits cuDNN may also sum the channels of the output before writing it, so that the
/// batch norm after it need not read the output twice. In f16 it may also read the input of the batch norm
/// before it, whose output is then never written. With the gradient of the input cuDNN may also compute the
/// sums that the batch norm before it needs.
template <class T>
class Conv2dStage final : public StageOf<T> {
 public:
  Conv2dStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        weight_(p.parameter(stage.leader, 0)),
        bias_(p.node(stage.leader).uses > 1 ? p.parameter(stage.leader, 1) : -1) {
    this->value_.takes_second = false;
    shape_ = convolution_of(p.plan(), stage.leader, dtype_of<T>, p.libraries().reduced_products(), p.rows());
    own_channels_ = p.plan().parameter(weight_).shape[1];
    if (padded()) operand_ = memory::Array<T, memory::Device>(p.libraries().space(), weight_elements());
    take_forward(p);
    p.keep(image(p), this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    d_weight_ = p.contribute_parameter(weight_);
    if (bias_ >= 0) d_bias_ = p.contribute_parameter(bias_);
    plan_backward_input(p, time);
    if (d_weight_) {
      backward_weight_ = take(p, towards(Direction::backward_weight, normalizes_), time);
      if (!writes_in_place()) made_ = p.request(weight_bytes(), time, time);
      if (padded()) packed_ = p.request(weight_bytes(), time, time);
    }
    if (d_bias_)
      sums_ = p.request(static_cast<std::size_t>(column_sums_scratch<T>(positions(), channels(), channels())),
                        time, time);
  }
  void bind(Program& p) override {
    const T* x = p.address<T>(image(p).data);
    const T* w = padded() ? operand_.data() : p.parameters().template operand<T>(weight_);
    std::vector<const void*> tensors = {x, w, this->y(p)};
    if (this->value_.sums) {
      const float* sums = p.address<float>(this->value_.sums);
      tensors.insert(tensors.end(), {sums, sums + channels()});
    }
    forward_.bind(p, with_scale_shift(p, std::move(tensors)));
    if (backward_weight_.plan != nullptr) {
      void* const dw = writes_in_place() ? d_weight_.pointer : p.address<void>(made_);
      backward_weight_.bind(p, with_scale_shift(p, {x, dw, this->dy(p)}));
    }
    if (backward_input_.plan != nullptr) bind_backward_input(p, w);
  }
  void forward(Program& p) override {
    if (padded())
      copy_runs<T>(p.stream(), {runs(), own_channels_, own_channels_, shape_.in_channels},
                   p.parameters().template operand<T>(weight_), nullptr, operand_.data(), false);
    forward_.run(p);
    if (bias_ >= 0) add_bias<T>(p.stream(), positions(), channels(), p.parameters().value(bias_), this->y(p));
  }
  void backward(Program& p) override {
    if (d_weight_) {
      backward_weight_.run(p);
      const T* made = p.address<T>(made_);
      if (padded()) {
        T* packed = p.address<T>(packed_);
        copy_runs<T>(p.stream(), {runs(), own_channels_, shape_.in_channels, own_channels_}, made, nullptr,
                     packed, false);
        made = packed;
      }
      if (!writes_in_place())
        widen_values<T>(p.stream(), runs() * own_channels_, made, d_weight_.pointer, nullptr,
                        d_weight_.accumulate);
    }
    if (d_bias_)
      column_sums<T>(p.stream(), positions(), channels(), channels(), this->dy(p), d_bias_.pointer,
                     d_bias_.accumulate, p.address<void>(sums_));
    if (dx_) {
      backward_input_.run(p);
      dx_.template finish<T>(p);
    }
  }

 private:
  // One pass: its plan, its workspace, and its arguments once these have addresses.
  struct PlannedPass {
    const CudnnPlan* plan = nullptr;
    Location workspace;
    Descriptor arguments;
    void bind(Program& p, const std::vector<const void*>& tensors) {
      arguments = Cudnn::arguments(tensors, p.workspace(workspace));
    }
    void run(Program& p) const { p.libraries().cudnn().run(*plan, arguments); }
  };

  Convolution towards(Direction direction, bool normalizes = false) const {
    Convolution c = shape_;
    c.direction = direction;
    c.normalizes = normalizes;
    return c;
  }
  static PlannedPass take(Program& p, const CudnnPlan& plan, int time) {
    return {&plan, p.request_workspace(plan.workspace, time, time), {}};
  }
  static PlannedPass take(Program& p, const Convolution& c, int time) {
    return take(p, p.libraries().plan(c), time);
  }
  // Null if cuDNN has no plan, or only plans slower than the convolution and the batch norm apart.
  static const CudnnPlan* find_fused(Program& p, const Convolution& c) {
    ConvolutionRival<T> apart(p.libraries(), c);
    return p.libraries().find_plan(c, apart.rival());
  }
  // With the sums of channels if a batch norm reads them and cuDNN has a fast plan.
  void take_forward(Program& p) {
    Convolution with_sums = shape_;
    with_sums.epilogue = ConvolutionEpilogue::statistics;
    // cuDNN would sum before the bias is added. Both sums must be aligned to 16 bytes.
    const bool asks =
        fuses(p) && bias_ < 0 && channels() % 4 == 0 && feeds_batch_norm(p.plan(), this->leader_);
    const CudnnPlan* plan = nullptr;
    if (asks) {
      plan = find_normalizing(p, with_sums);
      if (plan == nullptr) plan = find_fused(p, with_sums);
    }
    forward_ = plan != nullptr ? take(p, *plan, this->index_) : take(p, shape_, this->index_);
    if (plan != nullptr)
      this->value_.sums =
          p.request(static_cast<std::size_t>(2 * channels()) * sizeof(float), this->index_, this->index_);
  }
  // A plan that also computes the image from the input of the batch norm that made it; null if something
  // else reads the image too, if cuDNN has no such plans or if they are slower than a pass that writes the
  // image. cuDNN has them for f16 only. The gradient of the weight is computed in the same way, because the
  // image does not exist then.
  const CudnnPlan* find_normalizing(Program& p, Convolution c) {
    if constexpr (std::is_same_v<T, f16>) {
      Value& x = this->input(p, 0);
      // Scales and shifts must be aligned to 16 bytes.
      if (!x.normed || x.normed.addend != nullptr || x.channels % 8 != 0 || !p.has_one_reader(x))
        return nullptr;
      const bool trains = this->value_.wants_gradient && p.plan().trained(weight_);
      const CudnnPlan* const of_weight =
          trains ? p.libraries().find_plan(towards(Direction::backward_weight, true), {}) : nullptr;
      if (trains && of_weight == nullptr) return nullptr;
      c.normalizes = true;
      NormalizingRival<T> apart(p.libraries(), c, of_weight);
      const CudnnPlan* const plan = p.libraries().find_plan(c, apart.rival());
      if (plan == nullptr) return nullptr;
      normalizes_ = true;
      p.withdraw(x);
      x.scale_shift =
          p.request(2 * static_cast<std::size_t>(x.channels) * sizeof(T), x.owner, this->kept_until(p));
      return plan;
    } else {
      return nullptr;
    }
  }
  // The image that is read: the input of the batch norm that made it, if the convolution normalizes that.
  const Value& image(Program& p) const {
    const Value& x = this->input(p, 0);
    return normalizes_ ? *x.normed.x : x;
  }
  std::vector<const void*> with_scale_shift(Program& p, std::vector<const void*> tensors) const {
    if (normalizes_) {
      const Value& x = this->input(p, 0);
      const T* scale = p.address<T>(x.scale_shift);
      tensors.insert(tensors.end(), {scale, scale + x.channels});
    }
    return tensors;
  }
  // With the batch norm's part if a batch norm and a ReLU made the input, no other stage contributes to its
  // gradient afterwards, and cuDNN has a fast plan.
  void plan_backward_input(Program& p, int time) {
    const int from = p.from(this->leader_, 0);
    Value& x = p.value(from);
    Convolution c = towards(Direction::backward_input);
    if (fuses(p) && x.wants_gradient && x.normed && x.channels % 4 == 0 && !x.second &&
        p.contributes_last(x)) {
      Convolution with_batch_norm = c;
      with_batch_norm.epilogue = ConvolutionEpilogue::batch_norm_backward;
      with_batch_norm.has_second = x.contributions > 0;
      with_batch_norm.has_addend = x.normed.addend != nullptr;
      if (const CudnnPlan* plan = find_fused(p, with_batch_norm)) {
        sums_parameters_ = true;
        backward_input_ = take(p, *plan, time);
        dx_ = p.contribute_total(x, time, earlier_);
        x.parameter_sums = p.request(5 * static_cast<std::size_t>(x.channels) * sizeof(float), time,
                                     p.backward_time(x.owner));
        if (x.normed.addend != nullptr) p.keep(*x.normed.addend, time);
        return;
      }
    }
    dx_ = p.contribute(from, false, time);
    if (dx_) backward_input_ = take(p, c, time);
  }
  void bind_backward_input(Program& p, const T* w) {
    std::vector<const void*> tensors = {dx_.template pointer<T>(p), w, this->dy(p)};
    if (sums_parameters_) {
      const Value& x = this->input(p, 0);
      const float *mean = p.address<float>(x.normed.moments), *sums = p.address<float>(x.parameter_sums);
      tensors.insert(tensors.end(),
                     {p.address<T>(x.normed.x->data), mean, mean + x.channels,
                      p.parameters().value(x.normed.weight), p.parameters().value(x.normed.bias)});
      if (earlier_) tensors.push_back(p.address<T>(earlier_));
      if (x.normed.addend != nullptr) tensors.push_back(p.address<T>(x.normed.addend->data));
      for (int k = 0; k < 5; ++k) tensors.push_back(sums + k * x.channels);
    }
    backward_input_.bind(p, tensors);
  }
  static bool fuses(const Program& p) { return sizeof(T) == 2 && p.libraries().options().fuse_batch_norm; }
  bool padded() const { return shape_.in_channels / shape_.groups != own_channels_; }
  bool writes_in_place() const { return std::is_same_v<T, float> && !padded() && !d_weight_.accumulate; }
  std::size_t weight_elements() const { return static_cast<std::size_t>(shape_.weight_elements()); }
  std::size_t weight_bytes() const { return weight_elements() * sizeof(T); }
  // Number of runs of channels within the weight.
  std::int64_t runs() const { return std::int64_t{shape_.out_channels} * shape_.height * shape_.width; }
  std::int64_t positions() const { return std::int64_t{this->value_.rows} * this->value_.positions(); }
  int channels() const { return this->value_.channels; }

  int weight_, bias_, own_channels_ = 0;
  Convolution shape_;
  PlannedPass forward_, backward_weight_, backward_input_;
  memory::Array<T, memory::Device> operand_;  // the weight, if padded; its padding stays zero
  Location made_, packed_, sums_;
  ParameterGradient d_weight_, d_bias_;
  Contribution dx_;
  bool normalizes_ = false;       // for the batch norm that made the input
  bool sums_parameters_ = false;  // likewise
  Location earlier_;              // what others contributed to the gradient of the input
};

CONVOY_COMPILED_STAGE(Conv2dStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Conv2d> : cuda::KernelOf<P, cuda::Conv2dStage> {};

}  // namespace convoy::exec
