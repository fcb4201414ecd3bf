// Custom operations, losses and metrics: user types whose functions the plan stores as pointers.
//
// An operation is a type with
//     static constexpr Shape shape(Shape x, ...);       // of the output, from those of the arguments
//     static void forward(View<const T> x, ..., View<T> y);       // T is float or double
//     static void backward(View<const T> x, ..., View<const T> y, View<const T> dy, View<T> dx, ...);
// where the views hold a whole batch in plain layout (row after row) and `backward` overwrites every dx. Its
// arguments are values, then perhaps a label, which comes as View<const i32> and has no dx, then parameters,
// which come as views of a single row. A loss is an operation whose shape is {}: one number a row. A metric
// is a type with
//     static double measure(View<const float> x, ...);            // the sum over the rows of the batch
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <convoy/core/dtype.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/core/shape.hpp>

namespace convoy {

/// A batch of tensors in plain layout: `rows` times `shape.size()` elements.
template <class T>
struct View {
  T* data = nullptr;
  Shape shape;
  int rows = 0;

  std::size_t size() const { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.size()); }
  T* begin() const { return data; }
  T* end() const { return data + size(); }
  T& operator[](std::size_t i) const { return data[i]; }
  /// The elements of one sample.
  std::span<T> row(int i) const {
    const auto n = static_cast<std::size_t>(shape.size());
    return {data + static_cast<std::size_t>(i) * n, n};
  }
  template <class U>
  requires(std::is_same_v<U, const T> && !std::is_const_v<T>) operator View<U>() const {
    return {data, shape, rows};
  }
};

namespace graph {

/// One argument of a custom call, before its type is known again.
struct Argument {
  void* data = nullptr;
  Shape shape;
};

template <class T>
using CustomCall = void (*)(const Argument* inputs, const Argument* outputs, int rows);
using MetricCall = double (*)(const Argument* inputs, int rows);

/// The functions of one custom operation. `forward` gets the arguments and {y}; `backward` gets the
/// arguments, y and dy as its inputs, and a gradient for each argument as its outputs (null data for a
/// label).
struct CustomCalls {
  CustomCall<float> forward_f32 = nullptr, backward_f32 = nullptr;
  CustomCall<double> forward_f64 = nullptr, backward_f64 = nullptr;
  std::uint64_t identity = 0;  ///< of the type, which ranks compare

  template <class T>
  auto forward() const {
    if constexpr (std::is_same_v<T, double>)
      return forward_f64;
    else
      return forward_f32;
  }
  template <class T>
  auto backward() const {
    if constexpr (std::is_same_v<T, double>)
      return backward_f64;
    else
      return backward_f32;
  }
};

template <class T>
View<T> view_of(const Argument& argument, int rows) {
  return {static_cast<T*>(argument.data), argument.shape, rows};
}

/// How many arguments a custom operation is called with, and which.
struct Arguments {
  int inputs = 0, parameters = 0;
  int label = -1;  ///< the argument that is a label, the last of the inputs; -1: none is
  bool ordered = true;
  constexpr int count() const { return inputs + parameters; }
  /// Those that have a gradient.
  constexpr int differentiable() const { return count() - (label >= 0 ? 1 : 0); }
  constexpr int with_gradient(int j) const { return label >= 0 && j >= label ? j + 1 : j; }
  constexpr int rows(int i, int batch) const { return i < inputs ? batch : 1; }
};

template <class T, Arguments A, int I>
auto argument_view(const Argument* arguments, int rows) {
  if constexpr (I == A.label)
    return view_of<const i32>(arguments[I], rows);
  else
    return view_of<const T>(arguments[I], A.rows(I, rows));
}

template <class Operation, class T, Arguments A>
void call_forward(const Argument* in, const Argument* out, int rows) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    Operation::forward(argument_view<T, A, I>(in, rows)..., view_of<T>(out[0], rows));
  }
  (std::make_integer_sequence<int, A.count()>{});
}

template <class Operation, class T, Arguments A>
void call_backward(const Argument* in, const Argument* out, int rows) {
  const auto y = view_of<const T>(in[A.count()], rows);
  const auto dy = view_of<const T>(in[A.count() + 1], rows);
  [&]<int... I, int... J>(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>) {
    Operation::backward(argument_view<T, A, I>(in, rows)..., y, dy,
                        view_of<T>(out[A.with_gradient(J)], A.rows(A.with_gradient(J), rows))...);
  }
  (std::make_integer_sequence<int, A.count()>{}, std::make_integer_sequence<int, A.differentiable()>{});
}

inline constexpr const Argument* no_arguments = nullptr;

// Whether the functions of an operation can be called as they will be.
template <class Operation, class T, Arguments A, int... I>
consteval bool can_forward(std::integer_sequence<int, I...>) {
  return requires(View<T> y) { Operation::forward(argument_view<T, A, I>(no_arguments, 0)..., y); };
}
template <class Operation, class T, Arguments A, int... I, int... J>
consteval bool can_backward(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>) {
  return requires(View<const T> y) {
    Operation::backward(argument_view<T, A, I>(no_arguments, 0)..., y, y, view_of<T>(no_arguments[J], 0)...);
  };
}
template <class Operation, Arguments A>
inline constexpr bool has_forward =
    can_forward<Operation, float, A>(std::make_integer_sequence<int, A.count()>{}) &&
    can_forward<Operation, double, A>(std::make_integer_sequence<int, A.count()>{});
template <class Operation, Arguments A>
inline constexpr bool has_backward =
    can_backward<Operation, float, A>(std::make_integer_sequence<int, A.count()>{},
                                      std::make_integer_sequence<int, A.differentiable()>{}) &&
    can_backward<Operation, double, A>(std::make_integer_sequence<int, A.count()>{},
                                       std::make_integer_sequence<int, A.differentiable()>{});

// A type as a number that ranks compare: of its name, as this compiler spells it.
template <class T>
consteval std::uint64_t identity_of() {
  return hash_of(std::string_view(__PRETTY_FUNCTION__));
}

/// The calls of `Operation` with arguments A, as a constant with an address.
template <class Operation, Arguments A>
inline constexpr CustomCalls custom_calls = {
    call_forward<Operation, float, A>, call_backward<Operation, float, A>, call_forward<Operation, double, A>,
    call_backward<Operation, double, A>, identity_of<Operation>()};

template <class Measure, Arguments A, int... I>
consteval bool can_measure(std::integer_sequence<int, I...>) {
  return requires {
    { Measure::measure(argument_view<float, A, I>(no_arguments, 0)...) } -> std::convertible_to<double>;
  };
}
template <class Measure, Arguments A>
inline constexpr bool has_measure = can_measure<Measure, A>(std::make_integer_sequence<int, A.count()>{});

template <class Measure, Arguments A>
inline constexpr MetricCall metric_call = [](const Argument* inputs, int rows) -> double {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return Measure::measure(argument_view<float, A, I>(inputs, rows)...);
  }
  (std::make_integer_sequence<int, A.count()>{});
};

}  // namespace graph
}  // namespace convoy
