// The fold kernel: into[i] = from_0[i] op from_1[i] op ... op from_{n-1}[i], in that order, stored to several
// destinations at once. Each value is loaded once and stored once; if the buffers together are larger than
// the caches, stores bypass the caches. bf16 and f16 are added in f32 and rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <convoy/comm/engine/elements.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm::detail {

template <class V>
CONVOY_INLINE void store_past_caches(void* to, const V& v) {
  // `to` is a multiple of the vector's size.
#if defined(__clang__)
  __builtin_nontemporal_store(v, static_cast<V*>(to));
#elif defined(__x86_64__)
  if constexpr (sizeof(V) == 64)
    asm volatile("vmovntps %1, %0" : "=m"(*static_cast<V*>(to)) : "v"(v));
  else if constexpr (sizeof(V) == 32)
    asm volatile("vmovntps %1, %0" : "=m"(*static_cast<V*>(to)) : "x"(v));
  else if constexpr (sizeof(V) == 16)
    asm volatile("movntps %1, %0" : "=m"(*static_cast<V*>(to)) : "x"(v));
  else
    simd::store(to, v);
#else
  simd::store(to, v);
#endif
}

CONVOY_INLINE void after_streaming() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
}

template <class T, Op op>
struct FoldLoop {
  static constexpr bool scales = op == Op::sum && !std::is_same_v<T, i32>;

  template <int W>
  CONVOY_INLINE static void run(T* const* into, int places, const T* const* from, int sources,
                                std::int64_t count, double scale, bool streams) {
    using Vector = Elements<T, at_once<T, op, W>>;
    constexpr std::int64_t width = Vector::width;
    const bool scaled = scales && scale != 1;
    bool aligned = streams && wide<Vector>;
    for (int p = 0; p < places; ++p)
      aligned = aligned && reinterpret_cast<std::uintptr_t>(into[p]) % (sizeof(T) * width) == 0;
    std::int64_t i = 0;
    // The common case, gradients of two ranks, with counts that the compiler knows.
    if (std::is_same_v<T, f32> && op == Op::sum && places == 2 && sources == 2) {
      T* const both[] = {into[0], into[1]};
      const T* const of[] = {from[0], from[1]};
      i = blocks<Vector>(both, 2, of, 2, count, scaled, scale, aligned);
    } else {
      i = blocks<Vector>(into, places, from, sources, count, scaled, scale, aligned);
    }
    if (aligned) after_streaming();
    // The tail goes through padded copies: the same arithmetic, and no access past the end.
    for (; i < count; i += width) {
      const std::int64_t left = count - i < width ? count - i : width;
      const std::size_t bytes = static_cast<std::size_t>(left) * sizeof(T);
      T buffer[width] = {};
      typename Vector::Value sum;
      __builtin_memcpy(static_cast<void*>(buffer), from[0] + i, bytes);
      Vector::load(sum, buffer);
      for (int s = 1; s < sources; ++s) {
        __builtin_memcpy(static_cast<void*>(buffer), from[s] + i, bytes);
        add<Vector>(sum, buffer);
      }
      if (scaled) multiply(sum, scale);
      Vector::store(buffer, sum);
      for (int p = 0; p < places; ++p) __builtin_memcpy(static_cast<void*>(into[p] + i), buffer, bytes);
    }
  }

 private:
  template <class Vector>
  static constexpr bool wide = sizeof(T) * static_cast<std::size_t>(Vector::width) >= 16 && sizeof(T) >= 4;

  // Folds as many elements as fill whole blocks and returns their number. `past`: stores bypass the caches,
  // which needs aligned destinations.
  template <class Vector>
  CONVOY_INLINE static std::int64_t blocks(T* const* into, int places, const T* const* from, int sources,
                                           std::int64_t count, bool scaled, double scale, bool past) {
    constexpr std::int64_t width = Vector::width;
    std::int64_t i = 0;
    for (; i + 4 * width <= count; i += 4 * width) {
      typename Vector::Value sum[4];
      CONVOY_UNROLL
      for (int k = 0; k < 4; ++k) Vector::load(sum[k], from[0] + i + k * width);
      for (int q = 1; q < sources; ++q) {
        const T* const source = from[q] + i;
        CONVOY_UNROLL
        for (int k = 0; k < 4; ++k) add<Vector>(sum[k], source + k * width);
      }
      if (scaled) {
        CONVOY_UNROLL
        for (int k = 0; k < 4; ++k) multiply(sum[k], scale);
      }
      for (int p = 0; p < places; ++p) {
        T* const place = into[p] + i;
        if (past) {
          CONVOY_UNROLL
          for (int k = 0; k < 4; ++k)
            if constexpr (wide<Vector>) store_past_caches(place + k * width, sum[k]);
        } else {
          CONVOY_UNROLL
          for (int k = 0; k < 4; ++k) Vector::store(place + k * width, sum[k]);
        }
      }
    }
    return i;
  }

  template <class V>
  CONVOY_INLINE static void multiply(V& v, double scale) {
    if constexpr (scales) v = v * static_cast<Factor<T>>(scale);
  }
  template <class Vector>
  CONVOY_INLINE static void add(typename Vector::Value& sum, const T* from) {
    typename Vector::Value next;
    Vector::load(next, from);
    combine<T, op>(sum, next);
  }
};

template <class T, Op op>
void fold_with(void* const* into, int places, const void* const* from, int sources, std::int64_t count,
               double scale, bool streams) {
  simd::run<FoldLoop<T, op>>(reinterpret_cast<T* const*>(into), places,
                             reinterpret_cast<const T* const*>(from), sources, count, scale, streams);
}

CONVOY_INSTANTIATE(void fold_with<f32, Op::sum>(void* const*, int, const void* const*, int, std::int64_t,
                                                double, bool));
CONVOY_INSTANTIATE(void fold_with<f64, Op::sum>(void* const*, int, const void* const*, int, std::int64_t,
                                                double, bool));
CONVOY_INSTANTIATE(void fold_with<f64, Op::max>(void* const*, int, const void* const*, int, std::int64_t,
                                                double, bool));

// Copies elements of `element` bytes; no arithmetic.
template <int element>
void copy_with(void* const* into, int places, const void* const* from, int, std::int64_t count, double,
               bool streams) {
  const std::int64_t bytes = count * element, done = bytes / 4 * 4;
  fold_with<f32, Op::sum>(into, places, from, 1, bytes / 4, 1, streams);
  for (int p = 0; p < places && done < bytes; ++p)
    std::memcpy(static_cast<std::byte*>(into[p]) + done, static_cast<const std::byte*>(from[0]) + done,
                static_cast<std::size_t>(bytes - done));
}

}  // namespace convoy::comm::detail
