// Frame: what a kernel of Reference sees of its node.
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

/// What is kept of a node: its value and the gradient of it for the whole batch, and what its kernel keeps
/// for backward.
template <class T>
struct State {
  std::vector<T> value, gradient;
  std::vector<i32> integers;       // a value of i32
  std::vector<T> kept;             // numbers that the kernel keeps
  std::vector<std::int64_t> from;  // places that the kernel keeps
};

/// A node while it is computed, with its inputs and parameters as plain arrays. Gradients of values and of
/// parameters are added to, so that any number of nodes may use them.
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
  /// The elements of input `i`, and of the value, for the whole batch.
  std::size_t size(int i) const { return exec_.elements(graph().input(n_, i)); }
  std::size_t size() const { return exec_.elements(n_); }
  const T* x(int i) const { return exec_.at(graph().input(n_, i)).value.data(); }
  const i32* integers(int i) const { return exec_.at(graph().input(n_, i)).integers.data(); }
  bool is_integer(int i) const { return plan().node(graph().input(n_, i)).dtype == DType::i32; }
  /// Null where nobody needs it.
  T* dx(int i) const {
    const int from = graph().input(n_, i);
    return plan().needs_gradient(from) ? exec_.at(from).gradient.data() : nullptr;
  }
  T* y() const { return exec_.at(n_).value.data(); }
  const T* dy() const { return exec_.at(n_).gradient.data(); }

  int parameters() const { return node().uses; }
  int parameter(int k) const { return graph().parameter(n_, k); }
  const Shape& parameter_shape(int k) const { return plan().parameter(parameter(k)).shape; }
  /// The live elements of the k-th parameter; null where there is none.
  const T* w(int k) const {
    return k < parameters() ? exec_.parameters_.data() + plan().slot(parameter(k)).live.begin : nullptr;
  }
  /// Its gradient; null where there is none, or the parameter is frozen.
  T* dw(int k) const {
    if (k >= parameters() || !plan().trained(parameter(k))) return nullptr;
    return exec_.gradients_.data() + plan().slot(parameter(k)).live.begin;
  }
  T* statistic(int k) const {
    return exec_.statistics_.data() +
           exec_.statistic_ranges_[static_cast<std::size_t>(node().statistic + k)].begin;
  }

  /// Numbers, and places, that forward leaves to backward.
  std::vector<T>& kept() const { return exec_.at(n_).kept; }
  std::vector<std::int64_t>& from() const { return exec_.at(n_).from; }

  /// What a classification gets right; of the first node that says so, the model's accuracy.
  void tally(std::int64_t correct, std::int64_t labels) const { exec_.tally(n_, correct, labels); }

 private:
  Reference<T>& exec_;
  int n_;
};

/// The functions of a kernel.
template <class T>
struct Functions {
  void (*forward)(const Frame<T>&) = nullptr;
  void (*backward)(const Frame<T>&) = nullptr;
  constexpr explicit operator bool() const { return forward != nullptr; }
};

/// Of a kernel type with static `forward` and `backward`.
template <class K, class T>
inline constexpr Functions<T> functions_of = {&K::forward, &K::backward};

}  // namespace reference

// Names a kernel for convoy::compiled, in the kernel's own file.
#define CONVOY_REFERENCE(operation)                                      \
  CONVOY_INSTANTIATE(struct Kernel<Reference<float>, graph::operation>); \
  CONVOY_INSTANTIATE(struct Kernel<Reference<double>, graph::operation>)

}  // namespace convoy::exec
