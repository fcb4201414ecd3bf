// Flatten: a view of a value in canonical order, or a copy out of images.
#pragma once

#include <memory>

#include <convoy/exec/cuda/plain.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

template <class T>
class FlattenStage final : public StageOf<T> {
 public:
  FlattenStage(Program& p, const graph::Stage& stage, int index) : StageOf<T>(p, stage, index) {
    images_ = images_of(this->input(p, 0));
  }
  void plan_backward(Program& p) override {
    dx_ = p.contribute(p.from(this->leader_, 0), true, this->backward_time(p));
  }
  void forward(Program& p) override {
    image_to_canonical<T, T>(p.stream(), images_, this->x(p, 0), this->y(p));
  }
  void backward(Program& p) override {
    if (dx_)
      image_to_canonical_backward<T, T>(p.stream(), images_, this->dy(p), this->second(p),
                                        dx_.template pointer<T>(p), dx_.accumulates());
  }

 private:
  Images images_;
  Contribution dx_;
};

CONVOY_COMPILED_STAGE(FlattenStage);

template <class T>
std::unique_ptr<Stage> build_flatten(Program& p, const graph::Stage& stage, int index) {
  const int input = p.from(stage.leader, 0);
  const Value& x = p.value(input);
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
