// Half: gradients as bf16 or f16, added in f32 and rounded to nearest even on every hop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <convoy/comm/codec/codec.hpp>
#include <convoy/comm/engine/elements.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm::codec {

namespace detail {

template <class E>
struct EncodeHalf {
  template <int W>
  CONVOY_INLINE static void run(E* to, const float* values, float* error, std::int64_t count) {
    using Half = comm::detail::Elements<E, W>;
    std::int64_t i = 0;
    for (; i + W <= count; i += W) one<Half>(to + i, values + i, error + i);
    if (i == count) return;
    E half[W] = {};
    float value[W] = {}, left[W] = {};
    const auto rest = static_cast<std::size_t>(count - i);
    __builtin_memcpy(value, values + i, rest * sizeof(float));
    __builtin_memcpy(left, error + i, rest * sizeof(float));
    one<Half>(half, value, left);
    __builtin_memcpy(static_cast<void*>(to + i), half, rest * sizeof(E));
    __builtin_memcpy(error + i, left, rest * sizeof(float));
  }

 private:
  template <class Half>
  CONVOY_INLINE static void one(E* to, const float* values, float* error) {
    typename Half::Value v, e, back;
    simd::load(v, values);
    simd::load(e, error);
    v = v + e;
    Half::store(to, v);
    Half::load(back, to);
    e = v - back;
    typename Half::Value same = e;
    simd::settle(same);
    e = e - same == 0 ? e : typename Half::Value{};  // a non-finite value is sent, not kept
    simd::store(error, e);
  }
};

template <class E>
struct DecodeHalf {
  template <int W>
  CONVOY_INLINE static void run(float* to, const E* from, std::int64_t count) {
    using Half = comm::detail::Elements<E, W>;
    std::int64_t i = 0;
    typename Half::Value v;
    for (; i + W <= count; i += W) {
      Half::load(v, from + i);
      simd::store(to + i, v);
    }
    for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
  }
};

}  // namespace detail

/// Half of the bytes, added in f32 on each hop. The rounding error is kept in `error` and added the next time
/// (error feedback, Karimireddy et al. 2019). A NaN or an overflow reaches all ranks.
template <class E>
struct Half {
  static_assert(std::is_same_v<E, bf16> || std::is_same_v<E, f16>, "convoy: codec::Half is of bf16 or f16");
  using Element = E;
  static constexpr std::string_view name = std::is_same_v<E, bf16> ? "bf16" : "f16";
  static constexpr std::string_view about =
      std::is_same_v<E, bf16> ? "half of the bytes, the range of f32" : "half of the bytes, 11 bits";
  static constexpr Travel travel = Travel::reduced;
  static constexpr void fields(auto&, auto&&) {}
  static constexpr std::int64_t warm_up() { return 0; }
  static constexpr void check() {}

  /// to = round(values + error); error = the rounding error.
  static void encode(E* to, const float* values, float* error, std::int64_t count) {
    simd::run<detail::EncodeHalf<E>>(to, values, error, count);
  }
  static void decode(float* to, const E* from, std::int64_t count) {
    simd::run<detail::DecodeHalf<E>>(to, from, count);
  }
};
using Bf16 = Half<bf16>;
using F16 = Half<f16>;
static_assert(Codec<Bf16> && Codec<F16>);

}  // namespace convoy::comm::codec
