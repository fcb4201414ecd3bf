// The thresholds of the host's kernels, in one place. Options leave them open; none of them changes what a
// kernel computes, except for rounding.
#pragma once

#include <cstdint>

namespace convoy::exec::host {

/// Loops over whole buffers.
struct LoopTuning {
  /// Elements. Shorter buffers are not worth waking a team for.
  std::int64_t worth_a_team = 16384;
};
inline constexpr LoopTuning loop_tuning{};

/// Norms over images.
struct NormTuning {
  /// Values. Float sums are added to double sums once they have at least this many.
  std::int64_t chunk = 256;
  /// Elements of the part of a map that a thread takes at a time if channels come last: it fits into the L1
  /// cache.
  std::int64_t span = 8192;
  /// Positions. Such a part has at least this many, however many channels there are.
  std::int64_t fewest_positions = 8;
};
inline constexpr NormTuning norm_tuning{};

struct AttentionTuning {
  /// Scores of a batch. Fewer are not worth waking a team for; a score costs more than an element of a loop.
  std::int64_t worth_a_team = 2048;
};
inline constexpr AttentionTuning attention_tuning{};

/// 3x3 convolutions over large maps by exec/host/kernel/winograd.hpp.
struct WinogradTuning {
  /// Positions along a side. On smaller maps, the tiles of 4x4 results are mostly waste. In f32,
  /// exec/host/kernel/taps.hpp is as fast on maps of 7x7.
  int smallest_side = 12;
  int smallest_side_bf16 = 7;
  /// Bytes of the matrices of tiles that a thread multiplies at a time.
  std::int64_t group_bytes = 768 * 1024;
  /// Tiles. A thread multiplies at least this many at a time, however large their matrices are.
  std::int64_t fewest_tiles = 16;
  /// Tiles whose products are added to the gradient of the filter at a time.
  std::int64_t gradient_tiles = 128;
};
inline constexpr WinogradTuning winograd_tuning{};

/// Convolutions by exec/host/op/gemm_convolution.hpp.
struct GemmTuning {
  /// Channels that are summed at a time: their part of a panel of weights stays in the first-level cache.
  int inner_channels = 256;
  /// Channels of the result that are computed at a time.
  int outer_channels = 512;
  /// Bytes of the matrices of the positions that a thread multiplies at a time.
  std::int64_t group_bytes = 640 * 1024;
  /// Positions. Threads share multiples of this many.
  int grain = 16;
  /// Positions that are multiplied at a time at most.
  int most_positions = 1024;
  /// Bytes of the matrix of gradients of a result that is multiplied at a time for the gradient of the
  /// weights.
  std::int64_t gradient_bytes = 1024 * 1024;
  /// Positions that are summed at a time for the gradient of the weights: a panel of so many of either factor
  /// fits into the first-level cache.
  int gradient_inner = 256;
};
inline constexpr GemmTuning gemm_tuning{};

/// Convolutions over small maps by exec/host/kernel/taps.hpp. The most positions for which oneDNN's kernels
/// are slower are measured in f32 with 16 and 128 images on AVX-512. With images in bf16, which these kernels
/// do not read, products in bf16 may be twice as fast; by estimate, padding costs more than that only if
/// tiles of positions are hardly filled.
struct TapTuning {
  /// Positions of the result.
  std::int64_t most_positions = 196;
  std::int64_t most_positions_bf16 = 16;
  /// Positions of the input of a 1x1 kernel, which meets no padding, so that there is little to gain: with a
  /// stride of one, and with a larger one.
  std::int64_t most_positions_1x1 = 16;
  std::int64_t most_positions_1x1_strided = 64;
  std::int64_t most_positions_1x1_bf16 = 4;
  /// Bytes that a thread may reuse from its second-level cache.
  std::int64_t cache_bytes = 384 * 1024;
};
inline constexpr TapTuning tap_tuning{};

/// Linear layers.
struct LinearTuning {
  /// Rows. From here on, oneDNN's matrix product computes the forward pass in f32: the implementation that
  /// oneDNN has for an inner product of plain weights divides work badly among threads.
  std::int64_t many_vectors = 16;
  /// Features on the narrower side of a weight, and multiplications. From here on, padded copies cost less
  /// than they save in the gradient of the weight: with them, it took from 0.4 to 0.95 of its time with two
  /// threads on a Zen 3.
  std::int64_t narrowest_copied = 128;
  std::int64_t least_copied = std::int64_t{1} << 25;
};
inline constexpr LinearTuning linear_tuning{};

/// A linear layer and its cross-entropy.
struct LinearCrossEntropyTuning {
  /// Columns. In bf16 there are logits for whole vectors of classes, the last of them of no class: oneDNN
  /// computes 50,257 columns at half the rate of 50,272.
  std::int64_t logit_grain = 16;
  /// Bytes. Each row of bf16 gradients of logits starts on a cache line. Without AMX, oneDNN multiplies
  /// unaligned rows, such as those of a vocabulary of 50,257 words, at two thirds of the rate. With AMX it
  /// multiplies rows that are not adjacent at two thirds of the rate.
  std::int64_t row_bytes = 64;
  /// Labels. Blocks have a multiple of this many, and at least this many.
  std::int64_t label_grain = 16;
};
inline constexpr LinearCrossEntropyTuning linear_cross_entropy_tuning{};

}  // namespace convoy::exec::host
