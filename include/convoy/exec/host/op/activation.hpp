// A stage of one activation, for any function of kernel/activation.hpp.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/activation.hpp>
#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

template <class F>
class ActivationStage final : public Stage {
 public:
  [[gnu::cold]] ActivationStage(Program& p, const graph::Stage& stage, int index)
      : index_(index), input_(p.from(stage.leader, 0)), value_(p.yield(stage.output, index)) {
    value_.takes_second = true;
    const int end = value_.wants_gradient && !F::of_output ? p.backward_time(index) : index;
    source_ = value_.is_blocked ? p.blocked(input_, index, end)
                                : Conversion(p.plain_view(input_), p.plain_view(input_));
    p.keep(p.value(input_), end);
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    contribution_ = p.contribute(input_, true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    source_.bind(p);
    contribution_.bind(p);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    second_ = p.address(value_.second);
  }
  void forward(Program& p) override {
    source_.run();
    for_each_share<ApplyLoop<F>>(p.threads(), value_.elements(), x(p), y_);
  }
  void backward(Program& p) override {
    if (!contribution_) return;
    const float* at = F::of_output ? y_ : x(p);
    for_each_share<SlopeLoop<F>>(p.threads(), value_.elements(), dy_, second_, at, contribution_.pointer(),
                                 contribution_.accumulates());
  }

 private:
  // The fields of a batch move from call to call.
  const float* x(const Program& p) const { return p.address(source_.to().place); }

  int index_, input_;
  Value& value_;
  Conversion source_;
  Contribution contribution_;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
  const float* second_ = nullptr;
};

/// The same function behind another operation.
template <class F>
std::unique_ptr<Part> fuse_activation(Place x, const Value& y) {
  return std::make_unique<ActivationPart>(
      x, y, F::of_output, &for_each_share<ApplyLoop<F>, const float*, float*>,
      &for_each_share<SlopeLoop<F>, const float*, const float*, const float*, float*, bool>);
}

}  // namespace convoy::exec::host

#endif
