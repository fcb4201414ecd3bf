// Philox (core/philox.hpp) for a vector of counters at a time, for loops that simd.hpp runs.
#pragma once

#include <array>
#include <cstdint>

#include <convoy/parallel/simd.hpp>

namespace convoy::simd {

/// product = the lower halves of the elements of `a`, times those of `factor`. A vector fills one register.
template <class V>
CONVOY_INLINE void multiply_lower_halves(V& product, const V& a, const V& factor) {
#if defined(__x86_64__) && !defined(__clang__)
  // The instruction for it. GCC would multiply whole elements, which takes several times as long.
  if constexpr (sizeof(V) == 64) {
    asm("vpmuludq %2, %1, %0" : "=v"(product) : "v"(a), "v"(factor));
  } else if constexpr (sizeof(V) == 32) {
    asm("vpmuludq %2, %1, %0" : "=x"(product) : "x"(a), "x"(factor));
  } else {
    product = a;
    asm("pmuludq %1, %0" : "+x"(product) : "x"(factor));
  }
#else
  product = (a & 0xffffffffu) * (factor & 0xffffffffu);
#endif
}

/// words[w][i] = philox({counter[0] + i, counter[1], counter[2], counter[3]}, key)[w] for each i below W.
template <int W>
CONVOY_INLINE void philox(const std::array<std::uint32_t, 4>& counter,
                          const std::array<std::uint32_t, 2>& key, Vec<std::uint32_t, W> (&words)[4]) {
  // Two registers, so that a product need not wait for the one before: even counters and odd ones. Each
  // element holds a word in its lower half, and anything in its upper half.
  using U = Vec<std::uint64_t, W / 2>;
  static constexpr std::uint64_t even[8] = {0, 2, 4, 6, 8, 10, 12, 14};
  const U none{}, first = none + 0xd2511f53u, second = none + 0xcd9e8d57u;
  const U all1 = none + counter[1], all2 = none + counter[2], all3 = none + counter[3];
  U from;
  load(from, even);
  from += counter[0];
  U c0[2] = {from, from + 1}, c1[2] = {all1, all1}, c2[2] = {all2, all2}, c3[2] = {all3, all3};
  std::uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    CONVOY_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      U a, b;
      multiply_lower_halves(a, c0[odd], first);
      multiply_lower_halves(b, c2[odd], second);
      c0[odd] = (b >> 32) ^ c1[odd] ^ std::uint64_t{k0};
      c1[odd] = b;
      c2[odd] = (a >> 32) ^ c3[odd] ^ std::uint64_t{k1};
      c3[odd] = a;
    }
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  const auto join = [](Vec<std::uint32_t, W>& word, const U(&halves)[2]) {
    const U joined = (halves[0] & 0xffffffffu) | (halves[1] << 32);  // little-endian
    load(word, &joined);
  };
  join(words[0], c0);
  join(words[1], c1);
  join(words[2], c2);
  join(words[3], c3);
}

}  // namespace convoy::simd
