// Elements of the emulated libraries' tensors and matrices: read as floats, rounded to their type on writing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/core/dtype.hpp>

namespace emulation {

using convoy::DType;

inline float element(DType type, const void* from, std::int64_t index) {
  switch (type) {
    case DType::bf16:
      return static_cast<float>(static_cast<const convoy::bf16*>(from)[index]);
    case DType::f16:
      return static_cast<float>(static_cast<const convoy::f16*>(from)[index]);
    case DType::u8:
      return static_cast<float>(static_cast<const convoy::u8*>(from)[index]);
    case DType::i32:
      return static_cast<float>(static_cast<const convoy::i32*>(from)[index]);
    default:
      return static_cast<const float*>(from)[index];
  }
}

inline void set_element(DType type, void* to, std::int64_t index, float value) {
  switch (type) {
    case DType::bf16:
      static_cast<convoy::bf16*>(to)[index] = convoy::bf16(value);
      break;
    case DType::f16:
      static_cast<convoy::f16*>(to)[index] = convoy::f16(value);
      break;
    case DType::u8:
      static_cast<convoy::u8*>(to)[index] = static_cast<convoy::u8>(value);
      break;
    case DType::i32:
      static_cast<convoy::i32*>(to)[index] = static_cast<convoy::i32>(value);
      break;
    default:
      static_cast<float*>(to)[index] = value;
  }
}

/// `value` rounded to a type.
inline float rounded(DType type, float value) {
  float there = 0;
  set_element(type, &there, 0, value);
  return element(type, &there, 0);
}

/// A f32 factor rounded to TF32, as tensor cores round it: ten bits of fraction.
inline float as_tf32(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000u) & 0xffffe000u);
}

}  // namespace emulation
