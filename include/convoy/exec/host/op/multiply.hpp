// Multiplication of two values.
#pragma once

#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/multiply.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Multiply> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class MultiplyStage final : public ValueStage {
 public:
  [[gnu::cold]] MultiplyStage(Program& p, const graph::Stage& stage, int index)
      : ValueStage(p, stage, index) {
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    for (int i = 0; i < 2; ++i) {
      input_[i] = p.from(stage.leader, i);
      source_[i] = value_.is_blocked ? p.blocked(input_[i], index, end)
                                     : Conversion(p.plain_view(input_[i]), p.plain_view(input_[i]));
      p.keep(p.value(input_[i]), end);
    }
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    for (int i = 0; i < 2; ++i) contribution_[i] = p.contribute(input_[i], true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    ValueStage::bind(p);
    for (int i = 0; i < 2; ++i) {
      source_[i].bind(p);
      contribution_[i].bind(p);
    }
  }
  void forward(Program& p) override {
    for (const Conversion& source : source_) source.run();
    const float* none = nullptr;
    for_each_share<MultiplyLoop>(p.threads(), value_.elements(), x(p, 0), none, x(p, 1), y_, false);
  }
  void backward(Program& p) override {
    for (int i = 0; i < 2; ++i)
      if (contribution_[i])
        for_each_share<MultiplyLoop>(p.threads(), value_.elements(), dy_, second_, x(p, 1 - i),
                                     contribution_[i].pointer(), contribution_[i].accumulates());
  }

 private:
  // The addresses of a batch's fields change from call to call.
  const float* x(const Program& p, int i) const { return p.address(source_[i].to().place); }

  int input_[2] = {-1, -1};
  Conversion source_[2];
  Contribution contribution_[2];
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Multiply>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::MultiplyStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
