// Vectors in kernels: accessed 16 bytes at a time, computed in f32; and sums over warps and blocks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <convoy/memory/launch.cuh>
#include <convoy/memory/working_copy.hpp>

namespace convoy::device {

/// Converts an element of an arena or a value to f32, in which kernels compute, and back, rounded to nearest
/// even.
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ inline float widen(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <class T>
__device__ T narrow(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    T made;
    if constexpr (std::is_same_v<T, bf16>)
      made.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    else
      made.bits = __half_as_ushort(__float2half_rn(x));
    return made;
  }
}

/// Two numbers rounded to T, which has 16 bits, in a word. A pair is converted by one instruction, while
/// single numbers are converted by a unit that takes few of them at once.
template <class T>
__device__ std::uint32_t pair_of(float first, float second) {
  const auto joined = [](unsigned short low, unsigned short high) {
    return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
  };
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return joined(__bfloat16_as_ushort(pair.x), __bfloat16_as_ushort(pair.y));
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return joined(__half_as_ushort(pair.x), __half_as_ushort(pair.y));
  }
}

/// The two numbers of such a word.
template <class T>
__device__ void widen_pair(std::uint32_t pair, float& first, float& second) {
  if constexpr (std::is_same_v<T, bf16>) {
    first = __uint_as_float(pair << 16);
    second = __uint_as_float(pair & 0xffff0000u);  // nvcc would move these bits down and up again
  } else {
    first = __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
    second = __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
  }
}

/// Number of elements in one 16-byte access.
template <class T>
inline constexpr int lanes = 16 / static_cast<int>(sizeof(T));

/// The elements that one access moves: 16 bytes, or fewer.
template <class T, int width = lanes<T>>
struct alignas(static_cast<std::size_t>(width) * sizeof(T)) Lanes {
  T lane[width];
};

/// Stores four words to a multiple of 16 bytes by one access. nvcc may split the copy of a vector whose
/// elements were computed into several stores, but not a single number.
__device__ inline void store_words(void* to, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                   std::uint32_t d) {
  __extension__ using Bits [[gnu::may_alias]] = unsigned __int128;
  *static_cast<Bits*>(to) = std::bit_cast<Bits>(make_uint4(a, b, c, d));
}

/// Loads or stores one vector; the address is a multiple of 16 bytes.
template <class T>
__device__ Lanes<T> load_lanes(const T* from) {
  return *reinterpret_cast<const Lanes<T>*>(from);
}
template <class T>
__device__ void store_lanes(T* to, const Lanes<T>& values) {
  *reinterpret_cast<Lanes<T>*>(to) = values;
}

/// Loads one vector as f32; the address is a multiple of 16 bytes.
template <class T>
__device__ void load_vector(float* x, const T* from) {
  const Lanes<T> values = load_lanes(from);
  if constexpr (std::is_same_v<T, float>) {
    for (int k = 0; k < lanes<T>; ++k) x[k] = values.lane[k];
  } else {
    const auto pairs = std::bit_cast<uint4>(values);
    widen_pair<T>(pairs.x, x[0], x[1]);
    widen_pair<T>(pairs.y, x[2], x[3]);
    widen_pair<T>(pairs.z, x[4], x[5]);
    widen_pair<T>(pairs.w, x[6], x[7]);
  }
}

/// Rounds the numbers of a vector to T, and stores it; the address is a multiple of 16 bytes.
template <class T>
__device__ void store_vector(T* to, const float* x) {
  if constexpr (std::is_same_v<T, float>)
    store_words(to, __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                __float_as_uint(x[3]));
  else
    store_words(to, pair_of<T>(x[0], x[1]), pair_of<T>(x[2], x[3]), pair_of<T>(x[4], x[5]),
                pair_of<T>(x[6], x[7]));
}

/// Loads or stores 1 or 4 floats; 4 are aligned to 16 bytes.
template <int width>
__device__ Lanes<float, width> load_floats(const float* from) {
  return *reinterpret_cast<const Lanes<float, width>*>(from);
}
template <int width>
__device__ void store_floats(float* to, const Lanes<float, width>& values) {
  *reinterpret_cast<Lanes<float, width>*>(to) = values;
}

/// Calls `visit.operator()<4>(i)` for the whole vectors of n elements if `width` is 4, and
/// `visit.operator()<1>(i)` for each other element. Which thread visits an element does not depend on
/// `width`.
template <int width, class Visit>
__device__ void for_each_four(std::int64_t n, Visit&& visit) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x * 4;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
    if constexpr (width == 4)
      if (i + 4 <= n) {
        visit.template operator()<4>(i);
        continue;
      }
    for (std::int64_t lane = i; lane < n && lane < i + 4; ++lane) visit.template operator()<1>(lane);
  }
}

/// Whether all addresses are aligned to 16 bytes.
inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return false;
  return true;
}

/// Loads or stores 1 or 4 floats that will not be read again soon, so that the caches keep other data.
/// Vectors are aligned to 16 bytes.
template <int width>
__device__ Lanes<float, width> load_once(const float* from) {
  static_assert(width == 1 || width == 4);
  if constexpr (width == 1) {
    return {{__ldcs(from)}};
  } else {
    const float4 v = __ldcs(reinterpret_cast<const float4*>(from));
    return {{v.x, v.y, v.z, v.w}};
  }
}
template <int width>
__device__ void store_once(float* to, const Lanes<float, width>& values) {
  if constexpr (width == 1)
    __stcs(to, values.lane[0]);
  else
    __stcs(reinterpret_cast<float4*>(to),
           make_float4(values.lane[0], values.lane[1], values.lane[2], values.lane[3]));
}

namespace detail {

template <class T, int width>
__device__ void store_rounded_to(void* copy, std::int64_t at, const Lanes<float, width>& values) {
  std::uint64_t bits[width];
  for (int lane = 0; lane < width; ++lane) bits[lane] = narrow<T>(values.lane[lane]).bits;
  T* const to = static_cast<T*>(copy) + at;
  if constexpr (width == 1)
    to->bits = static_cast<std::uint16_t>(bits[0]);
  else
    *reinterpret_cast<std::uint64_t*>(to) = bits[0] | bits[1] << 16 | bits[2] << 32 | bits[3] << 48;
}

}  // namespace detail

/// Writes 1 or 4 parameters, rounded, to their working copy, if there is one, in one access.
template <int width>
__device__ void store_rounded(const memory::WorkingCopy& copy, std::int64_t at,
                              const Lanes<float, width>& values) {
  if (copy.at == nullptr) return;
  if (copy.type == DType::bf16)
    detail::store_rounded_to<bf16, width>(copy.at, at, values);
  else
    detail::store_rounded_to<f16, width>(copy.at, at, values);
}

inline constexpr unsigned full_warp = 0xffffffffu;
inline constexpr int warp_size = 32;

/// The sum over a warp, returned to every thread, always added in the same order.
template <class V>
__device__ V warp_sum(V value) {
  for (int apart = warp_size / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(full_warp, value, apart);
  return value;
}
template <class V>
__device__ V warp_max(V value) {
  for (int apart = warp_size / 2; apart > 0; apart /= 2) {
    const V other = __shfl_xor_sync(full_warp, value, apart);
    value = other > value ? other : value;
  }
  return value;
}

/// The sum over a block of `threads` threads, a multiple of 32, returned to every thread. `scratch` is shared
/// memory for one number per warp; it may be reused at once.
template <int threads, class V>
__device__ V block_sum(V value, V* scratch) {
  static_assert(threads % warp_size == 0 && threads <= 1024);
  constexpr int warps = threads / warp_size;
  value = warp_sum(value);
  if constexpr (warps == 1) return value;
  if (threadIdx.x % warp_size == 0) scratch[threadIdx.x / warp_size] = value;
  __syncthreads();
  V total = scratch[0];
  for (int w = 1; w < warps; ++w) total += scratch[w];
  __syncthreads();
  return total;
}

/// Number of blocks of `threads` for a loop over `count` vectors of work: enough to fill the GPU, and no
/// more.
inline unsigned blocks_for(std::int64_t count, int threads = 256, int most = 132 * 8) {
  const std::int64_t wanted = (count + threads - 1) / threads;
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace convoy::device
