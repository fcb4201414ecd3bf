// Shared parts of stages that yield one value: the stage's place in the plan, its inputs and its gradient.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/cuda/precision.cuh>
#include <convoy/exec/cuda/program.cuh>
#include <convoy/exec/kernel.hpp>

namespace convoy::exec {

template <class P>
class Cuda;

namespace cuda {

/// A stage of values of type T, led by node `leader`.
template <class T>
class StageOf : public Stage {
 protected:
  StageOf(Program& p, const graph::Stage& stage, int index)
      : leader_(stage.leader), index_(index), value_(p.yield(stage.output, index)) {}

  void bind(Program&) override {}

  int leader_, index_;
  Value& value_;

  /// The time of this stage in backward, and the time until which it keeps what backward reads.
  int backward_time(const Program& p) const { return p.backward_time(index_); }
  int kept_until(const Program& p) const { return value_.wants_gradient ? backward_time(p) : index_; }

  Value& input(Program& p, int i) const { return p.value(p.from(leader_, i)); }
  const T* x(Program& p, int i) const { return p.address<T>(input(p, i).data); }
  T* y(Program& p) const { return p.address<T>(value_.data); }
  const T* dy(Program& p) const { return p.address<T>(value_.gradient); }
  /// The second summand of the value's gradient, or null.
  const T* second(Program& p) const { return p.address<T>(value_.second); }
};

/// Makes the stage of an operation on values of any kind: numbers are f32 in every precision.
template <template <class> class S, class T>
std::unique_ptr<Stage> build_for_any_kind(Program& p, const graph::Stage& stage, int index) {
  if (p.value(p.from(stage.leader, 0)).element == DType::f32) return build<S<float>>(p, stage, index);
  return build<S<T>>(p, stage, index);
}

/// The kernel of an operation whose stage is `S<Element>`.
template <class P, template <class> class S, std::uint64_t following = 0>
struct KernelOf {
  static constexpr Make make{build<S<typename Precision<P>::Element>>, following};
};
/// The same for an operation on values of any kind.
template <class P, template <class> class S>
struct KernelForAnyKind {
  static constexpr Make make{build_for_any_kind<S, typename Precision<P>::Element>};
};

}  // namespace cuda
}  // namespace convoy::exec
