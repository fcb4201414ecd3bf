// The k elements of largest magnitude: a radix selection, exact whatever the values, in two passes over
// memory.
#pragma once

#include <cstdint>

#include <convoy/core/hd.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm::codec::detail {

// A float's magnitude as a number of 31 bits in the same order. All NaNs become one number above infinity, so
// that nothing depends on the payload that a processor gives a NaN.
//
// Constexpr functions run on a GPU as well; nvcc accepts no vectors in functions that are marked for one.
template <class Bits>
CONVOY_INLINE constexpr void to_magnitude(Bits& bits) {
  constexpr std::int32_t of_nan = 0x7f800001;
  bits = bits & 0x7fffffff;
  bits = bits > of_nan ? Bits{} + of_nan : bits;
}
template <class Bits, class Values>
CONVOY_INLINE void magnitude_of(Bits& magnitude, const Values& values) {
  __builtin_memcpy(&magnitude, &values, sizeof magnitude);
  to_magnitude(magnitude);
}
CONVOY_INLINE std::int32_t magnitude_of(float value) {
  std::int32_t magnitude;
  magnitude_of(magnitude, value);
  return magnitude;
}

// Counts of elements by digit; the last count is for elements that differ in the known bits. Neighboring
// elements use different counters: an increment would wait for one of the same counter just before it.
struct Histogram {
  static constexpr int bits = 12, none = 1 << bits, apart = 4;
  std::uint32_t counts[apart][none + 1] = {};

  std::int64_t operator[](int digit) const {
    std::int64_t sum = 0;
    for (const auto& part : counts) sum += part[digit];
    return sum;
  }
};

// The least of the k largest magnitudes. Each round finds one more digit, from the top.
struct Threshold {
  std::int64_t left;       // how many are kept of those that agree in the known bits; all above are kept
  std::int32_t least = 0;  // the known bits, then zeros
  int unknown = 31;        // number of unknown bits
  int shift = unknown - Histogram::bits;  // of the next digit

  template <class Bits>
  CONVOY_INLINE constexpr void digit(Bits& digit, const Bits& magnitude) const {
    const std::int32_t none = Histogram::none, end = 1 << (unknown - shift);
    digit = (magnitude ^ least) >> shift;
    digit = digit < end ? digit : Bits{} + none;
  }

  // Learns the next digit from the histogram; returns how many elements agree in it.
  std::int64_t learn(const Histogram& histogram) {
    int digit = (1 << (unknown - shift)) - 1;
    std::int64_t here = histogram[digit];
    for (; here < left; here = histogram[--digit]) left -= here;
    settle(digit, here);
    return here;
  }
  // Sets the next digit, which `here` elements have; `left` of them are kept.
  CONVOY_HD void settle(int digit, std::int64_t here) {
    least |= digit << shift;
    // If all that agree are kept, no further digit matters.
    unknown = here == left ? 0 : shift;
    shift = unknown > Histogram::bits ? unknown - Histogram::bits : 0;
  }
};

// Counts the next digit of each element, after elements += values if it `accumulates`.
template <bool accumulates>
struct CountDigits {
  template <int W>
  CONVOY_INLINE static void run(float* elements, const float* values, std::int64_t count, Threshold threshold,
                                Histogram* histogram) {
    constexpr int apart = Histogram::apart;
    std::int64_t i = 0;
    for (; i + W <= count; i += W) {
      simd::Vec<float, W> e, v;
      simd::Vec<std::int32_t, W> m;
      simd::load(e, elements + i);
      if constexpr (accumulates) {
        simd::load(v, values + i);
        e = e + v;
        simd::store(elements + i, e);
      }
      magnitude_of(m, e);
      threshold.digit(m, m);
      std::int32_t digits[W];
      simd::store(digits, m);
      for (int lane = 0; lane < W; lane += apart) {
        ++histogram->counts[0][digits[lane]];
        ++histogram->counts[1][digits[lane + 1]];
        ++histogram->counts[2][digits[lane + 2]];
        ++histogram->counts[3][digits[lane + 3]];
      }
    }
    for (; i < count; ++i) {
      if constexpr (accumulates) elements[i] += values[i];
      std::int32_t digit;
      threshold.digit(digit, magnitude_of(elements[i]));
      ++histogram->counts[0][digit];
    }
  }
};

// Calls visit(i, magnitude) for each element whose magnitude is at least `*least`, in ascending order. Such
// elements are few, so the others are skipped a block at a time. `visit` may raise `*least`.
struct VisitLargest {
  template <int W, class Visit>
  CONVOY_INLINE static void run(const float* elements, std::int64_t count, const std::int32_t* least,
                                Visit* visit) {
    constexpr std::int64_t block = 64;
    std::int64_t i = 0;
    for (; i + block <= count; i += block) {
      simd::Vec<std::int32_t, W> any{}, m;
      for (int k = 0; k < block; k += W) {
        simd::Vec<float, W> v;
        simd::load(v, elements + i + k);
        magnitude_of(m, v);
        any = any | (m >= *least);
      }
      std::uint64_t words[W / 2], found = 0;
      simd::store(words, any);
      for (const std::uint64_t word : words) found |= word;
      if (found != 0) singly(elements, i, i + block, least, *visit);
    }
    singly(elements, i, count, least, *visit);
  }

 private:
  template <class Visit>
  CONVOY_INLINE static void singly(const float* elements, std::int64_t begin, std::int64_t end,
                                   const std::int32_t* least, Visit& visit) {
    for (std::int64_t i = begin; i < end; ++i)
      if (const std::int32_t m = magnitude_of(elements[i]); m >= *least) visit(i, m);
  }
};

}  // namespace convoy::comm::codec::detail
