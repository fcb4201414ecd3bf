// Draws: the random numbers of dropout, one per element. Each is a function of (seed, layer, epoch, position
// in the epoch's order, element), so it does not depend on the ranks, micro-steps, threads or memory layout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <convoy/core/hash.hpp>
#include <convoy/core/hd.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// The source of one layer's random numbers in one pass.
///
/// The Philox counter of a block of four words is {block, epoch, position}. Elements are in canonical order,
/// in chunks of 64 that use 16 blocks each: element e of a row is word (e % 64) / 16 of block e / 64 * 16 + e
/// % 16. Vectors of any width therefore make consecutive elements from consecutive blocks.
struct Draws {
  static constexpr int chunk = 64, blocks_a_chunk = 16;
  std::array<std::uint32_t, 2> key{};
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;  ///< position of the batch's first row in the epoch's order

  Draws() = default;
  Draws(const Pass& pass, std::string_view layer)
      : epoch(static_cast<std::uint32_t>(pass.epoch)), position(static_cast<std::uint64_t>(pass.position)) {
    const std::uint64_t mixed = hash_of(layer, hash_of(pass.seed));
    key = {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
  }

  /// The upper 24 bits of a Philox word.
  CONVOY_HD static constexpr std::int32_t number(std::uint32_t word) {
    return static_cast<std::int32_t>(word >> 8);
  }

  /// The number of element `e` of row `row` of the batch, uniform in [0, 2^24).
  CONVOY_HD constexpr std::int32_t operator()(std::int64_t row, std::int64_t e) const {
    const std::uint64_t at = position + static_cast<std::uint64_t>(row);
    const auto block = static_cast<std::uint32_t>(e / chunk * blocks_a_chunk + e % blocks_a_chunk);
    const auto words =
        philox({block, epoch, static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32)}, key);
    return number(words[static_cast<std::size_t>(e % chunk / blocks_a_chunk)]);
  }
};

/// The chunk of elements that holds key `key` where attention over `keys` keys drops probabilities. Each
/// query `query`, counted over the queries of all heads, starts a new chunk. The key is element `key` %
/// Draws::chunk of its chunk.
CONVOY_HD constexpr std::int64_t chunk_of_keys(std::int64_t query, std::int64_t keys, std::int64_t key) {
  return query * ((keys + Draws::chunk - 1) / Draws::chunk) + key / Draws::chunk;
}

/// Which elements are dropped, and the factor of the others.
struct DropoutRule {
  std::int32_t threshold = 0;  ///< an element whose random number is below this is dropped
  float scale = 1;

  explicit constexpr DropoutRule(float p)
      : threshold(static_cast<std::int32_t>(p * 0x1p24f)), scale(1.0f / (1.0f - p)) {}
  /// Whether the element of a Philox word is kept: Draws::number(word) is not below the threshold.
  CONVOY_HD constexpr bool keeps(std::uint32_t word) const {
    return word >= static_cast<std::uint32_t>(threshold) << 8;
  }
};

}  // namespace convoy::exec
