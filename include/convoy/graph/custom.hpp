// Custom operations, losses and metrics: user types whose functions the plan stores as pointers.
//
// An operation is a type with
//     static constexpr Shape shape(Shape x, ...);                      // of the output, from those of the
//     inputs static void forward(View<const T> x, ..., View<T> y);            // T is float or double static
//     void backward(View<const T> x, ..., View<const T> y, View<const T> dy, View<T> dx, ...);
// where the views hold a whole batch in plain layout (row after row) and `backward` overwrites every dx. An
// input of integers (a label) comes as View<const i32> and has no dx. A loss is an operation whose shape is
// {}: one number a row. A metric is a type with
//     static double measure(View<const float> x, ...);                 // the sum over the rows of the batch
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include <convoy/core/dtype.hpp>
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
  operator View<const T>() const requires(!std::is_const_v<T>) { return {data, shape, rows}; }
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

/// The functions of one custom operation. `forward` gets the inputs and {y}; `backward` gets the inputs, y
/// and dy as its inputs, and the dx as its outputs (null data for an integer input).
struct CustomCalls {
  CustomCall<float> forward_f32 = nullptr, backward_f32 = nullptr;
  CustomCall<double> forward_f64 = nullptr, backward_f64 = nullptr;

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

// `Integers` is a bit mask of the inputs that hold i32.
template <class T, unsigned Integers, int I>
auto input_view(const Argument* inputs, int rows) {
  if constexpr ((Integers >> I) & 1u)
    return view_of<const i32>(inputs[I], rows);
  else
    return view_of<const T>(inputs[I], rows);
}

template <class Operation, class T, unsigned Integers, int... I>
void call_forward(const Argument* inputs, const Argument* outputs, int rows,
                  std::integer_sequence<int, I...>) {
  Operation::forward(input_view<T, Integers, I>(inputs, rows)..., view_of<T>(outputs[0], rows));
}

// The number of inputs that have a gradient: a label, which has none, comes last.
template <unsigned Integers, int N>
inline constexpr int differentiable = Integers == 0 ? N : N - 1;

template <class Operation, class T, unsigned Integers, int N>
void call_backward(const Argument* inputs, const Argument* outputs, int rows) {
  const auto y = view_of<const T>(inputs[N], rows);
  const auto dy = view_of<const T>(inputs[N + 1], rows);
  [&]<int... I, int... J>(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>) {
    Operation::backward(input_view<T, Integers, I>(inputs, rows)..., y, dy, view_of<T>(outputs[J], rows)...);
  }
  (std::make_integer_sequence<int, N>{}, std::make_integer_sequence<int, differentiable<Integers, N>>{});
}

inline constexpr const Argument* no_arguments = nullptr;

// Whether the functions of an operation can be called as they will be.
template <class Operation, class T, unsigned Integers, int... I>
consteval bool can_forward(std::integer_sequence<int, I...>) {
  return requires(View<T> y) { Operation::forward(input_view<T, Integers, I>(no_arguments, 0)..., y); };
}
template <class Operation, class T, unsigned Integers, int... I, int... J>
consteval bool can_backward(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>) {
  return requires(View<const T> y) {
    Operation::backward(input_view<T, Integers, I>(no_arguments, 0)..., y, y,
                        view_of<T>(no_arguments[J], 0)...);
  };
}
template <class Operation, int N, unsigned Integers>
inline constexpr bool has_forward =
    can_forward<Operation, float, Integers>(std::make_integer_sequence<int, N>{}) &&
    can_forward<Operation, double, Integers>(std::make_integer_sequence<int, N>{});
template <class Operation, int N, unsigned Integers>
inline constexpr bool has_backward =
    can_backward<Operation, float, Integers>(
        std::make_integer_sequence<int, N>{},
        std::make_integer_sequence<int, differentiable<Integers, N>>{}) &&
    can_backward<Operation, double, Integers>(std::make_integer_sequence<int, N>{},
                                              std::make_integer_sequence<int, differentiable<Integers, N>>{});

/// The calls of `Operation` with N inputs, as a constant with an address.
template <class Operation, int N, unsigned Integers>
inline constexpr CustomCalls custom_calls = {
    [](const Argument* in, const Argument* out, int rows) {
      call_forward<Operation, float, Integers>(in, out, rows, std::make_integer_sequence<int, N>{});
    },
    [](const Argument* in, const Argument* out, int rows) {
      call_backward<Operation, float, Integers, N>(in, out, rows);
    },
    [](const Argument* in, const Argument* out, int rows) {
      call_forward<Operation, double, Integers>(in, out, rows, std::make_integer_sequence<int, N>{});
    },
    [](const Argument* in, const Argument* out, int rows) {
      call_backward<Operation, double, Integers, N>(in, out, rows);
    }};

template <class Measure, unsigned Integers, int... I>
consteval bool can_measure(std::integer_sequence<int, I...>) {
  return requires {
    { Measure::measure(input_view<float, Integers, I>(no_arguments, 0)...) } -> std::convertible_to<double>;
  };
}
template <class Measure, int N, unsigned Integers>
inline constexpr bool has_measure = can_measure<Measure, Integers>(std::make_integer_sequence<int, N>{});

template <class Measure, int N, unsigned Integers>
inline constexpr MetricCall metric_call = [](const Argument* inputs, int rows) -> double {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return Measure::measure(input_view<float, Integers, I>(inputs, rows)...);
  }
  (std::make_integer_sequence<int, N>{});
};

}  // namespace graph
}  // namespace convoy
