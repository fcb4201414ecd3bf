// simd: vector loops compiled for several instruction sets and chosen at run time, without a flag in the
// user's build. A loop is a type with a static always-inline `template <int W> run(...)`, written in vectors
// of W floats (GCC and clang vector extensions). `simd::run<Loop>(...)` calls it inside a function compiled
// for the best instruction set.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>

#define CONVOY_INLINE [[gnu::always_inline]] inline

// Stands before a loop of a fixed count over an array of vectors. The vectors stay in registers only if the
// loop is unrolled, which GCC does by itself at -O3 but not at -O2. (nvcc's front end knows neither pragma.)
#if defined(__CUDACC__)
#define CONVOY_UNROLL
#elif defined(__clang__)
#define CONVOY_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CONVOY_UNROLL _Pragma("GCC unroll 16")
#endif

namespace convoy::simd {

namespace detail {
// A member of a class, because nvcc crashes on an alias whose size is computed where the alias is used.
template <class T, int W>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * W)));
};
}  // namespace detail

/// A vector of W elements. Helpers take a vector by reference: the calling convention of one passed by value
/// would depend on the target.
template <class T, int W>
using Vec = typename detail::VectorOf<T, W>::type;

enum class Isa { baseline, avx2, avx512 };

/// The best instruction set of this processor, or a lesser one that the environment asks for by
/// `CONVOY_ISA=baseline|avx2`.
inline Isa isa() {
  static const Isa found = [] {
    Isa best = Isa::baseline;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = Isa::avx2;
    if (best == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
      best = Isa::avx512;
#endif
    const char* wanted = std::getenv("CONVOY_ISA");
    if (wanted != nullptr && std::string_view(wanted) == "baseline") return Isa::baseline;
    if (wanted != nullptr && std::string_view(wanted) == "avx2" && best == Isa::avx512) return Isa::avx2;
    return best;
  }();
  return found;
}

template <class V>
CONVOY_INLINE void load(V& v, const void* from) {
  __builtin_memcpy(&v, from, sizeof(V));
}
template <class V>
CONVOY_INLINE void store(void* to, const V& v) {
  __builtin_memcpy(to, &v, sizeof(V));
}
/// With -ffast-math a compiler may simplify (x + c) - c to x. It does not if x + c is settled between the
/// two. Without that flag this is nothing. V is float or a vector of any width; memory holds them all.
template <class V>
CONVOY_INLINE constexpr void settle([[maybe_unused]] V& v) {
#if (defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)) && !defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) asm("" : "+m"(v));
#endif
}
/// to = from, each element converted.
template <class To, class From>
CONVOY_INLINE void convert(To& to, const From& from) {
#if defined(__CUDACC__)  // nvcc's front end crashes on the builtin
  for (unsigned i = 0; i < sizeof(To) / sizeof(to[0]); ++i)
    to[i] = static_cast<decltype(to[0] + to[0])>(from[i]);
#else
  to = __builtin_convertvector(from, To);
#endif
}

#if defined(__x86_64__)
template <class Loop, class... Args>
__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"), noinline)) void run_avx512(
    Args... args) {
  Loop::template run<16>(args...);
}
template <class Loop, class... Args>
__attribute__((target("avx2,fma"), noinline)) void run_avx2(Args... args) {
  Loop::template run<8>(args...);
}
#endif

/// Runs `Loop::run<W>(args...)` with W = 16 (AVX-512), 8 (AVX2) or 4 (SSE2, NEON). Arguments are passed by
/// value. In nvcc's pass for GPUs the function is empty: nothing calls it there, and that pass crashes on the
/// vectors of some loops.
template <class Loop, class... Args>
void run([[maybe_unused]] Args... args) {
#if !defined(__CUDA_ARCH__)
#if defined(__x86_64__)
  switch (isa()) {
    case Isa::avx512:
      return run_avx512<Loop>(args...);
    case Isa::avx2:
      return run_avx2<Loop>(args...);
    case Isa::baseline:
      break;
  }
#endif
  Loop::template run<4>(args...);
#endif
}

}  // namespace convoy::simd
