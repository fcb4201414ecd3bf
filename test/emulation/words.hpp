// The keywords and intrinsics of device code, for g++: barriers, exchanges within a warp, arithmetic.
// cuda_runtime.h itself makes __global__, __device__ and the like empty.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include <cuda_runtime.h>

#include "grid.hpp"

// Declares a local type of the function, then the variable.
#define EMULATION_JOIN(a, b) a##b
#define EMULATION_SHARED(type)                     \
  struct type {};                                  \
  (void)::emulation::DeclaresShared<type>::here(); \
  static
#define EMULATION_SHARED_AT(line) EMULATION_SHARED(EMULATION_JOIN(shared_declared_, line))
#undef __shared__
#define __shared__ EMULATION_SHARED_AT(__LINE__)

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#ifndef __noinline__
#define __noinline__ __attribute__((noinline))
#endif

#define EMULATION_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// ---- Barriers
inline void __syncthreads(EMULATION_HERE) {
  emulation::Block::running->wait_for_block({"__syncthreads", file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATION_HERE) {
  emulation::Block::running->exchange(mask, 0, {"__syncwarp", file, line}, [](const auto&) {});
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// ---- Exchanges within a warp. `width` splits the warp into segments, whose lanes are each numbered from 0.
template <class V>
requires std::is_arithmetic_v<V> V __shfl_sync(unsigned mask, V value, int from, int width = 32,
                                               EMULATION_HERE) {
  auto& block = *emulation::Block::running;
  return block.exchange(mask, value, {"__shfl_sync", file, line}, [&](const auto& lanes) {
    const int self = static_cast<int>(block.lane());
    return lanes[self / width * width + (from & (width - 1))];
  });
}
template <class V>
requires std::is_arithmetic_v<V> V __shfl_xor_sync(unsigned mask, V value, int bits, int width = 32,
                                                   EMULATION_HERE) {
  auto& block = *emulation::Block::running;
  return block.exchange(mask, value, {"__shfl_xor_sync", file, line}, [&](const auto& lanes) {
    const int self = static_cast<int>(block.lane()), from = self ^ bits;
    return lanes[from / width > self / width ? self : from];
  });
}
template <class V>
requires std::is_arithmetic_v<V> V __shfl_down_sync(unsigned mask, V value, unsigned by, int width = 32,
                                                    EMULATION_HERE) {
  auto& block = *emulation::Block::running;
  return block.exchange(mask, value, {"__shfl_down_sync", file, line}, [&](const auto& lanes) {
    const int self = static_cast<int>(block.lane()), from = self + static_cast<int>(by);
    return lanes[from / width > self / width ? self : from];
  });
}
template <class V>
requires std::is_arithmetic_v<V> V __shfl_up_sync(unsigned mask, V value, unsigned by, int width = 32,
                                                  EMULATION_HERE) {
  auto& block = *emulation::Block::running;
  return block.exchange(mask, value, {"__shfl_up_sync", file, line}, [&](const auto& lanes) {
    const int self = static_cast<int>(block.lane()), by_signed = static_cast<int>(by);
    return lanes[self % width < by_signed ? self : self - by_signed];
  });
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATION_HERE) {
  return emulation::Block::running->exchange(mask, predicate, {"__ballot_sync", file, line},
                                             [](const auto& lanes) {
                                               unsigned bits = 0;
                                               for (int lane = 0; lane < lanes.members; ++lane)
                                                 bits |= static_cast<unsigned>(lanes[lane] != 0) << lane;
                                               return bits;
                                             });
}
inline int __any_sync(unsigned mask, int predicate, EMULATION_HERE) {
  return emulation::Block::running->exchange(mask, predicate, {"__any_sync", file, line},
                                             [](const auto& lanes) {
                                               for (int lane = 0; lane < lanes.members; ++lane)
                                                 if (lanes[lane] != 0) return 1;
                                               return 0;
                                             });
}
inline int __all_sync(unsigned mask, int predicate, EMULATION_HERE) {
  return emulation::Block::running->exchange(mask, predicate, {"__all_sync", file, line},
                                             [](const auto& lanes) {
                                               for (int lane = 0; lane < lanes.members; ++lane)
                                                 if (lanes[lane] == 0) return 0;
                                               return 1;
                                             });
}

#undef EMULATION_HERE

// ---- Bits
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * std::uint64_t{b}) >> 32);
}

// ---- Accesses with cache hints
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, std::type_identity_t<T> value) {
  *to = value;
}
template <class T>
void __stwb(T* to, std::type_identity_t<T> value) {
  *to = value;
}
template <class T>
void __stcg(T* to, std::type_identity_t<T> value) {
  *to = value;
}

// ---- Atomics on integers; integer sums do not depend on the order of the threads.
template <class T>
requires std::is_integral_v<T> T atomicAdd(T* at, std::type_identity_t<T> by) {
  return std::atomic_ref<T>(*at).fetch_add(by);
}
template <class T>
requires std::is_integral_v<T> T atomicOr(T* at, std::type_identity_t<T> bits) {
  return std::atomic_ref<T>(*at).fetch_or(bits);
}
template <class T>
requires std::is_integral_v<T> T atomicExch(T* at, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*at).exchange(value);
}
template <class T>
requires std::is_integral_v<T> T atomicCAS(T* at, std::type_identity_t<T> expected,
                                           std::type_identity_t<T> value) {
  std::atomic_ref<T>(*at).compare_exchange_strong(expected, value);
  return expected;
}
template <class T>
requires std::is_integral_v<T> T atomicMax(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = before < value ? value : before;
  return before;
}
template <class T>
requires std::is_integral_v<T> T atomicMin(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = value < before ? value : before;
  return before;
}

// ---- Arithmetic
#if !defined(__GLIBC_PREREQ) || !__GLIBC_PREREQ(2, 42)
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
#endif
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }

/// Ends the kernel with a fault.
inline void __trap(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  throw emulation::Block::running->fault_here({"__trap", file, line}, "and gave up");
}
