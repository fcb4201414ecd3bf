// The element types: f32, f64, bf16, f16, i32, u8, and the tags that name them in tables.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace convoy {

// Declared before the types of the same names: otherwise g++ warns that the enumerators shadow them.
enum class DType : unsigned char { f32, f64, bf16, f16, i32, u8 };

using f32 = float;
using f64 = double;
using i32 = std::int32_t;
using u8 = std::uint8_t;

/// bfloat16: the upper half of a float, rounded to nearest even; NaN stays NaN.
struct bf16 {
  std::uint16_t bits = 0;

  constexpr bf16() = default;
  constexpr explicit bf16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    bits = (wide & 0x7fffffffu) > 0x7f800000u
               ? static_cast<std::uint16_t>((wide >> 16) | 0x40u)
               : static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend constexpr bool operator==(const bf16&, const bf16&) = default;
};

/// IEEE 754 binary16, rounded to nearest even, subnormals kept; overflow gives infinity.
struct f16 {
  std::uint16_t bits = 0;

  constexpr f16() = default;
  constexpr explicit f16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((wide >> 16) & 0x8000u);
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7c00u);
    } else if (magnitude >= 0x38800000u) {
      const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
      bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
    } else {
      // Adding 0.5 aligns the significand so that the hardware's own rounding yields the subnormal's bits.
      const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u));
    }
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t fraction = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float subnormal = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -subnormal : subnormal;
  }
  friend constexpr bool operator==(const f16&, const f16&) = default;
};

/// Bytes of one element.
constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
  }
  return "?";
}

/// The tag of an element type: `dtype_of<float> == DType::f32`.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "convoy: this element type has no DType; use f32, f64, bf16, f16, i32 or u8");
  return DType{};
}();
template <>
inline constexpr DType dtype_of<f32> = DType::f32;
template <>
inline constexpr DType dtype_of<f64> = DType::f64;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<i32> = DType::i32;
template <>
inline constexpr DType dtype_of<u8> = DType::u8;

/// Whether a type is an element type, so that `dtype_of` has its tag.
template <class T>
inline constexpr bool has_dtype =
    std::is_same_v<T, f32> || std::is_same_v<T, f64> || std::is_same_v<T, bf16> || std::is_same_v<T, f16> ||
    std::is_same_v<T, i32> || std::is_same_v<T, u8>;

}  // namespace convoy
