// A stage for any activation of kernel/activation.hpp.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/activation_part.hpp>
#include <convoy/exec/host/kernel/activation.hpp>
#include <convoy/exec/host/value_stage.hpp>

namespace convoy::exec::host {

template <class F>
class ActivationStage final : public UnaryStage {
 public:
  [[gnu::cold]] ActivationStage(Program& p, const graph::Stage& stage, int index)
      : UnaryStage(p, stage, index) {
    const int end = value_.wants_gradient && !F::of_output ? p.backward_time(index) : index;
    source_ = value_.is_blocked ? p.blocked(input_, index, end)
                                : Conversion(p.plain_view(input_), p.plain_view(input_));
    p.keep(p.value(input_), end);
  }
  [[gnu::cold]] void bind(Program& p) override {
    UnaryStage::bind(p);
    source_.bind(p);
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
  // The addresses of a batch's fields change from call to call.
  const float* x(const Program& p) const { return p.address(source_.to().place); }

  Conversion source_;
};

/// The same function fused after another operation.
template <class F>
std::unique_ptr<Part> fuse_activation(Location x, const Value& y) {
  return std::make_unique<ActivationPart>(
      x, y, F::of_output, &for_each_share<ApplyLoop<F>, const float*, float*>,
      &for_each_share<SlopeLoop<F>, const float*, const float*, const float*, float*, bool>);
}

}  // namespace convoy::exec::host

#endif
