// Custom operations, losses and metrics: user types whose functions the plan stores as pointers.
//
// An operation is a type with
//     static constexpr Shape shape(Shape x, ...);       // of the output, from those of the arguments
//     static void forward(View<const T> x, ..., View<T> y);       // T is float or double
//     static void backward(View<const T> x, ..., View<const T> y, View<const T> dy, View<T> dx, ...);
// The views hold a whole batch in plain layout (row after row), and `backward` overwrites every dx. The
// arguments are values, then optionally a label, then parameters. A label is passed as View<const i32> and
// has no dx; a parameter is passed as a view of a single row. A loss is the same without `shape` and yields
// one number per row.
//
// exec::Reference and exec::Host need nothing more. exec::Cuda also needs two device functions:
//     static void forward(cudaStream_t, View<const float> x, ..., View<float> y);
//     static void backward(cudaStream_t, View<const float> x, ..., View<const float> y, View<const float> dy,
//                          View<float> dx, ...);
// They enqueue work on the stream, such as the user's own kernels, over views of device memory. The views are
// in plain layout and of float for every precision of the Exec; a label is View<const i32>. A kernel may take
// views as arguments. Declare the two functions in a header, so that every source file sees the same type;
// they may be defined in a source file that nvcc compiles. Programs that train on the host alone link that
// file too. The second run of a pass is captured as a CUDA graph, which is replayed from then on; the
// functions are not called again. They must therefore not allocate memory, wait for the device, or copy to or
// from pageable host memory, and the work they enqueue must not depend on host data that varies from step to
// step.
//
// A metric is a type with
//     static double measure(View<const float> x, ...);            // the sum over the rows of the batch
// It is called on the host. exec::Cuda copies the arguments there, unless the type also has the device
// function
//     static void measure(cudaStream_t, View<const float> x, ..., View<float> y);
// which is subject to the rules above and writes a number for each row. The Exec adds these up on the device,
// in f64 and in a fixed order.
//
// A model's `define` passes an object of the type: `x = g.custom(Swish{}, x, beta)`,
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

/// A batch of tensors in plain layout: `rows` times `shape.size()` elements. A kernel may take a View as an
/// argument and call every member except `row`.
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
  /// The elements of one sample. Host only, as is std::span.
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

/// One type-erased argument of a custom call.
struct Argument {
  void* data = nullptr;
  Shape shape;
};

template <class T>
using CustomCall = void (*)(const Argument* inputs, const Argument* outputs, int rows);
/// The same for float arguments in device memory.
using StreamCall = void (*)(const Argument* inputs, const Argument* outputs, int rows, CUstream_st* stream);
using MetricCall = double (*)(const Argument* inputs, int rows);

/// The functions of one custom operation. The inputs of `forward` are the arguments and its output is y. The
/// inputs of `backward` are the arguments, y and dy; its outputs are a gradient for each argument, with null
/// data for a label. The stream functions are null if the operation has no device functions.
struct CustomCalls {
  CustomCall<float> forward_f32 = nullptr, backward_f32 = nullptr;
  CustomCall<double> forward_f64 = nullptr, backward_f64 = nullptr;
  StreamCall forward_on_stream = nullptr, backward_on_stream = nullptr;
  bool on_stream = false;      ///< whether the two stream functions exist
  std::uint64_t identity = 0;  ///< of the type; compared between ranks

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

/// The number and kinds of a custom operation's arguments.
struct Arguments {
  int inputs = 0, parameters = 0;
  int label = -1;  ///< the index of the label, which is the last input; -1: none
  bool ordered = true;
  constexpr int count() const { return inputs + parameters; }
  /// The number of arguments that have a gradient.
  constexpr int differentiable() const { return count() - (label >= 0 ? 1 : 0); }
  constexpr int with_gradient(int j) const { return label >= 0 && j >= label ? j + 1 : j; }
  constexpr int rows(int i, int batch) const { return i < inputs ? batch : 1; }
};

template <class T, Arguments A, int Index>
auto argument_view(const Argument* arguments, int rows) {
  if constexpr (Index == A.label)
    return view_of<const i32>(arguments[Index], rows);
  else
    return view_of<const T>(arguments[Index], A.rows(Index, rows));
}

template <class Operation, class T, Arguments A, class... Stream>
void call_forward(const Argument* in, const Argument* out, int rows, Stream... stream) {
  [&]<int... Index>(std::integer_sequence<int, Index...>) {
    Operation::forward(stream..., argument_view<T, A, Index>(in, rows)..., view_of<T>(out[0], rows));
  }
  (std::make_integer_sequence<int, A.count()>{});
}

template <class Operation, class T, Arguments A, class... Stream>
void call_backward(const Argument* in, const Argument* out, int rows, Stream... stream) {
  const auto y = view_of<const T>(in[A.count()], rows);
  const auto dy = view_of<const T>(in[A.count() + 1], rows);
  [&]<int... Index, int... Gradient>(std::integer_sequence<int, Index...>,
                                     std::integer_sequence<int, Gradient...>) {
    Operation::backward(
        stream..., argument_view<T, A, Index>(in, rows)..., y, dy,
        view_of<T>(out[A.with_gradient(Gradient)], A.rows(A.with_gradient(Gradient), rows))...);
  }
  (std::make_integer_sequence<int, A.count()>{}, std::make_integer_sequence<int, A.differentiable()>{});
}

inline constexpr const Argument* no_arguments = nullptr;

// Whether an operation's functions accept the arguments they will be called with. The arguments are
// parameters of the requires-expression: with parameters of the enclosing function, nvcc considers every call
// valid.
template <class Operation, class T, Arguments A, class... Stream, int... Index>
consteval bool can_forward(std::integer_sequence<int, Index...>) {
  return requires(View<T> y, Stream... stream) {
    Operation::forward(stream..., argument_view<T, A, Index>(no_arguments, 0)..., y);
  };
}
template <class Operation, class T, Arguments A, class... Stream, int... Index, int... Gradient>
consteval bool can_backward(std::integer_sequence<int, Index...>, std::integer_sequence<int, Gradient...>) {
  return requires(View<const T> y, Stream... stream) {
    Operation::backward(stream..., argument_view<T, A, Index>(no_arguments, 0)..., y, y,
                        view_of<T>(no_arguments[Gradient], 0)...);
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

// Passed in place of a stream: a function that also accepts NoStream accepts anything there, so it is a host
// function.
struct NoStream {};
// An argument that converts to any parameter type.
struct Whatever {
  template <class V>
  operator V() const;
};

// Whether there is a device function with this number of arguments, of any types, after the stream.
template <class Operation, class Stream, int... Index>
consteval bool takes_forward(std::integer_sequence<int, Index...>) {
  return requires(Stream stream, Whatever any) {
    Operation::forward(stream, (static_cast<void>(Index), any)...);
  };
}
template <class Operation, class Stream, int... Index>
consteval bool takes_backward(std::integer_sequence<int, Index...>) {
  return requires(Stream stream, Whatever any) {
    Operation::backward(stream, (static_cast<void>(Index), any)...);
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

/// Whether an operation has both device functions.
template <class Operation, Arguments A>
inline constexpr bool is_on_stream = requires {
  requires has_stream_forward<Operation, A>;
  requires has_stream_backward<Operation, A>;
};
/// Whether an operation has only one device function, or device functions with wrong arguments. The longest
/// signature tried is a `backward` with one view too many.
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

// The hash of a type's name as this compiler spells it; compared between ranks.
template <class T>
consteval std::uint64_t identity_of() {
  return hash_of(std::string_view(__PRETTY_FUNCTION__));
}

/// The functions of `Operation` for arguments A, as a constant with an address.
template <class Operation, Arguments A>
inline constexpr CustomCalls custom_calls = {.forward_f32 = call_forward<Operation, float, A>,
                                             .backward_f32 = call_backward<Operation, float, A>,
                                             .forward_f64 = call_forward<Operation, double, A>,
                                             .backward_f64 = call_backward<Operation, double, A>,
                                             .forward_on_stream = forward_on_stream<Operation, A>(),
                                             .backward_on_stream = backward_on_stream<Operation, A>(),
                                             .on_stream = is_on_stream<Operation, A>,
                                             .identity = identity_of<Operation>()};

template <class Measure, Arguments A, int... Index>
consteval bool can_measure(std::integer_sequence<int, Index...>) {
  return requires {
    { Measure::measure(argument_view<float, A, Index>(no_arguments, 0)...) } -> std::convertible_to<double>;
  };
}
template <class Measure, Arguments A>
inline constexpr bool has_measure = can_measure<Measure, A>(std::make_integer_sequence<int, A.count()>{});

template <class Measure, Arguments A, class Stream, int... Index>
consteval bool can_measure_rows(std::integer_sequence<int, Index...>) {
  return requires(View<float> y, Stream stream) {
    Measure::measure(stream, argument_view<float, A, Index>(no_arguments, 0)..., y);
  };
}
template <class Measure, class Stream, int... Index>
consteval bool takes_measure(std::integer_sequence<int, Index...>) {
  return requires(Stream stream, Whatever any) {
    Measure::measure(stream, (static_cast<void>(Index), any)...);
  };
}
template <class Measure, int... counts>
consteval bool measures_on_stream_with_any(std::integer_sequence<int, counts...>) {
  return ((takes_measure<Measure, CUstream_st*>(std::make_integer_sequence<int, counts>{}) &&
           !takes_measure<Measure, NoStream>(std::make_integer_sequence<int, counts>{})) ||
          ...);
}
/// Whether a metric has a device function.
template <class Measure, Arguments A>
inline constexpr bool measures_on_stream =
    can_measure_rows<Measure, A, CUstream_st*>(std::make_integer_sequence<int, A.count()>{}) &&
    !can_measure_rows<Measure, A, NoStream>(std::make_integer_sequence<int, A.count()>{});
/// Whether a metric has a device function with wrong arguments, which are at most one view too many.
template <class Measure, Arguments A>
inline constexpr bool measures_wrongly_on_stream =
    !measures_on_stream<Measure, A> &&
    measures_on_stream_with_any<Measure>(std::make_integer_sequence<int, A.count() + 3>{});

template <class Measure, Arguments A>
void call_measure(const Argument* in, const Argument* out, int rows, CUstream_st* stream) {
  [&]<int... Index>(std::integer_sequence<int, Index...>) {
    Measure::measure(stream, argument_view<float, A, Index>(in, rows)..., view_of<float>(out[0], rows));
  }
  (std::make_integer_sequence<int, A.count()>{});
}
/// The device function of a metric, whose output is a number for each row; null if it has none.
template <class Measure, Arguments A>
consteval StreamCall metric_on_stream() {
  if constexpr (measures_on_stream<Measure, A>)
    return call_measure<Measure, A>;
  else
    return nullptr;
}

template <class Measure, Arguments A>
inline constexpr MetricCall metric_call = [](const Argument* inputs, int rows) -> double {
  return [&]<int... Index>(std::integer_sequence<int, Index...>) {
    return Measure::measure(argument_view<float, A, Index>(inputs, rows)...);
  }
  (std::make_integer_sequence<int, A.count()>{});
};

}  // namespace graph
}  // namespace convoy
