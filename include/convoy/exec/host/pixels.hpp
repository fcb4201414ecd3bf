// Pixels: pointers to image values in f32 or bf16.
#pragma once

#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/parallel/elements.hpp>

namespace convoy::exec::host {

/// Image values in memory; null by default.
struct Pixels {
  void* data = nullptr;
  bool narrow = false;  ///< bf16, else f32

  explicit operator bool() const { return data != nullptr; }
};

/// Loads the vector at element `at`. With `narrow` false the values are f32, and nothing is checked at run
/// time.
template <bool narrow, class V>
CONVOY_INLINE void load(V& v, const Pixels& from, std::int64_t at) {
  constexpr int width = sizeof(V) / sizeof(float);
  if constexpr (narrow)
    if (from.narrow) return simd::Elements<bf16, width>::load(v, static_cast<const bf16*>(from.data) + at);
  simd::load(v, static_cast<const float*>(from.data) + at);
}

template <bool narrow, class V>
CONVOY_INLINE void store(const Pixels& to, std::int64_t at, const V& v) {
  constexpr int width = sizeof(V) / sizeof(float);
  if constexpr (narrow)
    if (to.narrow) return simd::Elements<bf16, width>::store(static_cast<bf16*>(to.data) + at, v);
  simd::store(static_cast<float*>(to.data) + at, v);
}

}  // namespace convoy::exec::host
