// Batch norm, optionally followed by an addition and a ReLU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/exec/cuda/kernel/batch_norm.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class BatchNormStage final : public StageOf<T> {
 public:
  BatchNormStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index), relu_(p.find<graph::Relu>(stage) >= 0) {
    const Value& x = this->input(p, 0);
    positions_ = std::int64_t{x.rows} * x.positions();
    channels_ = x.channels;
    addend_ = addend_of(p.plan(), stage);
    if (addend_ >= 0) p.keep(p.value(addend_), index);
    const int until = this->kept_until(p);
    p.keep(x, until);
    p.extend(x.sums, index);
    moments_ = p.request(static_cast<std::size_t>(2 * channels_) * sizeof(float), index, until);
    if (relu_)
      this->value_.normed = {&x, addend_ >= 0 ? &p.value(addend_) : nullptr, moments_,
                             p.parameter(this->leader_, 0), p.parameter(this->leader_, 1)};
    scratch_ = scratch(p, index);
    sums_ = room_for_sums(p, index);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p), x = p.from(this->leader_, 0);
    dx_ = p.contribute(x, true, time);
    // Both gradients are written at once, so a value that is both inputs must not get them in the same
    // memory.
    if (addend_ >= 0 && !(this->value_.parameter_sums && p.share_gradient(addend_, this->value_.gradient)))
      d_addend_ = p.contribute(addend_, &p.value(addend_) != &p.value(x), time);
    for (int k = 0; k < 2; ++k) d_parameter_[k] = p.contribute_parameter(p.parameter(this->leader_, k));
    backward_scratch_ = scratch(p, time);
    backward_sums_ = room_for_sums(p, time);
  }
  void forward(Program& p) override {
    BatchNormTask<T> t = task(p);
    t.addend = addend_ >= 0 ? p.address<T>(p.value(addend_).data) : nullptr;
    t.scratch = p.address<void>(scratch_);
    t.sums = p.address<float>(this->input(p, 0).sums);
    if (p.trains())
      batch_norm_forward_train(p.stream(), t, sums(p, sums_),
                               [&](double* of_rank) { return sum_across(p, of_rank); });
    else
      batch_norm_forward_evaluate(p.stream(), t);
  }
  void backward(Program& p) override {
    BatchNormTask<T> t = task(p);
    t.addend = addend_ >= 0 ? p.address<T>(p.value(addend_).data) : nullptr;
    t.dy = this->dy(p);
    t.second = this->second(p);
    t.parameter_sums = p.address<float>(this->value_.parameter_sums);
    t.dx = dx_ ? dx_.template pointer<T>(p) : nullptr;
    t.accumulate_dx = dx_.accumulates();
    t.d_addend = d_addend_ ? d_addend_.template pointer<T>(p) : nullptr;
    t.accumulate_addend = d_addend_.accumulates();
    t.d_weight = d_parameter_[0].pointer;
    t.d_bias = d_parameter_[1].pointer;
    t.accumulate_parameters = d_parameter_[0].accumulate || d_parameter_[1].accumulate;
    t.scratch = p.address<void>(backward_scratch_);
    batch_norm_backward(p.stream(), t, sums(p, backward_sums_),
                        [&](double* of_rank) { return sum_across(p, of_rank); });
    d_addend_.template finish<T>(p);
  }

 private:
  Location scratch(Program& p, int time) const {
    return p.request(static_cast<std::size_t>(batch_norm_scratch<T>(positions_, channels_)), time, time);
  }
  Location room_for_sums(Program& p, int time) const {
    return p.request(static_cast<std::size_t>(2 * channels_) * sizeof(double), time, time);
  }
  /// Where the sums lie that ranks add up; null in a pass that involves no other rank.
  double* sums(Program& p, const Location& at) const {
    return p.across() != nullptr ? p.address<double>(at) : nullptr;
  }
  /// Replaces the sums over this rank's values by those over all ranks', and returns the number of values per
  /// channel over all ranks.
  double sum_across(Program& p, double* of_rank) {
    const std::size_t count = static_cast<std::size_t>(2 * channels_);
    all_.resize(count + 1);
    p.libraries().space().read(all_.data(), of_rank, count * sizeof(double));
    all_.back() = static_cast<double>(positions_);
    p.across()->sum(all_);
    p.libraries().space().write(of_rank, all_.data(), count * sizeof(double));
    return all_.back();
  }
  BatchNormTask<T> task(Program& p) const {
    const auto [epsilon, momentum] = p.attributes<graph::BatchNorm>(this->leader_);
    const int statistic = p.node(this->leader_).statistic;
    BatchNormTask<T> t;
    t.positions = positions_;
    t.channels = channels_;
    t.epsilon = epsilon;
    t.momentum = momentum;
    t.relu = relu_;
    t.weight = p.parameters().value(p.parameter(this->leader_, 0));
    t.bias = p.parameters().value(p.parameter(this->leader_, 1));
    t.running_mean = p.parameters().statistic(statistic);
    t.running_variance = p.parameters().statistic(statistic + 1);
    t.x = this->x(p, 0);
    t.y = this->y(p);
    t.scale_shift = p.address<f16>(this->value_.scale_shift);
    t.mean = p.address<float>(moments_);
    t.inverse = t.mean + channels_;
    return t;
  }

  bool relu_;
  int addend_ = -1, channels_ = 0;
  std::int64_t positions_ = 0;
  Location moments_, scratch_, backward_scratch_, sums_, backward_sums_;
  std::vector<double> all_;
  Contribution dx_, d_addend_;
  ParameterGradient d_parameter_[2];
};

CONVOY_COMPILED_STAGE(BatchNormStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::BatchNorm>
    : cuda::KernelOf<P, cuda::BatchNormStage, cuda::mask_of<graph::Add, graph::Relu>> {};

}  // namespace convoy::exec
