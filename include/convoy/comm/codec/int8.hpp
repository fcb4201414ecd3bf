// Int8: gradients as signed bytes with a scale for each block of 512.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include <convoy/comm/codec/codec.hpp>
#include <convoy/core/hd.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm::codec {

/// A little more than a quarter of the bytes: value = byte * scale with scale = (largest magnitude of the
/// block) / 127, rounded to nearest, so that no element is off by more than 1/254 of its block's largest. A
/// block with a NaN or an infinity decodes to NaN throughout. The bits are the same with every instruction
/// set and on a GPU.
struct Int8 {
  static constexpr std::string_view name = "int8";
  static constexpr std::string_view about = "8-bit integers, a quarter of the bytes";
  static constexpr Travel travel = Travel::scattered;
  static constexpr std::int64_t block = 512;
  static constexpr void fields(auto&, auto&&) {}
  static constexpr std::int64_t warm_up() { return 0; }
  static constexpr void check() {}

  /// Bytes of `count` encoded elements, a multiple of 64: the bytes of all blocks, then the scales.
  static constexpr std::int64_t bytes(std::int64_t count) {
    const std::int64_t blocks = (count + block - 1) / block;
    return (blocks * (block + 4) + 63) / 64 * 64;
  }
  /// to = round(values + error); error = the rounding error (error feedback).
  static void encode(std::byte* to, const float* values, float* error, std::int64_t count) {
    simd::run<Encode>(to, values, error, count);
  }
  static void decode(float* to, const std::byte* from, std::int64_t count) {
    simd::run<Decode<false>>(to, from, count);
  }
  /// Adds the decoded values.
  static void decode_add(float* to, const std::byte* from, std::int64_t count) {
    simd::run<Decode<true>>(to, from, count);
  }

  static constexpr std::int64_t blocks_of(std::int64_t count) { return (count + block - 1) / block; }

  /// The scale of a block.
  struct Scale {
    float unit = 0;     ///< value = byte * unit
    float inverse = 0;  ///< byte = value * inverse, rounded
  };
  /// The scale of a block whose largest magnitude is `most`, which is finite; zeros if `most` is so small
  /// that its unit has no finite inverse. The unit has 17 bits and a byte 7, so their product is exact. The
  /// product's sum with another number then has the same bits whether or not a compiler fuses the two.
  CONVOY_HD static Scale scale_of(float most) {
    const float unit = std::bit_cast<float>(std::bit_cast<std::uint32_t>(most / 127) & ~0x7fu);
    const float inverse = unit > 0 ? 1 / unit : 0;
    if (!(inverse <= std::numeric_limits<float>::max())) return {};
    return {unit, inverse};
  }
  /// Rounds a value to a byte, as a float; the value becomes the rounding error. `V` is float or a vector.
  /// nvcc accepts no vectors in a function that is marked for a GPU; a constexpr function runs there for
  /// floats.
  template <class V>
  CONVOY_INLINE static constexpr void round(V& byte, V& value, const Scale& scale) {
    byte = value * scale.inverse;
    byte = byte < 127 ? byte : V{} + 127;  // only rounding exceeds 127; nothing fuses across a selection
    byte = byte + 12582912.0f;             // 1.5 * 2^23: rounds to nearest even
    simd::settle(byte);
    byte = byte - 12582912.0f;
    value = value - byte * scale.unit;
  }

 private:
  static constexpr std::int32_t infinity = 0x7f800000, not_a_number = 0x7fc00000;  // bits of floats

  struct Encode {
    template <int W>
    CONVOY_INLINE static void run(std::byte* to, const float* values, float* error, std::int64_t count) {
      using Value = simd::Vec<float, W>;
      using Whole = simd::Vec<std::int32_t, W>;
      using Byte = simd::Vec<std::int8_t, W>;
      std::byte* scales = to + blocks_of(count) * block;
      for (std::int64_t b = 0, begin = 0; begin < count; ++b, begin += block) {
        const std::int64_t n = count - begin < block ? count - begin : block;
        alignas(64) float sums[block] = {};
        for (std::int64_t i = 0; i < n; ++i) sums[i] = values[begin + i] + error[begin + i];
        // The bits of magnitudes are in the order of the magnitudes, and those of NaN and infinities come
        // last. A comparison of numbers would not find these with -ffast-math.
        Whole largest{}, bits;
        for (std::int64_t i = 0; i < block; i += W) {
          simd::load(bits, sums + i);
          bits = bits & 0x7fffffff;
          largest = bits > largest ? bits : largest;
        }
        std::int32_t most = 0;
        for (int k = 0; k < W; ++k) most = largest[k] > most ? largest[k] : most;
        const bool sound = most < infinity;
        const Scale scale = scale_of(std::bit_cast<float>(sound ? most : 0));
        const auto unit = sound ? std::bit_cast<std::int32_t>(scale.unit) : not_a_number;
        std::memcpy(scales + b * 4, &unit, 4);
        for (std::int64_t i = 0; i < block; i += W) {
          Value v;
          simd::load(v, sums + i);
          v = sound ? v : Value{};  // a non-finite value is sent, not kept
          Value rounded;
          round(rounded, v, scale);
          Whole whole;
          simd::convert(whole, rounded);
          Byte byte;
          simd::convert(byte, whole);
          simd::store(to + begin + i, byte);
          simd::store(sums + i, v);
        }
        std::memcpy(error + begin, sums, static_cast<std::size_t>(n) * sizeof(float));
      }
    }
  };

  template <bool adds>
  struct Decode {
    template <int W>
    CONVOY_INLINE static void run(float* to, const std::byte* from, std::int64_t count) {
      using Value = simd::Vec<float, W>;
      using Byte = simd::Vec<std::int8_t, W>;
      const std::byte* scales = from + blocks_of(count) * block;
      for (std::int64_t b = 0, begin = 0; begin < count; ++b, begin += block) {
        const std::int64_t n = count - begin < block ? count - begin : block;
        float scale = 0;
        std::memcpy(&scale, scales + b * 4, 4);
        std::int64_t i = 0;
        for (; i + W <= n; i += W) {
          Byte byte;
          simd::load(byte, from + begin + i);
          Value v;
          simd::convert(v, byte);
          v = v * scale;
          if constexpr (adds) {
            Value before;
            simd::load(before, to + begin + i);
            v = before + v;
          }
          simd::store(to + begin + i, v);
        }
        for (; i < n; ++i) {
          const float v = static_cast<float>(static_cast<std::int8_t>(from[begin + i])) * scale;
          to[begin + i] = adds ? to[begin + i] + v : v;
        }
      }
    }
  };
};

static_assert(Codec<Int8>);

}  // namespace convoy::comm::codec
