// Draws: the random numbers of a dropout, one an element. Each is a function of (seed, layer, epoch, position
// in the epoch's order, element), whatever ranks, micro-steps, threads and memory layouts there are.
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

/// What a layer draws from in one pass.
///
/// The counter of a block of four words is {block, epoch, position}. Elements stand in canonical order in
/// chunks of 64, which share 16 blocks: element e of a row is word (e % 64) / 16 of block e / 64 * 16 + e %
/// 16, so that vectors of any width make consecutive elements from consecutive blocks.
struct Draws {
  static constexpr int chunk = 64, blocks_a_chunk = 16;
  std::array<std::uint32_t, 2> key{};
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;  ///< of the first row

  Draws() = default;
  Draws(const Pass& pass, std::string_view layer)
      : epoch(static_cast<std::uint32_t>(pass.epoch)), position(static_cast<std::uint64_t>(pass.position)) {
    const std::uint64_t mixed = hash_of(layer, hash_of(pass.seed));
    key = {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
  }

  /// Of a word of Philox, its upper bits.
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

/// The chunk of the elements that belong to key `key` and its neighbours, where an attention of `keys` keys
/// drops probabilities: query `query`, counted over the queries of all heads, begins a chunk of its own. The
/// key's element there is `key` % Draws::chunk.
CONVOY_HD constexpr std::int64_t chunk_of_keys(std::int64_t query, std::int64_t keys, std::int64_t key) {
  return query * ((keys + Draws::chunk - 1) / Draws::chunk) + key / Draws::chunk;
}

/// What is dropped and what the rest is multiplied by.
struct DropoutRule {
  std::int32_t threshold = 0;  ///< an element whose number is below is dropped
  float scale = 1;

  explicit constexpr DropoutRule(float p)
      : threshold(static_cast<std::int32_t>(p * 0x1p24f)), scale(1.0f / (1.0f - p)) {}
};

}  // namespace convoy::exec
