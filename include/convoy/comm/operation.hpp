// The operations that combine the ranks' values (sum, mean, min, max), and which element types each is
// defined on.
#pragma once

#include <string_view>
#include <type_traits>

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
};

inline constexpr Operation<Op::sum> sum{};
inline constexpr Operation<Op::mean>
    mean{};  ///< the sum divided by the number of ranks, once, by the rank that completes the sum
inline constexpr Operation<Op::min> min{};  ///< a NaN in any rank gives NaN
inline constexpr Operation<Op::max> max{};  ///< a NaN in any rank gives NaN

template <class O>
concept OperationTag = std::is_same_v<O, Operation<O::value>>;

/// Rejects, in one sentence at compile time, what the reduction kernel does not compute.
template <class T, OperationTag O>
consteval bool reducible() {
  constexpr bool known = std::is_same_v<T, f32> || std::is_same_v<T, f64> || std::is_same_v<T, bf16> ||
                         std::is_same_v<T, f16> || std::is_same_v<T, i32>;
  static_assert(known, "convoy: this element type cannot be reduced; use f32, f64, bf16, f16 or i32");
  static_assert(!(std::is_same_v<T, i32> && O::value == Op::mean),
                "convoy: the mean of i32 is not defined; use sum, min or max, or reduce f32 or f64");
  return known;
}

}  // namespace convoy::comm
