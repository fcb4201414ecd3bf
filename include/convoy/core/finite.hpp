// is_finite and is_nan: std::isfinite and std::isnan that also work in programs compiled with -ffast-math.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <convoy/core/hd.hpp>

namespace convoy {

namespace detail {

template <class T>
struct FloatBits;
template <>
struct FloatBits<float> {
  using Type = std::uint32_t;
  static constexpr Type infinity = 0x7f800000;
};
template <>
struct FloatBits<double> {
  using Type = std::uint64_t;
  static constexpr Type infinity = 0x7ff0000000000000;
};

/// The bits of |value|: those of numbers are below those of infinity, those of NaN above.
template <class T>
CONVOY_HD constexpr typename FloatBits<T>::Type bits_of_magnitude(T value) {
  auto bits = std::bit_cast<typename FloatBits<T>::Type>(value);
#ifndef __CUDA_ARCH__
  // With -ffinite-math-only, a compiler that sees where the bits come from may assume that they are finite.
  if (!std::is_constant_evaluated()) asm("" : "+r"(bits));
#endif
  return bits << 1 >> 1;
}

}  // namespace detail

/// Whether `value`, a float or double, is neither an infinity nor NaN.
template <class T>
CONVOY_HD constexpr bool is_finite(T value) {
  return detail::bits_of_magnitude(value) < detail::FloatBits<T>::infinity;
}

/// Whether `value`, a float or double, is NaN.
template <class T>
CONVOY_HD constexpr bool is_nan(T value) {
  return detail::bits_of_magnitude(value) > detail::FloatBits<T>::infinity;
}

}  // namespace convoy
