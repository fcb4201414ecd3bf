// The operations that combine the ranks' values (sum, mean, min, max), and which element types each is
// defined on.
#pragma once

#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <convoy/core/dtype.hpp>

namespace convoy::comm {

enum class Op : unsigned char { sum, mean, min, max };

constexpr std::string_view name_of(Op op) {
  switch (op) {
    case Op::sum:
      return "sum";
    case Op::mean:
      return "mean";
    case Op::min:
      return "min";
    case Op::max:
      return "max";
  }
  return "?";
}

/// An operation as a type, so that an unsupported combination does not compile.
template <Op op>
struct Operation {
  static constexpr Op value = op;
  constexpr operator Op() const { return op; }
};

inline constexpr Operation<Op::sum> sum{};
inline constexpr Operation<Op::mean>
    mean{};  ///< the sum divided by the number of ranks, once, by the rank that completes the sum
inline constexpr Operation<Op::min> min{};  ///< a NaN in any rank gives NaN
inline constexpr Operation<Op::max> max{};  ///< a NaN in any rank gives NaN

/// An operation known at compile time, such as `comm::sum`, or at run time only, an Op.
template <class O>
concept OperationTag = std::is_same_v<O, Op> || std::is_same_v<O, Operation<O::value>>;

/// Elements next to each other in memory: a span of any extent, a vector, an array, a Buffer. Of temporaries
/// only spans, since an operation may outlast the call that begins it.
template <class R>
concept Contiguous = requires(R&& values) {
  std::span(std::forward<R>(values));
};

/// These elements as a span.
template <Contiguous R>
constexpr auto span_of(R&& values) {
  using Element = typename decltype(std::span(std::forward<R>(values)))::element_type;
  static_assert(!std::is_const_v<Element>, "convoy: an exchange writes to the elements that it is given");
  if constexpr (std::is_const_v<Element>)
    return std::span<std::remove_const_t<Element>>();  // no second error
  else
    return std::span<Element>(std::forward<R>(values));
}

/// The type of these elements.
template <Contiguous R>
using element_of = typename decltype(span_of(std::declval<R>()))::element_type;

/// Rejects, in one sentence at compile time, what the reduction kernel does not compute.
template <class T, OperationTag O>
consteval bool reducible() {
  constexpr bool known = std::is_same_v<T, f32> || std::is_same_v<T, f64> || std::is_same_v<T, bf16> ||
                         std::is_same_v<T, f16> || std::is_same_v<T, i32>;
  static_assert(known, "convoy: this element type cannot be reduced; use f32, f64, bf16, f16 or i32");
  if constexpr (!std::is_same_v<O, Op>)
    static_assert(!(std::is_same_v<T, i32> && O::value == Op::mean),
                  "convoy: the mean of i32 is not defined; use sum, min or max, or reduce f32 or f64");
  return known;
}

}  // namespace convoy::comm
