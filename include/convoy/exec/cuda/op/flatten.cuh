// Flatten: a view of a value in canonical order, or a copy out of images or of numbers in another type.
#pragma once

#include <memory>

#include <convoy/exec/cuda/plain.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// `From` is the type of the input.
template <class T, class From = T>
class FlattenStage final : public StageOf<T> {
 public:
  FlattenStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    images_ = images_of(this->input(p, 0));
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    image_to_canonical<From, T>(p.stream(), images_, p.address<From>(this->input(p, 0).data), this->y(p));
  }
  void backward(Program& p) override {
    if (dx_)
      image_to_canonical_backward<T, From>(p.stream(), images_, this->dy(p), this->second(p),
                                           dx_.template pointer<From>(p), dx_.accumulates());
  }

 private:
  Images images_;
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(FlattenStage);
CONVOY_INSTANTIATE_BF16(std::unique_ptr<Stage> build<FlattenStage<bf16, float>>(Program&, const graph::Stage&,
                                                                                int));
CONVOY_INSTANTIATE_F16(std::unique_ptr<Stage> build<FlattenStage<f16, float>>(Program&, const graph::Stage&,
                                                                              int));

template <class T>
std::unique_ptr<Stage> build_flatten(Program& p, const graph::Stage& stage, int index) {
  const int input = p.from(stage.leader, 0);
  const Value& x = p.value(input);
  if (x.element != dtype_of<T>) return build<FlattenStage<T, float>>(p, stage, index);  // a number in f32
  if (!is_canonical(x)) return build<FlattenStage<T>>(p, stage, index);
  p.alias(stage.leader, input);
  return nullptr;
}

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Flatten> {
  static constexpr cuda::Make make{cuda::build_flatten<typename cuda::Precision<P>::Element>};
};

}  // namespace convoy::exec
