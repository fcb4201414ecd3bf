// The reduction kernel: into[i] = into[i] op from[i], vectorised for the processor at hand; bf16 and f16 are
// added in f32 and rounded once a step.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/comm/operation.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/simd.hpp>

namespace convoy::comm {

/// Combines `count` elements of `from` into `into`; a sum is then multiplied by `scale` unless it is 1
/// (mean's last step).
using Reduce = void (*)(void* into, const void* from, std::int64_t count, float scale);

/// What to do with the elements that meet, as a value. It is made where element type and operation are known
/// (`reduction<float>(sum)`), so that a program holds the loops that it uses and no others. A
/// default-constructed one is for bytes that only move.
struct Reduction {
  Reduce loop = nullptr;
  DType type = DType::u8;
  Op op = Op::sum;
};

namespace detail {

template <class To, class From>
CONVOY_INLINE void same_bits(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  __builtin_memcpy(&to, &from, sizeof(To));
}

// How W elements of T lie in memory (Memory) and in arithmetic (Value).
template <class T, int W>
struct Lanes {
  using Value = simd::Vec<T, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const T* from) { simd::load(v, from); }
  CONVOY_INLINE static void store(T* to, const Value& v) { simd::store(to, v); }
};

template <int W>
struct Lanes<bf16, W> {
  using Value = simd::Vec<float, W>;
  using Wide = simd::Vec<std::uint32_t, W>;
  using Half = simd::Vec<std::uint16_t, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const bf16* from) {
    Half half;
    simd::load(half, from);
    const Wide wide = __builtin_convertvector(half, Wide) << 16;
    same_bits(v, wide);
  }
  CONVOY_INLINE static void store(bf16* to, const Value& v) {
    Wide wide;
    same_bits(wide, v);
    const Wide rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    const Wide quiet = (wide >> 16) | 0x40u;
    const Wide result = (wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    const Half half = __builtin_convertvector(result, Half);
    simd::store(to, half);
  }
};

template <int W>
struct Lanes<f16, W> {
  using Value = simd::Vec<float, W>;
  using Wide = simd::Vec<std::uint32_t, W>;
  using Half = simd::Vec<std::uint16_t, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const f16* from) {
    Half half;
    simd::load(half, from);
    const Wide wide = __builtin_convertvector(half, Wide);
    const Wide sign = (wide & 0x8000u) << 16, magnitude = (wide & 0x7fffu) << 13;
    // Multiplying by 2^112 moves the exponent's bias from 15 to 127 and makes subnormals normal.
    Value value;
    same_bits(value, magnitude);
    value *= 0x1p112f;
    Wide bits;
    same_bits(bits, value);
    bits = (magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : bits) | sign;
    same_bits(v, bits);
  }
  CONVOY_INLINE static void store(f16* to, const Value& v) {
    Wide wide;
    same_bits(wide, v);
    const Wide sign = (wide >> 16) & 0x8000u, magnitude = wide & 0x7fffffffu;
    Value tiny;
    same_bits(tiny, magnitude);
    tiny += 0.5f;  // aligns the significand: the hardware's rounding yields the subnormal's bits
    Wide subnormal;
    same_bits(subnormal, tiny);
    subnormal -= 0x3f000000u;
    const Wide normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    Wide result = magnitude >= 0x38800000u ? normal : subnormal;
    const Wide infinity = Wide{} + 0x7c00u, nan = Wide{} + 0x7e00u;
    result = magnitude >= 0x477ff000u ? infinity : result;
    result = magnitude > 0x7f800000u ? nan : result;
    const Half half = __builtin_convertvector(result | sign, Half);
    simd::store(to, half);
  }
};

template <Op op, class V>
CONVOY_INLINE void combine(V& a, const V& b) {
  if constexpr (op == Op::sum)
    a = a + b;
  else if constexpr (op == Op::min)
    a = ((b < a) | (b != b)) ? b : a;
  else
    a = ((b > a) | (b != b)) ? b : a;
}

template <class T, Op op>
struct ReduceLoop {
  static constexpr bool scales = op == Op::sum && !std::is_same_v<T, i32>;

  // Widths are counted in 4-byte elements: half of them for f64.
  template <int W>
  CONVOY_INLINE static void run(T* into, const T* from, std::int64_t count, float scale) {
    using Lane = Lanes<T, (sizeof(T) == 8 ? W / 2 : W)>;
    constexpr std::int64_t width = Lane::width;
    std::int64_t i = 0;
    if (scales && scale != 1.0f) {
      for (; i + width <= count; i += width) one<Lane, true>(into + i, from + i, scale);
    } else {
      for (; i + 4 * width <= count; i += 4 * width)
        for (int k = 0; k < 4; ++k) one<Lane, false>(into + i + k * width, from + i + k * width, scale);
      for (; i + width <= count; i += width) one<Lane, false>(into + i, from + i, scale);
    }
    if (i == count) return;
    // The rest goes through padded copies: the same arithmetic, and no read past the end.
    T a[width] = {}, b[width] = {};
    const std::size_t bytes = static_cast<std::size_t>(count - i) * sizeof(T);
    __builtin_memcpy(static_cast<void*>(a), into + i, bytes);
    __builtin_memcpy(static_cast<void*>(b), from + i, bytes);
    if (scales && scale != 1.0f)
      one<Lane, true>(a, b, scale);
    else
      one<Lane, false>(a, b, scale);
    __builtin_memcpy(static_cast<void*>(into + i), a, bytes);
  }

 private:
  template <class Lane, bool scaled>
  CONVOY_INLINE static void one(T* into, const T* from, float scale) {
    typename Lane::Value a, b;
    Lane::load(a, into);
    Lane::load(b, from);
    if constexpr (std::is_same_v<T, i32> && op == Op::sum) {
      // Wrap-around, as MPI_SUM does in practice, instead of undefined behaviour.
      simd::Vec<std::uint32_t, Lane::width> x, y;
      same_bits(x, a);
      same_bits(y, b);
      x = x + y;
      same_bits(a, x);
    } else {
      combine<op>(a, b);
    }
    if constexpr (scaled && scales) a = a * scale;
    Lane::store(into, a);
  }
};

template <class T, Op op>
void reduce_with(void* into, const void* from, std::int64_t count, float scale) {
  simd::run<ReduceLoop<T, op>>(static_cast<T*>(into), static_cast<const T*>(from), count, scale);
}

}  // namespace detail

/// The reduction of elements of type `E` by `sum`, `mean`, `min` or `max`.
template <class E, OperationTag O>
constexpr Reduction reduction(O) {
  if constexpr (reducible<E, O>()) {
    // A mean is a sum that is scaled where it completes: one loop serves both.
    constexpr Op op = O::value == Op::mean ? Op::sum : O::value;
    return {&detail::reduce_with<E, op>, dtype_of<E>, O::value};
  } else {
    return {};
  }
}

}  // namespace convoy::comm
