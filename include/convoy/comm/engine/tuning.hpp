// The engine's thresholds, in one place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convoy::comm::detail {

/// Parameters of execution that the options leave open.
struct Tuning {
  /// The most segments that a block is cut into; each is an instruction in a program.
  std::int64_t most_segments = 4096;
  /// The most combining receives of a transfer in flight; each has scratch memory of its own.
  int scratch_slots = 8;
  /// How many instructions ahead receives are announced.
  std::size_t announced_ahead = 16;
  /// Alignment of a receive's scratch memory: a page, so that two receives never share one.
  std::size_t scratch_alignment = 4096;
  /// The bytes, of all buffers of a fold together, from which stores bypass the caches, which would not hold
  /// so much anyway.
  std::int64_t streaming_bytes = std::int64_t{48} << 20;
};
inline constexpr Tuning tuning{};

}  // namespace convoy::comm::detail
