// Permutation: a random order of n items in which each place is computed on demand, so that an epoch of any
// size needs no memory and can be entered anywhere.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <convoy/core/philox.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::data {

/// A permutation of 0 .. size-1, a pure function of (size, seed, epoch).
///
/// A Feistel network (Luby and Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom
/// Functions", 1988) permutes the numbers below the next power of two. A result outside the range is permuted
/// again until it is in the range (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002), which
/// takes less than two turns on average. Halves of a few bits mix badly, so up to 256 items are shuffled once
/// and stored (Fisher and Yates, in the form of Durstenfeld, 1964); all orders are equally likely.
class Permutation {
  struct Round {
    std::uint32_t factor = 0, addend = 0, last = 0;  // the default is the identity
  };

  constexpr std::uint64_t low_mask() const { return (std::uint64_t{1} << low_) - 1; }

  // One turn of the network on scalars or vectors. The upper bits of a product are the best mixed. Defined
  // before its callers, because clang 14 would not evaluate the call in a constant expression otherwise.
  template <class V>
  CONVOY_INLINE constexpr void turn(V& high, V& low) const {
    for (std::size_t r = 0; r < rounds_.size(); r += 2) {
      V mixed = high * rounds_[r].factor + rounds_[r].addend;
      mixed ^= mixed >> 16;
      low ^= (mixed * rounds_[r].last) >> (32 - low_);
      mixed = low * rounds_[r + 1].factor + rounds_[r + 1].addend;
      mixed ^= mixed >> 16;
      high ^= (mixed * rounds_[r + 1].last) >> (32 - high_);
    }
  }

 public:
  /// The identity.
  constexpr explicit Permutation(std::uint64_t size) : size_(size) {
    for (std::size_t i = 0; i < few_.size(); ++i) few_[i] = static_cast<std::uint8_t>(i);
    if (size <= few_.size()) return;
    const auto bits = static_cast<int>(std::bit_width(size - 1));
    high_ = bits / 2;
    low_ = bits - high_;
  }

  constexpr Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) : Permutation(size) {
    // The constant keeps these numbers apart from those that other users of the same seed draw.
    Philox random(seed ^ 0x7065726d75746531ull, epoch);
    if (size <= few_.size()) {
      for (auto left = static_cast<std::uint32_t>(size); left > 1; --left)
        std::swap(few_[left - 1], few_[random.below(left)]);
      return;
    }
    for (Round& round : rounds_) {
      round.factor = random.next() | 1;
      round.addend = random.next();
      round.last = random.next() | 1;
    }
  }

  constexpr std::uint64_t size() const { return size_; }

  /// The item at place `at`, which must be below `size()`.
  constexpr std::uint64_t operator()(std::uint64_t at) const {
    if (size_ <= few_.size()) return few_[at];
    do {
      auto high = static_cast<std::uint32_t>(at >> low_), low = static_cast<std::uint32_t>(at & low_mask());
      turn(high, low);
      at = std::uint64_t{high} << low_ | low;
    } while (at >= size_);
    return at;
  }

  /// Writes the items at places `first`, `first + 1`, ... to `out`, computed in SIMD lanes.
  void read(std::uint64_t first, std::span<std::uint64_t> out) const {
    if (size_ <= few_.size())
      std::copy_n(few_.data() + first, out.size(), out.data());
    else
      simd::run<Walk>(this, first, out.data(), out.size());
  }

 private:
  // Each lane permutes its place until the result is in the range, and then takes the next place.
  struct Walk {
    template <int W>
    CONVOY_INLINE static void run(const Permutation* p, std::uint64_t first, std::uint64_t* out,
                                  std::size_t count) {
      const int shift = p->low_;
      const std::uint64_t mask = p->low_mask(), size = p->size_;
      alignas(64) std::uint32_t high[W] = {}, low[W] = {};
      std::size_t place[W];  // `count` where a lane has none
      std::size_t next = 0, done = 0;
      const auto take = [&](int i) {
        place[i] = std::min(next, count);
        high[i] = static_cast<std::uint32_t>((first + next) >> shift);
        low[i] = static_cast<std::uint32_t>((first + next) & mask);
        ++next;
      };
      for (int i = 0; i < W; ++i) take(i);
      while (done < count) {
        simd::Vec<std::uint32_t, W> highs, lows;
        simd::load(highs, high);
        simd::load(lows, low);
        p->turn(highs, lows);
        simd::store(high, highs);
        simd::store(low, lows);
        for (int i = 0; i < W; ++i) {
          const std::uint64_t value = std::uint64_t{high[i]} << shift | low[i];
          if (value >= size || place[i] == count) continue;
          out[place[i]] = value;
          ++done;
          take(i);
        }
      }
    }
  };

  std::uint64_t size_;
  int high_ = 0, low_ = 0;  // bits of the halves
  std::array<Round, 8> rounds_{};
  std::array<std::uint8_t, 256> few_{};
};

}  // namespace convoy::data
