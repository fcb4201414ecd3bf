// Shared parts of the attention kernels: the task, and one head of it as a block sees it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <convoy/core/hd.hpp>
#include <convoy/exec/cuda/kernel/access.cuh>
#include <convoy/exec/cuda/kernel/dropout.cuh>

namespace convoy::exec::cuda {

/// One attention. Queries, keys and values (parts 0, 1 and 2) are `step` elements apart; each has
/// `key_features` or `value_features` elements for one head after the other. Results and their gradients are
/// contiguous.
template <class T>
struct AttentionTask {
  int rows = 0, heads = 0, queries = 0, keys = 0;
  int key_features = 0, value_features = 0;  ///< per head
  bool causal = false;
  float scale = 1;  ///< factor of scores
  const T* part[3] = {};
  int step[3] = {};              ///< elements from one to the next, of each part and its gradient
  const i32* lengths = nullptr;  ///< [rows]: numbers of valid keys; null: all keys are valid
  T* y = nullptr;                ///< [rows, queries, heads, value_features]
  const Draws* draws = nullptr;  ///< in device memory, for dropout of probabilities; null: no dropout
  DropoutRule rule{0};
  float* kept = nullptr;  ///< [rows, heads, queries]: log-sum-exp of scores, infinity if there are no keys
  // Backward. The gradient of y is dy + second.
  const T* dy = nullptr;
  const T* second = nullptr;
  T* gradient[3] = {};     ///< written; null: not wanted
  float* means = nullptr;  ///< [rows, heads, queries]: scratch memory of backward

  CONVOY_HD std::int64_t vectors() const { return std::int64_t{rows} * heads * queries; }
};

/// Positions of a tile: one chunk, whose draws share words.
inline constexpr int attention_tile = Draws::chunk;

/// Rows of one head within a tensor, from the first row of a tile on; `count` are left.
template <class T>
struct HeadRows {
  const T* data = nullptr;
  const T* second = nullptr;  ///< added unless null
  std::int64_t step = 0;
  int count = 0, features = 0;

  /// Loads W features of a row from `feature` on; zeros where there are none.
  template <int W>
  __device__ void read(float (&to)[W], int row, int feature) const {
    if (row < count && feature < features)
      load_gradient(to, data, second, row * step + feature);
    else
      for (int k = 0; k < W; ++k) to[k] = 0;
  }
  /// 16 bytes of a row from `feature` on, not converted, at a multiple of 16 bytes; zeros where there are
  /// none. There must be no `second`.
  __device__ device::Lanes<T> copy(int row, int feature) const {
    if (row < count && feature < features) return device::load_lanes(data + row * step + feature);
    return {};
  }
};

/// One head, as its block sees it.
template <class T>
struct AttentionHead {
  const AttentionTask<T>& t;
  int row, head;

  __device__ AttentionHead(const AttentionTask<T>& task, int unit)
      : t(task), row(unit / task.heads), head(unit % task.heads) {}
  /// Index of the head's first vector in [rows, heads, queries].
  __device__ std::int64_t vector() const { return (std::int64_t{row} * t.heads + head) * t.queries; }
  /// Offset of position `position` of a part, in elements.
  __device__ std::int64_t place(int part, int position) const {
    const int positions = part == 0 ? t.queries : t.keys;
    return (std::int64_t{row} * positions + position) * t.step[part] +
           head * (part == 2 ? t.value_features : t.key_features);
  }
  __device__ std::int64_t place_of_result(int query) const {
    return ((std::int64_t{row} * t.queries + query) * t.heads + head) * t.value_features;
  }
  /// A tile of a part, and a tile of the gradient of y.
  __device__ HeadRows<T> rows(int part, int first, int end) const {
    return {t.part[part] + place(part, first), nullptr, t.step[part], end - first,
            part == 2 ? t.value_features : t.key_features};
  }
  __device__ HeadRows<T> slopes(int first) const {
    const std::int64_t at = place_of_result(first);
    return {t.dy + at, t.second == nullptr ? nullptr : t.second + at,
            static_cast<std::int64_t>(t.heads) * t.value_features, t.queries - first, t.value_features};
  }
  /// Number of valid keys of the row.
  __device__ int length() const {
    const int given = t.lengths == nullptr ? t.keys : t.lengths[row];
    return given < t.keys ? given : t.keys;
  }
  /// Four random words: one for this query and key, the others for the keys 16, 32 and 48 away in the same
  /// chunk.
  __device__ std::array<std::uint32_t, 4> words(int query, int key) const {
    const std::int64_t chunk = chunk_of_keys(std::int64_t{head} * t.queries + query, t.keys, key);
    const int block = key % Draws::blocks_a_chunk;
    return words_of(*t.draws, row, static_cast<std::uint32_t>(chunk * Draws::blocks_a_chunk + block));
  }
  /// The dropout factors of four keys of one chunk, each 16 after the one before.
  __device__ void factors(float (&to)[4], int query, int key) const {
    for (float& f : to) f = 1;
    if (t.draws == nullptr) return;
    const auto four = words(query, key);
    for (std::size_t b = 0; b < 4; ++b)
      to[b] = Draws::number(four[b]) < t.rule.threshold ? 0.0f : t.rule.scale;
  }
  /// Which of 4 keys from `key` on are dropped for 4 queries that are 16 apart: bit 4 b + a for key a and
  /// query b. The keys use the same one of four words.
  __device__ unsigned dropped(int query, int key) const {
    unsigned bits = 0;
    if (t.draws == nullptr) return bits;
    const int own = key % Draws::chunk / Draws::blocks_a_chunk;
    for (int bit = 0; bit < 16; ++bit) {
      const auto four = words(query + bit / 4 * 16, key + bit % 4);
      std::uint32_t word = four[0];  // selected by comparison: an index would put the four into memory
      for (int k = 1; k < 4; ++k) word = k == own ? four[static_cast<std::size_t>(k)] : word;
      bits |= static_cast<unsigned>(Draws::number(word) < t.rule.threshold) << bit;
    }
    return bits;
  }
  __device__ bool may_read(int query, int key, int length) const {
    return query < t.queries && key < length && (!t.causal || key <= query);
  }
};

/// Whether every row of every head is aligned to 16 bytes.
template <class T>
bool attention_by_vectors(const AttentionTask<T>& t) {
  bool whole = true;
  for (const int step : t.step) whole = whole && step % device::lanes<T> == 0;
  return whole && t.key_features % device::lanes<T> == 0 && t.value_features % device::lanes<T> == 0;
}

}  // namespace convoy::exec::cuda
