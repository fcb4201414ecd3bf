// Dropout, with the same draws as on every other Exec, optionally followed by an addition. If a layer norm
// follows the addition, ResidualNormStage computes all three.
#pragma once

#include <memory>

#include <convoy/exec/cuda/kernel/dropout.cuh>
#include <convoy/exec/cuda/residual_norm.cuh>

namespace convoy::exec::cuda {

template <class T>
class DropoutStage final : public StageOf<T> {
 public:
  DropoutStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        addend_(addend_of(p.plan(), stage)),
        rule_(p.attributes<graph::Dropout>(stage.leader).p) {
    p.draw(stage.leader);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    if (addend_ >= 0 && (this->value_.second || !p.share_gradient(addend_, this->value_.gradient)))
      d_addend_ = p.contribute(addend_, true, time);
    dx_ = p.contribute(p.from(this->leader_, 0), true, time);
  }
  void forward(Program& p) override {
    const T* addend = addend_ < 0 ? nullptr : p.address<T>(p.value(addend_).data);
    if (p.trains())
      drop(p, this->x(p, 0), nullptr, addend, this->y(p));
    else if (addend != nullptr)
      add<T>(p.stream(), this->value_.elements(), this->x(p, 0), addend, this->y(p), false);
    else
      device::check(cudaMemcpyAsync(this->y(p), this->x(p, 0), this->value_.bytes(), cudaMemcpyDeviceToDevice,
                                    p.stream()),
                    "copy a value");
  }
  void backward(Program& p) override {
    if (d_addend_)
      pass<T>(p.stream(), this->value_.elements(), this->dy(p), this->second(p), nullptr,
              d_addend_.template pointer<T>(p), d_addend_.accumulates());
    if (!dx_) return;
    T* dx = dx_.template pointer<T>(p);
    drop(p, this->dy(p), this->second(p), dx_.accumulates() ? dx : nullptr, dx);
  }

 private:
  void drop(Program& p, const T* from, const T* second, const T* addend, T* to) const {
    const Value& v = this->value_;
    if (v.is_image())
      dropout_image<T>(p.stream(), p.draws(this->leader_), rule_, v.rows, v.channels, v.positions(), from,
                       second, addend, to);
    else
      dropout<T>(p.stream(), p.draws(this->leader_), rule_, v.rows, v.row_elements(), from, second, addend,
                 to);
  }

  int addend_;  // the node that is added, or -1
  DropoutRule rule_;
  Contribution dx_, d_addend_;
};

CONVOY_COMPILED_STAGE(DropoutStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Dropout> {
  using Element = typename cuda::Precision<P>::Element;
  static std::unique_ptr<cuda::Stage> build(cuda::Program& program, const graph::Stage& stage, int index) {
    if (program.find<graph::LayerNorm>(stage) >= 0)
      return cuda::build<cuda::ResidualNormStage<Element>>(program, stage, index);
    return cuda::build_for_any_kind<cuda::DropoutStage, Element>(program, stage, index);
  }
  static constexpr cuda::Make make{build, cuda::mask_of<graph::Add, graph::LayerNorm>};
};

}  // namespace convoy::exec
