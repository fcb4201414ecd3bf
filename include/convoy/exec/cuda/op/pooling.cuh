// Poolings over images.
#pragma once

#include <cstddef>
#include <type_traits>

#include <convoy/exec/cuda/kernel/pooling.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// `Op` is graph::MaxPool or graph::AvgPool.
template <class T, class Op>
class PoolingStage final : public StageOf<T> {
 public:
  static constexpr bool largest = std::is_same_v<Op, graph::MaxPool>;

  PoolingStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    const Value& x = this->input(p, 0);
    const Shape& out = this->value_.shape;
    pooling_ = {x.rows, x.channels, x.shape[1], x.shape[2], out[1], out[2], p.attributes<Op>(stage.leader)};
    if (largest)
      winner_ = p.request(static_cast<std::size_t>(this->value_.elements() * pooling_.winner_bytes()), index,
                          this->kept_until(p));
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    if constexpr (largest)
      max_pool<T>(p.stream(), pooling_, this->x(p, 0), this->y(p), p.address<void>(winner_));
    else
      average_pool<T>(p.stream(), pooling_, this->x(p, 0), this->y(p));
  }
  void backward(Program& p) override {
    if (!dx_) return;
    T* dx = dx_.template pointer<T>(p);
    if constexpr (largest)
      max_pool_backward<T>(p.stream(), pooling_, this->dy(p), this->second(p), p.address<void>(winner_), dx,
                           dx_.accumulates());
    else
      average_pool_backward<T>(p.stream(), pooling_, this->dy(p), this->second(p), dx, dx_.accumulates());
  }

 private:
  Pooling pooling_;
  Location winner_;
  Contribution dx_;
};

template <class T>
using MaxPoolStage = PoolingStage<T, graph::MaxPool>;
template <class T>
using AvgPoolStage = PoolingStage<T, graph::AvgPool>;

CONVOY_COMPILED_STAGE(MaxPoolStage);
CONVOY_COMPILED_STAGE(AvgPoolStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::MaxPool> : cuda::KernelOf<P, cuda::MaxPoolStage> {};
template <class P>
struct Kernel<Cuda<P>, graph::AvgPool> : cuda::KernelOf<P, cuda::AvgPoolStage> {};

}  // namespace convoy::exec
