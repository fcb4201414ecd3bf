// Vector functions: the exponential and functions built on it.
#pragma once

#include <convoy/parallel/simd.hpp>

namespace convoy::exec::host {

/// x = e^x for x <= 0 (x below -87 counts as -87), to 2 units in the last place: Cephes' polynomial after
/// reduction by ln 2 in two parts. NaN stays NaN.
template <class V>
CONVOY_INLINE void exponential(V& x) {
  x = x < -87.0f ? V{} - 87.0f : x;
  using Ints = decltype(x < x);
  constexpr float round =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  V biased = x * 1.44269504088896341f + round;
  simd::settle(biased);
  const V n = biased - round;
  V r = x - n * 0.693359375f;
  simd::settle(r);  // the two parts of ln 2 stay apart
  r = r - n * -2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints power = (reinterpret_cast<Ints>(biased) + (127 - 0x4b400000)) << 23;
  x = p * reinterpret_cast<V>(power);
}

/// x = 1 / (1 + e^-x), to a relative error of a few units in the last place for x down to -87.
template <class V>
CONVOY_INLINE void logistic(V& x) {
  V e = x < V{} ? x : -x;
  exponential(e);
  x = (x < V{} ? e : V{} + 1.0f) / (e + 1.0f);
}

/// x = tanh(x): Cephes' polynomial near zero, where the quotient of exponentials would cancel.
template <class V>
CONVOY_INLINE void hyperbolic_tangent(V& x) {
  const V size = x < V{} ? -x : x;
  const V square = x * x;
  V near = square * -5.70498872745e-3f + 2.06390887954e-2f;
  near = near * square - 5.37397155531e-2f;
  near = near * square + 1.33314422036e-1f;
  near = near * square - 3.33332819422e-1f;
  near = near * square * x + x;
  V e = size * -2.0f;
  exponential(e);
  const V far = (1.0f - e) / (e + 1.0f);
  x = size < 0.625f ? near : (x < V{} ? -far : far);
}

}  // namespace convoy::exec::host
