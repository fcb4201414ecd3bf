// Shared parts of the engine's elementwise loops.
#pragma once

#include <cstdint>
#include <type_traits>

#include <convoy/comm/operation.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/parallel/elements.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm::detail {

using simd::Elements;
using simd::same_bits;

// The type of a factor for values of T: the type that T is computed in.
template <class T>
using Factor = std::conditional_t<std::is_same_v<T, f64>, f64, f32>;

// How many elements of T a loop takes at once where a vector has W floats: half as many for f64. GCC 12
// splits comparisons of 64 bytes into single elements, so min and max stay at 32 bytes.
template <class T, Op op, int W>
inline constexpr int at_once = (op == Op::sum || W < 8 ? W : 8) / (sizeof(T) == 8 ? 2 : 1);

// Combines vectors of T. Sums of i32 wrap around, as those of MPI_SUM do in practice: overflow of signed
// integers would be undefined.
template <class T, Op op, class V>
CONVOY_INLINE void combine(V& a, const V& b) {
  if constexpr (op == Op::sum && std::is_same_v<T, i32>) {
    simd::Vec<std::uint32_t, static_cast<int>(sizeof(V) / sizeof(T))> x, y;
    same_bits(x, a);
    same_bits(y, b);
    x = x + y;
    same_bits(a, x);
  } else if constexpr (op == Op::sum) {
    a = a + b;
  } else if constexpr (op == Op::min) {
    a = ((b < a) | (b != b)) ? b : a;
  } else {
    a = ((b > a) | (b != b)) ? b : a;
  }
}

}  // namespace convoy::comm::detail
