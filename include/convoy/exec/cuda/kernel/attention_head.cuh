// What an attention's kernels share: the task, and one head of it as a block sees it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <convoy/core/hd.hpp>
#include <convoy/exec/cuda/kernel/access.cuh>
#include <convoy/exec/cuda/kernel/dropout.cuh>

namespace convoy::exec::cuda {

/// One attention. Queries, keys and values (parts 0, 1 and 2) lie `step` elements apart and belong to a head
/// each `key_features` or `value_features` at a time; results and their gradients lie side by side.
template <class T>
struct AttentionTask {
  int rows = 0, heads = 0, queries = 0, keys = 0;
  int key_features = 0, value_features = 0;  ///< of a head
  bool causal = false;
  float scale = 1;  ///< of scores
  const T* part[3] = {};
  int step[3] = {};              ///< of each, and of its gradient
  const i32* lengths = nullptr;  ///< [rows] or null: all keys count
  T* y = nullptr;                ///< [rows, queries, heads, value_features]
  const Draws* draws = nullptr;  ///< in device memory, of what drops probabilities; null: nothing does
  DropoutRule rule{0};
  float* kept = nullptr;  ///< [rows, heads, queries]: log of the sum of exponentials of scores, infinity
                          ///< where there are no keys
  // Backward. The gradient of y is dy + second.
  const T* dy = nullptr;
  const T* second = nullptr;
  T* gradient[3] = {};     ///< written; null: not wanted
  float* means = nullptr;  ///< [rows, heads, queries]: scratch memory of backward

  CONVOY_HD std::int64_t vectors() const { return std::int64_t{rows} * heads * queries; }
};

/// Positions of a tile: those whose draws share words.
inline constexpr int attention_tile = Draws::chunk;

/// Rows of one head within a tensor, of which `count` are a tile's.
template <class T>
struct HeadRows {
  const T* data = nullptr;
  const T* second = nullptr;  ///< null, or added
  std::int64_t step = 0;
  int count = 0, features = 0;

  /// W features of a row from `feature` on; zeros where there are none.
  template <int W>
  __device__ void read(float (&to)[W], int row, int feature) const {
    if (row < count && feature < features)
      load_gradient(to, data, second, row * step + feature);
    else
      for (int k = 0; k < W; ++k) to[k] = 0;
  }
  /// 16 bytes of a row from `feature` on, in T and at a multiple of 16 bytes; zeros where there are none.
  /// There is no `second`.
  __device__ device::Lanes<T> copy(int row, int feature) const {
    if (row < count && feature < features) return device::load_lanes(data + row * step + feature);
    return {};
  }
};

/// One head, as a block that has it sees it.
template <class T>
struct AttentionHead {
  const AttentionTask<T>& t;
  int row, head;

  __device__ AttentionHead(const AttentionTask<T>& task, int unit)
      : t(task), row(unit / task.heads), head(unit % task.heads) {}
  /// The first vector of the head in [rows, heads, queries].
  __device__ std::int64_t vector() const { return (std::int64_t{row} * t.heads + head) * t.queries; }
  /// Where position `position` of a part begins.
  __device__ std::int64_t place(int part, int position) const {
    const int positions = part == 0 ? t.queries : t.keys;
    return (std::int64_t{row} * positions + position) * t.step[part] +
           head * (part == 2 ? t.value_features : t.key_features);
  }
  __device__ std::int64_t place_of_result(int query) const {
    return ((std::int64_t{row} * t.queries + query) * t.heads + head) * t.value_features;
  }
  /// A tile of a part, and of the gradient of y.
  __device__ HeadRows<T> rows(int part, int first, int end) const {
    return {t.part[part] + place(part, first), nullptr, t.step[part], end - first,
            part == 2 ? t.value_features : t.key_features};
  }
  __device__ HeadRows<T> slopes(int first) const {
    const std::int64_t at = place_of_result(first);
    return {t.dy + at, t.second == nullptr ? nullptr : t.second + at,
            static_cast<std::int64_t>(t.heads) * t.value_features, t.queries - first, t.value_features};
  }
  /// The keys of the row that count.
  __device__ int length() const {
    const int given = t.lengths == nullptr ? t.keys : t.lengths[row];
    return given < t.keys ? given : t.keys;
  }
  /// The words of which a query and a key have one, and those whose keys are 16, 32 and 48 away in the same
  /// chunk the others.
  __device__ std::array<std::uint32_t, 4> words(int query, int key) const {
    const std::int64_t chunk = chunk_of_keys(std::int64_t{head} * t.queries + query, t.keys, key);
    const int block = key % Draws::blocks_a_chunk;
    return words_of(*t.draws, row, static_cast<std::uint32_t>(chunk * Draws::blocks_a_chunk + block));
  }
  /// What the probabilities of four keys, each 16 behind the one before, in one chunk, are multiplied by.
  __device__ void factors(float (&to)[4], int query, int key) const {
    for (float& f : to) f = 1;
    if (t.draws == nullptr) return;
    const auto four = words(query, key);
    for (std::size_t b = 0; b < 4; ++b)
      to[b] = Draws::number(four[b]) < t.rule.threshold ? 0.0f : t.rule.scale;
  }
  /// Which of 4 keys from `key` on are dropped for 4 queries 16 apart: bit 4 b + a for key a and query b. The
  /// keys have one word of four.
  __device__ unsigned dropped(int query, int key) const {
    unsigned bits = 0;
    if (t.draws == nullptr) return bits;
    const int own = key % Draws::chunk / Draws::blocks_a_chunk;
    for (int bit = 0; bit < 16; ++bit) {
      const auto four = words(query + bit / 4 * 16, key + bit % 4);
      std::uint32_t word = four[0];  // by comparing, because an index would put the four into memory
      for (int k = 1; k < 4; ++k) word = k == own ? four[static_cast<std::size_t>(k)] : word;
      bits |= static_cast<unsigned>(Draws::number(word) < t.rule.threshold) << bit;
    }
    return bits;
  }
  __device__ bool may_read(int query, int key, int length) const {
    return query < t.queries && key < length && (!t.causal || key <= query);
  }
};

/// Whether every row of every head begins at a multiple of 16 bytes.
template <class T>
bool attention_by_vectors(const AttentionTask<T>& t) {
  bool whole = true;
  for (const int step : t.step) whole = whole && step % device::lanes<T> == 0;
  return whole && t.key_features % device::lanes<T> == 0 && t.value_features % device::lanes<T> == 0;
}

}  // namespace convoy::exec::cuda
