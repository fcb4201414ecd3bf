// The engine's thresholds, in one place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convoy::comm::detail {

/// How transfers are carried out where the options leave it open.
struct Tuning {
  /// A block is cut into at most so many segments: each is an instruction in a program.
  std::int64_t most_segments = 4096;
  /// So many receives of a transfer that combine may be under way, each with scratch memory of its own.
  int scratch_slots = 8;
  /// Receives are announced up to so many instructions ahead.
  std::size_t announced_ahead = 16;
  /// Scratch memory of a receive begins at a multiple of it: a page, so that two receives never share one.
  std::size_t scratch_alignment = 4096;
  /// From so many bytes on, of all buffers of a fold together, stores go past the caches: so much does not
  /// stay there anyway.
  std::int64_t streaming_bytes = std::int64_t{48} << 20;
};
inline constexpr Tuning tuning{};

}  // namespace convoy::comm::detail
