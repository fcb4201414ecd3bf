// Elements: the form of each element type in memory and in arithmetic. bf16 and f16 are f32 in arithmetic.
#pragma once

#include <cstdint>
#include <utility>

#include <convoy/core/dtype.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::simd {

template <class To, class From>
CONVOY_INLINE void same_bits(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  __builtin_memcpy(&to, &from, sizeof(To));
}

/// Each element of `to` gets the bits of `half` in its upper half, and zeros in its lower half. For vectors
/// of 64 bytes g++ 12 takes six instructions to convert and two to shuffle.
template <class To, class Half>
CONVOY_INLINE void into_upper_halves(To& to, const Half& half) {
  constexpr int count = sizeof(To) / 4;
#if defined(__CUDACC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
  Vec<std::uint32_t, count> wide;
  convert(wide, half);
  wide <<= 16;
  same_bits(to, wide);
#else
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    const Vec<std::uint16_t, 2 * count> both =
        __builtin_shufflevector(Half{}, half, (i % 2 == 0 ? i / 2 : count + i / 2)...);
    same_bits(to, both);
  }
  (std::make_integer_sequence<int, 2 * count>{});
#endif
}

/// The upper half of the bits of each element.
template <class Half, class From>
CONVOY_INLINE void upper_halves_of(Half& half, const From& from) {
  constexpr int count = sizeof(From) / 4;
#if defined(__CUDACC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
  Vec<std::uint32_t, count> wide;
  same_bits(wide, from);
  wide >>= 16;
  convert(half, wide);
#else
  Vec<std::uint16_t, 2 * count> both;
  same_bits(both, from);
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    half = __builtin_shufflevector(both, both, (2 * i + 1)...);
  }
  (std::make_integer_sequence<int, count>{});
#endif
}

// The form of W elements of T in memory and in arithmetic (Value).
template <class T, int W>
struct Elements {
  using Value = simd::Vec<T, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const T* from) { simd::load(v, from); }
  CONVOY_INLINE static void store(T* to, const Value& v) { simd::store(to, v); }
};

// A bf16 is the upper half of a float.
template <int W>
struct Elements<bf16, W> {
  using Value = simd::Vec<float, W>;
  using Wide = simd::Vec<std::uint32_t, W>;
  using Half = simd::Vec<std::uint16_t, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const bf16* from) {
    Half half;
    simd::load(half, from);
    simd::into_upper_halves(v, half);
  }
  CONVOY_INLINE static void store(bf16* to, const Value& v) {
    Wide wide;
    same_bits(wide, v);
    const Wide rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    const Wide quiet = wide | 0x400000u;
    const Wide result = (wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    Half half;
    simd::upper_halves_of(half, result);
    simd::store(to, half);
  }
};

template <int W>
struct Elements<f16, W> {
  using Value = simd::Vec<float, W>;
  using Wide = simd::Vec<std::uint32_t, W>;
  using Half = simd::Vec<std::uint16_t, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const f16* from) {
    Half half;
    simd::load(half, from);
    Wide wide;
    simd::convert(wide, half);
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
    Half half;
    result |= sign;
    simd::convert(half, result);
    simd::store(to, half);
  }
};

}  // namespace convoy::simd
