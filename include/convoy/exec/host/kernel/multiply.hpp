// Elementwise multiplication. Buffers of one shape and layout have their elements in the same order.
#pragma once

#include <cstdint>

#include <convoy/exec/host/kernel/elementwise.hpp>

namespace convoy::exec::host {

/// y (+)= (a + second) * b; `second` may be null.
struct MultiplyLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const float* a, const float* second,
                                const float* b, float* y, bool accumulate) {
    CONVOY_FOR_VECTORS(W, begin, end, {
      V v, other;
      simd::load(v, a + i);
      if (second != nullptr) {
        simd::load(other, second + i);
        v += other;
      }
      simd::load(other, b + i);
      v *= other;
      if (accumulate) {
        simd::load(other, y + i);
        v += other;
      }
      simd::store(y + i, v);
    })
  }
};

}  // namespace convoy::exec::host
