// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC 2011. A number is a pure function of (seed, stream, position), so any rank, thread or device can compute
// it.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <convoy/core/hd.hpp>

namespace convoy {

/// Four random words from a 128-bit counter and a 64-bit key.
CONVOY_HD constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xd2511f53ull * counter[0], b = 0xcd9e8d57ull * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9e3779b9u, key[1] + 0xbb67ae85u};
  }
  return counter;
}

/// A sequence of random numbers for one (seed, stream); copying it copies the position.
class Philox {
 public:
  constexpr explicit Philox(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  /// A uniform 32-bit word.
  constexpr std::uint32_t next() {
    if (left_ == 0) {
      words_ = philox({static_cast<std::uint32_t>(position_), static_cast<std::uint32_t>(position_ >> 32),
                       static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                      {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
      ++position_;
      left_ = 4;
    }
    --left_;
    // The words are shifted instead of indexed: a GPU cannot keep an array with a variable index in
    // registers.
    const std::uint32_t word = words_[0];
    words_ = {words_[1], words_[2], words_[3], 0};
    return word;
  }

  /// Uniform in [0, 1), 24 random bits.
  constexpr float uniform() { return static_cast<float>(next() >> 8) * 0x1p-24f; }

  /// Uniform in [low, high); rounding may give `high` itself.
  constexpr float uniform(float low, float high) { return low + (high - low) * uniform(); }

  /// Uniform in [0, n), without bias (Lemire, "Fast Random Integer Generation in an Interval", 2019); n > 0.
  constexpr std::uint32_t below(std::uint32_t n) {
    std::uint64_t product = static_cast<std::uint64_t>(next()) * n;
    if (static_cast<std::uint32_t>(product) < n) {
      const std::uint32_t threshold = (0u - n) % n;
      while (static_cast<std::uint32_t>(product) < threshold)
        product = static_cast<std::uint64_t>(next()) * n;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

  /// Standard normal (Box and Muller, 1958).
  float normal() {
    const float radius = std::sqrt(-2.0f * std::log((static_cast<float>(next() >> 8) + 1.0f) * 0x1p-24f));
    return radius * std::cos(6.28318530717958647f * uniform());
  }

 private:
  std::uint64_t seed_, stream_, position_ = 0;
  std::array<std::uint32_t, 4> words_{};
  int left_ = 0;
};

}  // namespace convoy
