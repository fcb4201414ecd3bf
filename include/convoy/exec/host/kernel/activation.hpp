// Activations: a smooth function of each element, and its derivative. Buffers of one shape and layout have
// their elements in the same order, so the loops need not know the layout.
#pragma once

#include <cstdint>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/kernel/functions.hpp>

namespace convoy::exec::host {

/// y = F(x). A function has `apply` and `slope` (its derivative), both in place, and `of_output`: whether
/// `slope` is a function of y rather than of x.
template <class F>
struct ApplyLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const float* x, float* y) {
    CONVOY_FOR_VECTORS(W, begin, end, {
      V v;
      simd::load(v, x + i);
      F::apply(v);
      simd::store(y + i, v);
    })
  }
};

/// dx = g or dx += g with g = (dy + second) * slope; `at` is the argument of the slope, x or y.
template <class F>
struct SlopeLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const float* dy, const float* second,
                                const float* at, float* dx, bool accumulate) {
    CONVOY_FOR_VECTORS(W, begin, end, {
      V g, slope, other;
      simd::load(g, dy + i);
      if (second != nullptr) {
        simd::load(other, second + i);
        g += other;
      }
      simd::load(slope, at + i);
      F::slope(slope);
      g *= slope;
      if (accumulate) {
        simd::load(other, dx + i);
        g += other;
      }
      simd::store(dx + i, g);
    })
  }
};

/// GELU: x times the standard normal distribution function at x, whose upper tail is by Abramowitz and
/// Stegun, 7.1.26, to 1.5e-7.
struct GeluErf {
  static constexpr bool of_output = false;
  template <class V>
  CONVOY_INLINE static void below(const V& x, V& chance, V& density) {
    const V size = (x < V{} ? -x : x) * 0.707106781186547524f;
    density = -size * size;
    exponential(density);
    const V t = 1.0f / (size * 0.3275911f + 1.0f);
    V tail = t * 1.061405429f - 1.453152027f;
    tail = tail * t + 1.421413741f;
    tail = tail * t - 0.284496736f;
    tail = tail * t + 0.254829592f;
    tail = tail * t * density * 0.5f;
    chance = x < V{} ? tail : 1.0f - tail;
    density *= 0.398942280401432678f;
  }
  template <class V>
  CONVOY_INLINE static void apply(V& x) {
    V chance, density;
    below(x, chance, density);
    x *= chance;
  }
  template <class V>
  CONVOY_INLINE static void slope(V& x) {
    V chance, density;
    below(x, chance, density);
    x = chance + x * density;
  }
};

/// GELU with the distribution function approximated by (1 + tanh(u)) / 2 = 1 / (1 + e^-2u).
struct GeluTanh {
  static constexpr bool of_output = false;
  static constexpr float twice_root = 1.59576912160573071f, cubic = 0.044715f;
  template <class V>
  CONVOY_INLINE static void apply(V& x) {
    V chance = x * (x * x * cubic + 1.0f) * twice_root;
    logistic(chance);
    x *= chance;
  }
  template <class V>
  CONVOY_INLINE static void slope(V& x) {
    V chance = x * (x * x * cubic + 1.0f) * twice_root;
    logistic(chance);
    x = chance + x * chance * (1.0f - chance) * twice_root * (x * x * (3.0f * cubic) + 1.0f);
  }
};

/// 1 / (1 + e^-x).
struct Logistic {
  static constexpr bool of_output = true;
  template <class V>
  CONVOY_INLINE static void apply(V& x) {
    logistic(x);
  }
  template <class V>
  CONVOY_INLINE static void slope(V& y) {
    y = y * (1.0f - y);
  }
};

/// The hyperbolic tangent.
struct HyperbolicTangent {
  static constexpr bool of_output = true;
  template <class V>
  CONVOY_INLINE static void apply(V& x) {
    hyperbolic_tangent(x);
  }
  template <class V>
  CONVOY_INLINE static void slope(V& y) {
    y = 1.0f - y * y;
  }
};

}  // namespace convoy::exec::host
