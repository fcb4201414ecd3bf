// Frame: the view that a kernel of Reference has of its node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/exec/exec.hpp>

namespace convoy::exec {

template <class T>
class Reference;

namespace reference {

/// The state of a node for the whole batch: its value, the gradient of its value, and what its kernel saves
/// for backward.
template <class T>
struct State {
  std::vector<T> value, gradient;
  std::vector<i32> integers;       // the value if it is i32
  std::vector<T> kept;             // numbers that the kernel saves
  std::vector<std::int64_t> from;  // indices that the kernel saves
};

/// A node while it is computed, with its inputs and parameters as plain arrays. Kernels add to the gradients
/// of values and parameters, so that several nodes may use one.
template <class T>
class Frame {
 public:
  Frame(Reference<T>& exec, int n) : exec_(exec), n_(n) {}

  const graph::Graph& graph() const { return exec_.plan_.graph; }
  const Plan& plan() const { return exec_.plan_; }
  const graph::Node& node() const { return plan().node(n_); }
  template <class Op>
  typename Op::Attributes attributes() const {
    return graph().template attributes<Op>(n_);
  }
  int rows() const { return exec_.rows_; }
  const Pass& pass() const { return exec_.pass_; }
  int index() const { return n_; }

  int inputs() const { return node().inputs; }
  const Shape& shape(int i) const { return graph().shape_of_input(n_, i); }
  /// The number of elements of input `i`, and of the value, in the whole batch.
  std::size_t size(int i) const { return exec_.elements(graph().input(n_, i)); }
  std::size_t size() const { return exec_.elements(n_); }
  const T* x(int i) const { return exec_.at(graph().input(n_, i)).value.data(); }
  const i32* integers(int i) const { return exec_.at(graph().input(n_, i)).integers.data(); }
  bool is_integer(int i) const { return plan().node(graph().input(n_, i)).dtype == DType::i32; }
  /// The gradient of input `i`; null if nothing needs it.
  T* dx(int i) const {
    const int from = graph().input(n_, i);
    return plan().needs_gradient(from) ? exec_.at(from).gradient.data() : nullptr;
  }
  T* y() const { return exec_.at(n_).value.data(); }
  const T* dy() const { return exec_.at(n_).gradient.data(); }

  int parameters() const { return node().uses; }
  int parameter(int k) const { return graph().parameter(n_, k); }
  const Shape& parameter_shape(int k) const { return plan().parameter(parameter(k)).shape; }
  /// The live elements of the k-th parameter; null if there is none.
  const T* w(int k) const {
    return k < parameters() ? exec_.parameters_.data() + plan().slot(parameter(k)).live.begin : nullptr;
  }
  /// The gradient of the k-th parameter; null if there is none or the parameter is frozen.
  T* dw(int k) const {
    if (k >= parameters() || !plan().trained(parameter(k))) return nullptr;
    return exec_.gradients_.data() + plan().slot(parameter(k)).live.begin;
  }
  T* statistic(int k) const {
    return exec_.statistics_.data() +
           exec_.statistic_ranges_[static_cast<std::size_t>(node().statistic + k)].begin;
  }

  /// Numbers and indices that forward saves for backward.
  std::vector<T>& kept() const { return exec_.at(n_).kept; }
  std::vector<std::int64_t>& from() const { return exec_.at(n_).from; }

  /// Reports correct and counted labels; the first node to report defines the model's accuracy.
  void tally(std::int64_t correct, std::int64_t labels) const { exec_.tally(n_, correct, labels); }

 private:
  Reference<T>& exec_;
  int n_;
};

/// The forward and backward functions of a kernel.
template <class T>
struct Functions {
  void (*forward)(const Frame<T>&) = nullptr;
  void (*backward)(const Frame<T>&) = nullptr;
  constexpr explicit operator bool() const { return forward != nullptr; }
};

/// The functions of a kernel type with static `forward` and `backward`.
template <class K, class T>
inline constexpr Functions<T> functions_of = {&K::forward, &K::backward};

}  // namespace reference

// Instantiates a kernel for convoy::compiled; used in the kernel's own file.
#define CONVOY_REFERENCE(operation)                                      \
  CONVOY_INSTANTIATE(struct Kernel<Reference<float>, graph::operation>); \
  CONVOY_INSTANTIATE(struct Kernel<Reference<double>, graph::operation>)

}  // namespace convoy::exec
