// Elements: how elements of each type lie in memory and in arithmetic. bf16 and f16 are f32 in arithmetic.
#pragma once

#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::simd {

template <class To, class From>
CONVOY_INLINE void same_bits(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  __builtin_memcpy(&to, &from, sizeof(To));
}

// How W elements of T lie in memory and in arithmetic (Value).
template <class T, int W>
struct Elements {
  using Value = simd::Vec<T, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const T* from) { simd::load(v, from); }
  CONVOY_INLINE static void store(T* to, const Value& v) { simd::store(to, v); }
};

template <int W>
struct Elements<bf16, W> {
  using Value = simd::Vec<float, W>;
  using Wide = simd::Vec<std::uint32_t, W>;
  using Half = simd::Vec<std::uint16_t, W>;
  static constexpr int width = W;
  CONVOY_INLINE static void load(Value& v, const bf16* from) {
    Half half;
    simd::load(half, from);
    Wide wide;
    simd::convert(wide, half);
    wide <<= 16;
    same_bits(v, wide);
  }
  CONVOY_INLINE static void store(bf16* to, const Value& v) {
    Wide wide;
    same_bits(wide, v);
    const Wide rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    const Wide quiet = (wide >> 16) | 0x40u;
    const Wide result = (wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    Half half;
    simd::convert(half, result);
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
