// Custom operations, losses and metrics: user types whose functions the plan stores as pointers.
//
// An operation is a type with
//     static constexpr Shape shape(Shape x, ...);       // of the output, from those of the arguments
//     static void forward(View<const T> x, ..., View<T> y);       // T is float or double
//     static void backward(View<const T> x, ..., View<const T> y, View<const T> dy, View<T> dx, ...);
// where the views hold a whole batch in plain layout (row after row) and `backward` overwrites every dx. Its
// arguments are values, then perhaps a label, which comes as View<const i32> and has no dx, then parameters,
// which come as views of a single row. A loss is the same without `shape`: one number a row.
//
// exec::Reference and exec::Host need no more. exec::Cuda needs two functions for a device beside these:
//     static void forward(cudaStream_t, View<const float> x, ..., View<float> y);
//     static void backward(cudaStream_t, View<const float> x, ..., View<const float> y, View<const float> dy,
//                          View<float> dx, ...);
// They enqueue work on the stream, such as kernels of the user's own, over views of device memory. These are
// in plain layout and of float whatever the precision of the Exec is; a label is View<const i32>. A kernel
// may take views as its arguments. A header declares the two functions, so that every source sees one type,
// and a source that nvcc compiles may define them; programs that train on the host alone link it too. A pass
// that runs for the second time is captured as a CUDA graph, which is replayed from then on: the functions
// are not called again. So they neither allocate memory, nor wait for the device, nor copy from or to memory
// of the host that is not pinned, and what they enqueue depends on nothing on the host that varies from step
// to step.
//
// A metric is a type with
//     static double measure(View<const float> x, ...);            // the sum over the rows of the batch
// which is called on the host whatever the Exec is.
//
// A model's `define` calls them with an object of the type: `x = g.custom(Swish{}, x, beta)`,
// `g.loss(g.custom_loss(Hinge{}, x, label))`, `g.metric("top3", TopThree{}, x, label)`.
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
#include <convoy/core/hd.hpp>
#include <convoy/core/shape.hpp>

/// What CUDA's cudaStream_t points to.
struct CUstream_st;

namespace convoy {

/// A batch of tensors in plain layout: `rows` times `shape.size()` elements. A kernel may take one as its
/// argument and call whatever it has but `row`.
template <class T>
struct View {
  T* data = nullptr;
  Shape shape;
  int rows = 0;

  CONVOY_HD std::size_t size() const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.size());
  }
  CONVOY_HD T* begin() const { return data; }
  CONVOY_HD T* end() const { return data + size(); }
  CONVOY_HD T& operator[](std::size_t i) const { return data[i]; }
  /// The elements of one sample. On the host alone, as std::span is.
  std::span<T> row(int i) const {
    const auto n = static_cast<std::size_t>(shape.size());
    return {data + static_cast<std::size_t>(i) * n, n};
  }
  template <class U>
  requires(std::is_same_v<U, const T> && !std::is_const_v<T>) CONVOY_HD operator View<U>() const {
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
/// The same for arguments in the memory of a device, of float.
using StreamCall = void (*)(const Argument* inputs, const Argument* outputs, int rows, CUstream_st* stream);
using MetricCall = double (*)(const Argument* inputs, int rows);

/// The functions of one custom operation. `forward` gets the arguments and {y}; `backward` gets the
/// arguments, y and dy as its inputs, and a gradient for each argument as its outputs (null data for a
/// label). Those on a stream are null for an operation without functions for a device.
struct CustomCalls {
  CustomCall<float> forward_f32 = nullptr, backward_f32 = nullptr;
  CustomCall<double> forward_f64 = nullptr, backward_f64 = nullptr;
  StreamCall forward_on_stream = nullptr, backward_on_stream = nullptr;
  bool on_stream = false;      ///< whether there are those two
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

template <class Operation, class T, Arguments A, class... Stream>
void call_forward(const Argument* in, const Argument* out, int rows, Stream... stream) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    Operation::forward(stream..., argument_view<T, A, I>(in, rows)..., view_of<T>(out[0], rows));
  }
  (std::make_integer_sequence<int, A.count()>{});
}

template <class Operation, class T, Arguments A, class... Stream>
void call_backward(const Argument* in, const Argument* out, int rows, Stream... stream) {
  const auto y = view_of<const T>(in[A.count()], rows);
  const auto dy = view_of<const T>(in[A.count() + 1], rows);
  [&]<int... I, int... J>(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>) {
    Operation::backward(stream..., argument_view<T, A, I>(in, rows)..., y, dy,
                        view_of<T>(out[A.with_gradient(J)], A.rows(A.with_gradient(J), rows))...);
  }
  (std::make_integer_sequence<int, A.count()>{}, std::make_integer_sequence<int, A.differentiable()>{});
}

inline constexpr const Argument* no_arguments = nullptr;

// Whether the functions of an operation can be called as they will be. What they are called with are
// parameters of the requirement: with parameters of the function around it nvcc finds every call possible.
template <class Operation, class T, Arguments A, class... Stream, int... I>
consteval bool can_forward(std::integer_sequence<int, I...>) {
  return requires(View<T> y, Stream... stream) {
    Operation::forward(stream..., argument_view<T, A, I>(no_arguments, 0)..., y);
  };
}
template <class Operation, class T, Arguments A, class... Stream, int... I, int... J>
consteval bool can_backward(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>) {
  return requires(View<const T> y, Stream... stream) {
    Operation::backward(stream..., argument_view<T, A, I>(no_arguments, 0)..., y, y,
                        view_of<T>(no_arguments[J], 0)...);
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

// Stands where a stream would: a function that takes it too takes anything, and is the host's.
struct NoStream {};
// An argument that becomes whatever a function asks for.
struct Whatever {
  template <class V>
  operator V() const;
};

// Whether there is a function for a device of so many arguments behind the stream, of any types.
template <class Operation, class Stream, int... I>
consteval bool takes_forward(std::integer_sequence<int, I...>) {
  return requires(Stream stream, Whatever any) {
    Operation::forward(stream, (static_cast<void>(I), any)...);
  };
}
template <class Operation, class Stream, int... I>
consteval bool takes_backward(std::integer_sequence<int, I...>) {
  return requires(Stream stream, Whatever any) {
    Operation::backward(stream, (static_cast<void>(I), any)...);
  };
}
template <class Operation, int count>
consteval bool takes_stream_with() {
  constexpr std::make_integer_sequence<int, count> arguments;
  return (takes_forward<Operation, CUstream_st*>(arguments) &&
          !takes_forward<Operation, NoStream>(arguments)) ||
         (takes_backward<Operation, CUstream_st*>(arguments) &&
          !takes_backward<Operation, NoStream>(arguments));
}
template <class Operation, int... counts>
consteval bool takes_stream(std::integer_sequence<int, counts...>) {
  return (takes_stream_with<Operation, counts>() || ...);
}

template <class Operation, Arguments A>
inline constexpr bool has_stream_forward =
    can_forward<Operation, float, A, CUstream_st*>(std::make_integer_sequence<int, A.count()>{}) &&
    !can_forward<Operation, float, A, NoStream>(std::make_integer_sequence<int, A.count()>{});
template <class Operation, Arguments A>
inline constexpr bool has_stream_backward =
    can_backward<Operation, float, A, CUstream_st*>(std::make_integer_sequence<int, A.count()>{},
                                                    std::make_integer_sequence<int, A.differentiable()>{}) &&
    !can_backward<Operation, float, A, NoStream>(std::make_integer_sequence<int, A.count()>{},
                                                 std::make_integer_sequence<int, A.differentiable()>{});

/// Whether an operation has both functions for a device.
template <class Operation, Arguments A>
inline constexpr bool is_on_stream = has_stream_forward<Operation, A>&& has_stream_backward<Operation, A>;
/// Whether it has one of them, or some that do not fit. The longest is a `backward` of a view too many.
template <class Operation, Arguments A>
inline constexpr bool is_half_on_stream =
    !is_on_stream<Operation, A> &&
    (has_stream_forward<Operation, A> || has_stream_backward<Operation, A> ||
     takes_stream<Operation>(std::make_integer_sequence<int, 2 * A.count() + 4>{}));

template <class Operation, Arguments A>
consteval StreamCall forward_on_stream() {
  if constexpr (is_on_stream<Operation, A>)
    return call_forward<Operation, float, A, CUstream_st*>;
  else
    return nullptr;
}
template <class Operation, Arguments A>
consteval StreamCall backward_on_stream() {
  if constexpr (is_on_stream<Operation, A>)
    return call_backward<Operation, float, A, CUstream_st*>;
  else
    return nullptr;
}

// A type as a number that ranks compare: of its name, as this compiler spells it.
template <class T>
consteval std::uint64_t identity_of() {
  return hash_of(std::string_view(__PRETTY_FUNCTION__));
}

/// The calls of `Operation` with arguments A, as a constant with an address.
template <class Operation, Arguments A>
inline constexpr CustomCalls custom_calls = {.forward_f32 = call_forward<Operation, float, A>,
                                             .backward_f32 = call_backward<Operation, float, A>,
                                             .forward_f64 = call_forward<Operation, double, A>,
                                             .backward_f64 = call_backward<Operation, double, A>,
                                             .forward_on_stream = forward_on_stream<Operation, A>(),
                                             .backward_on_stream = backward_on_stream<Operation, A>(),
                                             .on_stream = is_on_stream<Operation, A>,
                                             .identity = identity_of<Operation>()};

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
