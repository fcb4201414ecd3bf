// Elementwise loops: ReLU, its mask, additions and accumulations over whole buffers. Buffers of one shape and
// layout have their elements in the same order, so the loops need not know the layout.
#pragma once

#include <cstdint>
#include <type_traits>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/parallel/elements.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// Runs `Loop::run<W>(begin, end, args...)` over [0, count), divided among the threads.
template <class Loop, class... Args>
void for_each_share(int threads, std::int64_t count, Args... args) {
  if (count < loop_tuning.worth_a_team) threads = 1;
  parallel(threads, [&](int thread, int team) {
    const Range range = share(count, thread, team, 1024);
    simd::run<Loop>(range.begin, range.end, args...);
  });
}

/// Calls `body(vector at i)` for whole vectors of [begin, end), then element by element.
#define CONVOY_FOR_VECTORS(W, begin, end, ...) \
  std::int64_t i = begin;                      \
  for (; i + W <= end; i += W) {               \
    using V = simd::Vec<float, W>;             \
    __VA_ARGS__                                \
  }                                            \
  for (; i < end; ++i) {                       \
    using V = simd::Vec<float, 1>;             \
    __VA_ARGS__                                \
  }

/// Sets negative x to zero; NaN stays, so that a diverged run is visible.
template <class V>
CONVOY_INLINE void rectify(V& x) {
  x = x < V{} ? V{} : x;
}

/// y = a + b, rectified if `relu`.
struct AddLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const float* a, const float* b,
                                float* y, bool relu) {
    CONVOY_FOR_VECTORS(W, begin, end, {
      V va, vb;
      simd::load(va, a + i);
      simd::load(vb, b + i);
      va += vb;
      if (relu) rectify(va);
      simd::store(y + i, va);
    })
  }
};

/// y = max(x, 0); `y` may be `x`.
struct ReluLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const float* x, float* y) {
    CONVOY_FOR_VECTORS(W, begin, end, {
      V v;
      simd::load(v, x + i);
      rectify(v);
      simd::store(y + i, v);
    })
  }
};

/// Passes a gradient to one input: dx = g or dx += g with g = dy + second; if `y` is not null, g is zero
/// where y <= 0.
struct PassLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const float* dy, const float* second,
                                const float* y, float* dx, bool accumulate) {
    CONVOY_FOR_VECTORS(W, begin, end, {
      V g, other;
      simd::load(g, dy + i);
      if (second != nullptr) {
        simd::load(other, second + i);
        g += other;
      }
      if (y != nullptr) {
        simd::load(other, y + i);
        g = other > V{} ? g : V{};
      }
      if (accumulate) {
        simd::load(other, dx + i);
        g += other;
      }
      simd::store(dx + i, g);
    })
  }
};

/// to += from in bf16.
struct AddRoundedLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const bf16* from, bf16* to) {
    const auto add = [&]<int width>(std::integral_constant<int, width>, std::int64_t i)
        __attribute__((always_inline)) {
      using E = simd::Elements<bf16, width>;
      typename E::Value a, b;
      E::load(a, from + i);
      E::load(b, to + i);
      a += b;
      E::store(to + i, a);
    };
    std::int64_t i = begin;
    for (; i + W <= end; i += W) add(std::integral_constant<int, W>{}, i);
    for (; i < end; ++i) add(std::integral_constant<int, 1>{}, i);
  }
};

/// y = scale x + offset over bytes.
struct WidenLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, const u8* x, float* y, float scale,
                                float offset) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = scale * static_cast<float>(x[i]) + offset;
  }
};

}  // namespace convoy::exec::host
