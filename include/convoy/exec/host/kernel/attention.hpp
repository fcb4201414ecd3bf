// Attention by tiles of queries and keys, the softmax online (Dao et al., 2022; Dao, 2023): no score or
// probability leaves a core's cache, and backward makes them anew from the logarithms that forward keeps. A
// tile of scores is [keys, queries], so that vectors run along queries: a maximum, a sum or a factor of each
// query is then an operation on whole vectors, and keys and values are read as they lie, one number at a
// time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/draws.hpp>
#include <convoy/exec/host/kernel/dropout.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/kernel/functions.hpp>
#include <convoy/exec/host/kernel/small_product.hpp>

namespace convoy::exec::host {

inline constexpr int query_tile = 64, key_tile = Draws::chunk;

/// What the loops read and write. Queries, keys and values lie `step` numbers apart, results and their
/// gradients side by side.
struct AttentionTask {
  int rows = 0, heads = 0, queries = 0, keys = 0;
  int key_features = 0, value_features = 0;  ///< of a head
  bool causal = false;
  float scale = 1;               ///< of scores
  const float* part[3] = {};     ///< queries, keys, values
  std::int64_t step[3] = {};     ///< of each, and of its gradient
  const i32* lengths = nullptr;  ///< [rows] or null: all keys count
  float* y = nullptr;            ///< [rows, queries, heads, value_features]
  float* kept = nullptr;         ///< [rows, heads, queries]: log of the sum of exponentials of scores
  const float* dy = nullptr;
  const float* second = nullptr;  ///< null, or added to dy
  float* gradient[3] = {};        ///< written; null where not wanted
  bool drops = false;             ///< probabilities, by `draws` and `rule`
  Draws draws;
  DropoutRule rule{0};
  float* scratch = nullptr;  ///< for each thread as many numbers as the function below says

  int blocks() const { return (queries + query_tile - 1) / query_tile; }
  /// The keys that a row's queries below `query_end` may read between them.
  int readable(int row, int query_end) const {
    const int length = lengths == nullptr ? keys : std::min<int>(keys, lengths[row]);
    return causal ? std::min(length, query_end) : length;
  }
  std::int64_t scratch_of_forward() const {
    return std::int64_t{query_tile} * (key_features + value_features + key_tile + 3) + keys_and_values() +
           factors_of_tile();
  }
  std::int64_t scratch_of_backward() const {
    const std::int64_t features = padded_columns(key_features) + padded_columns(value_features);
    return std::int64_t{query_tile} * (2 * key_features + value_features + 2 * key_tile + 2) +
           (query_tile + keys) * features + keys_and_values() + factors_of_tile();
  }
  /// Numbers of one head's, aligned as a vector.
  std::int64_t keys_and_values() const {
    return padded_columns(std::int64_t{keys} * key_features) +
           padded_columns(std::int64_t{keys} * value_features);
  }
  /// Numbers of what probabilities are multiplied by, in both orders.
  std::int64_t factors_of_tile() const { return drops ? 2 * query_tile * key_tile : 0; }
  /// A team for the whole of it.
  int team(int threads) const {
    const std::int64_t work = std::int64_t{rows} * heads * queries * keys;
    return work < parallel_threshold / 8 ? 1 : threads;
  }
};

/// One tile of scores, [keys, query_tile].
struct ScoreTile {
  int keys = 0, queries = 0;
  /// Query i may read key j of the tile if j <= i + ahead.
  int ahead = key_tile;
  float* scores = nullptr;
  float* largest = nullptr;  ///< of each query so far, as the sums
  float* sums = nullptr;
  float* factors = nullptr;  ///< what the sums, and what was added up by them, were multiplied by
  const float* logarithms = nullptr;
  const float* means = nullptr;
  float* slopes = nullptr;
  const float* kept = nullptr;  ///< what probabilities are multiplied by; null: none is dropped

  /// The keys that all of the vector of queries from i on may read.
  CONVOY_INLINE int open(int i) const { return std::clamp(i + ahead + 1, 0, keys); }
};

/// x *= kept[at ...], unless that is null.
template <class V>
CONVOY_INLINE void drop(V& x, const float* kept, std::int64_t at) {
  if (kept == nullptr) return;
  V factor;
  simd::load(factor, kept + at);
  x *= factor;
}

inline constexpr std::int32_t lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// Scores become exponentials of their distance to the largest so far.
struct OnlineSoftmaxLoop {
  template <int W>
  CONVOY_INLINE static void run(const ScoreTile* tile) {
    using V = simd::Vec<float, W>;
    const ScoreTile t = *tile;
    simd::Vec<std::int32_t, W> lane;
    simd::load(lane, lane_numbers);
    const V never = V{} - std::numeric_limits<float>::infinity();
    for (int i = 0; i < t.queries; i += W) {
      float* const scores = t.scores + i;
      const int open = t.open(i);
      V before, best, x;
      simd::load(before, t.largest + i);
      best = before;
      for (int j = 0; j < open; ++j) {
        simd::load(x, scores + j * query_tile);
        best = x > best ? x : best;
      }
      for (int j = open; j < t.keys; ++j) {
        simd::load(x, scores + j * query_tile);
        x = lane + (i + t.ahead) < j ? never : x;
        simd::store(scores + j * query_tile, x);
        best = x > best ? x : best;
      }
      V factor = before - best, sum;
      exponential(factor);
      simd::load(sum, t.sums + i);
      sum *= factor;
      for (int j = 0; j < open; ++j) {
        simd::load(x, scores + j * query_tile);
        x -= best;
        exponential(x);
        sum += x;
        drop(x, t.kept, j * query_tile + i);
        simd::store(scores + j * query_tile, x);
      }
      for (int j = open; j < t.keys; ++j) {
        simd::load(x, scores + j * query_tile);
        x -= best;
        exponential(x);
        x = lane + (i + t.ahead) < j ? V{} : x;
        sum += x;
        drop(x, t.kept, j * query_tile + i);
        simd::store(scores + j * query_tile, x);
      }
      simd::store(t.largest + i, best);
      simd::store(t.sums + i, sum);
      simd::store(t.factors + i, factor);
    }
  }
};

/// Scores become probabilities p, and the slopes of what is left of these those of the scores: p (slope -
/// mean).
struct ScoreSlopeLoop {
  template <int W>
  CONVOY_INLINE static void run(const ScoreTile* tile) {
    using V = simd::Vec<float, W>;
    const ScoreTile t = *tile;
    simd::Vec<std::int32_t, W> lane;
    simd::load(lane, lane_numbers);
    for (int i = 0; i < t.queries; i += W) {
      const int open = t.open(i);
      V logarithm, mean, x, slope;
      simd::load(logarithm, t.logarithms + i);
      simd::load(mean, t.means + i);
      for (int j = 0; j < t.keys; ++j) {
        float *const score = t.scores + j * query_tile + i, *const to = t.slopes + j * query_tile + i;
        simd::load(x, score);
        x -= logarithm;
        exponential(x);
        if (j >= open) x = lane + (i + t.ahead) < j ? V{} : x;
        simd::load(slope, to);
        drop(slope, t.kept, j * query_tile + i);
        slope = x * (slope - mean);
        simd::store(to, slope);
        drop(x, t.kept, j * query_tile + i);
        simd::store(score, x);
      }
    }
  }
};

/// kept[query, key] = what a probability is multiplied by, for `queries` from `first` on, counted over those
/// of all heads, and the keys of one chunk.
struct DrawLoop {
  template <int W>
  CONVOY_INLINE static void run(const AttentionTask* task, std::uint64_t position, std::int64_t first,
                                int queries, int key, float* kept) {
    const AttentionTask& t = *task;
    alignas(64) std::int32_t numbers[Draws::chunk];
    for (int q = 0; q < queries; ++q) {
      draw_chunk<W>(t.draws, position, chunk_of_keys(first + q, t.keys, key), numbers);
      for (int k = 0; k < Draws::chunk; k += W) {
        simd::Vec<std::int32_t, W> number;
        simd::load(number, numbers + k);
        const simd::Vec<float, W> none{};
        const simd::Vec<float, W> factor = number < t.rule.threshold ? none : none + t.rule.scale;
        simd::store(kept + q * key_tile + k, factor);
      }
    }
  }
};

/// The same as [keys, queries] in `memory`, which has room for both orders; null where nothing is dropped.
inline const float* draw_tile(const AttentionTask& t, int row, int head, int first, int queries, int key,
                              float* memory) {
  if (!t.drops) return nullptr;
  float* const by_queries = memory + query_tile * key_tile;
  simd::run<DrawLoop>(&t, t.draws.position + static_cast<std::uint64_t>(row),
                      std::int64_t{head} * t.queries + first, queries, key, by_queries);
  transpose(by_queries, key_tile, queries, key_tile, memory, query_tile, 1.0f);
  return memory;
}

struct GatherLoop {
  template <int W>
  CONVOY_INLINE static void run(const float* from, const float* second, std::int64_t from_step, int rows,
                                int columns, float* to, std::int64_t to_step, float factor, const float* y,
                                float* means) {
    for (int r = 0; r < rows; ++r) {
      const std::int64_t at = r * from_step;
      float* const row = to + r * to_step;
      float sum = 0;
      CONVOY_FOR_VECTORS(W, 0, columns, {
        V x, other;
        simd::load(x, from + at + i);
        if (second != nullptr) {
          simd::load(other, second + at + i);
          x += other;
        }
        x *= factor;
        simd::store(row + i, x);
        if (y != nullptr) {
          simd::load(other, y + at + i);
          x *= other;
          for (std::size_t k = 0; k < sizeof(V) / sizeof(float); ++k) sum += x[k];
        }
      })
      std::fill(row + columns, row + to_step, 0.0f);
      if (y != nullptr) means[r] = sum;
    }
  }
};

/// Rows of numbers side by side: to[r, c] = (from[r, c] + second[r, c]) factor, with zeros up to `to_step`;
/// and means[r] = the sum of to[r, c] y[r, c], unless `y` is null.
inline void gather(const float* from, const float* second, std::int64_t from_step, int rows, int columns,
                   float* to, std::int64_t to_step, float factor, const float* y = nullptr,
                   float* means = nullptr) {
  simd::run<GatherLoop>(from, second, from_step, rows, columns, to, to_step, factor, y, means);
}

/// `rows` queries from `from`, as [columns, query_tile] with zeros behind the last.
inline void transpose_queries(const float* from, std::int64_t step, int rows, int columns, float factor,
                              float* to) {
  transpose(from, step, rows, columns, to, query_tile, factor);
  const auto end = static_cast<int>(padded_columns(rows));
  if (end > rows)
    for (int c = 0; c < columns; ++c) std::fill(to + c * query_tile + rows, to + c * query_tile + end, 0.0f);
}

/// The keys and values of one head side by side: where they lie, those of other heads stand between them, and
/// many of them share the same few lines of a cache.
struct HeadMemory {
  float* keys = nullptr;
  float* values = nullptr;

  HeadMemory(const AttentionTask& t, float* memory)
      : keys(memory), values(memory + padded_columns(std::int64_t{t.keys} * t.key_features)) {}
  void fill(const AttentionTask& t, int row, int head) const {
    const std::int64_t first = std::int64_t{row} * t.keys, count = t.readable(row, t.queries);
    const float* const key = t.part[1] + first * t.step[1] + head * t.key_features;
    const float* const value = t.part[2] + first * t.step[2] + head * t.value_features;
    for (std::int64_t j = 0; j < count; ++j) {
      std::copy_n(key + j * t.step[1], t.key_features, keys + j * t.key_features);
      std::copy_n(value + j * t.step[2], t.value_features, values + j * t.value_features);
    }
  }
};

/// The queries of one block of one head.
inline void attend(const AttentionTask& t, const HeadMemory& memory, int row, int head, int block,
                   float* scratch) {
  const int first = block * query_tile, count = std::min(query_tile, t.queries - first);
  const int lanes = static_cast<int>(padded_columns(count));
  const int readable = t.readable(row, first + count);
  const std::int64_t y_step = std::int64_t{t.heads} * t.value_features;
  const std::int64_t query = std::int64_t{row} * t.queries + first;
  float* const y = t.y + query * y_step + head * t.value_features;
  float* const kept = t.kept + (std::int64_t{row} * t.heads + head) * t.queries + first;
  if (readable == 0) {
    for (int i = 0; i < count; ++i) std::fill_n(y + i * y_step, t.value_features, 0.0f);
    std::fill_n(kept, count, 0.0f);
    return;
  }
  float* const queries = scratch;
  float* const results = queries + t.key_features * query_tile;
  float* const scores = results + t.value_features * query_tile;
  float* const largest = scores + key_tile * query_tile;
  float* const sums = largest + query_tile;
  float* const factors = sums + query_tile;
  float* const kept_tile = factors + query_tile;
  transpose_queries(t.part[0] + query * t.step[0] + head * t.key_features, t.step[0], count, t.key_features,
                    t.scale, queries);
  std::fill_n(largest, lanes, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, lanes, 0.0f);
  for (int key = 0; key < readable; key += key_tile) {
    const int keys = std::min(key_tile, readable - key);
    multiply({.m = keys,
              .n = lanes,
              .k = t.key_features,
              .a = memory.keys + std::int64_t{key} * t.key_features,
              .a_step = t.key_features,
              .b = queries,
              .b_step = query_tile,
              .c = scores,
              .c_step = query_tile});
    const ScoreTile tile{.keys = keys,
                         .queries = lanes,
                         .ahead = t.causal ? first - key : key_tile,
                         .scores = scores,
                         .largest = largest,
                         .sums = sums,
                         .factors = factors,
                         .kept = draw_tile(t, row, head, first, lanes, key, kept_tile)};
    simd::run<OnlineSoftmaxLoop>(&tile);
    multiply({.m = t.value_features,
              .n = lanes,
              .k = keys,
              .a = memory.values + std::int64_t{key} * t.value_features,
              .a_step = t.value_features,
              .a_by_columns = true,
              .b = scores,
              .b_step = query_tile,
              .c = results,
              .c_step = query_tile,
              .into = key == 0 ? SmallProduct::Into::assign : SmallProduct::Into::scale,
              .factors = factors});
  }
  for (int i = 0; i < count; ++i) kept[i] = largest[i] + std::log(sums[i]);
  for (int i = 0; i < count; ++i) factors[i] = 1.0f / sums[i];
  transpose(results, query_tile, t.value_features, count, y, y_step, 1.0f, factors);
}

inline void attention_forward(const AttentionTask& task, int threads) {
  const int blocks = task.blocks();
  parallel(task.team(threads), [&](int thread, int team) {
    const Range units = share(std::int64_t{task.rows} * task.heads * blocks, thread, team);
    float* const scratch = task.scratch + thread * task.scratch_of_forward();
    const HeadMemory memory(task, scratch);
    for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
      const auto head = static_cast<int>(unit / blocks), block = static_cast<int>(unit % blocks);
      if (unit == units.begin || block == 0) memory.fill(task, head / task.heads, head % task.heads);
      attend(task, memory, head / task.heads, head % task.heads, block, scratch + task.keys_and_values());
    }
  });
}

/// The gradients of one head of a row. Its tiles have an order, so that every sum has one.
inline void attend_backward(const AttentionTask& t, int row, int head, float* scratch) {
  const std::int64_t y_step = std::int64_t{t.heads} * t.value_features;
  const std::int64_t key_row = padded_columns(t.key_features), value_row = padded_columns(t.value_features);
  const int readable = t.readable(row, t.queries);
  const HeadMemory memory(t, scratch);
  memory.fill(t, row, head);
  float* const queries = scratch + t.keys_and_values();  // rows of scaled queries, and of slopes of results
  float* const slopes = queries + query_tile * key_row;
  float* const d_keys = slopes + query_tile * value_row;
  float* const d_values = d_keys + t.keys * key_row;
  float* const queries_across = d_values + t.keys * value_row;  // the same transposed
  float* const slopes_across = queries_across + t.key_features * query_tile;
  float* const d_queries = slopes_across + t.value_features * query_tile;
  float* const scores = d_queries + t.key_features * query_tile;
  float* const score_slopes = scores + key_tile * query_tile;
  float* const logarithms = score_slopes + key_tile * query_tile;
  float* const means = logarithms + query_tile;
  float* const kept_tile = means + query_tile;
  std::fill_n(d_keys, readable * key_row, 0.0f);
  std::fill_n(d_values, readable * value_row, 0.0f);

  for (int first = 0; first < t.queries; first += query_tile) {
    const int count = std::min(query_tile, t.queries - first);
    const int lanes = static_cast<int>(padded_columns(count)), end = t.readable(row, first + count);
    const std::int64_t query = std::int64_t{row} * t.queries + first;
    const std::int64_t query_at = query * t.step[0] + head * t.key_features,
                       result_at = query * y_step + head * t.value_features;
    if (end > 0) {
      gather(t.part[0] + query_at, nullptr, t.step[0], count, t.key_features, queries, key_row, t.scale);
      gather(t.dy + result_at, t.second == nullptr ? nullptr : t.second + result_at, y_step, count,
             t.value_features, slopes, value_row, 1.0f, t.y + result_at, means);
      transpose_queries(queries, key_row, count, t.key_features, 1.0f, queries_across);
      transpose_queries(slopes, value_row, count, t.value_features, 1.0f, slopes_across);
      std::copy_n(t.kept + (std::int64_t{row} * t.heads + head) * t.queries + first, count, logarithms);
      std::fill(logarithms + count, logarithms + lanes, 0.0f);
      std::fill(means + count, means + lanes, 0.0f);
    }
    for (int key = 0; key < end; key += key_tile) {
      const int keys = std::min(key_tile, end - key);
      const float* const key_rows = memory.keys + std::int64_t{key} * t.key_features;
      multiply({.m = keys,
                .n = lanes,
                .k = t.key_features,
                .a = key_rows,
                .a_step = t.key_features,
                .b = queries_across,
                .b_step = query_tile,
                .c = scores,
                .c_step = query_tile});
      multiply({.m = keys,
                .n = lanes,
                .k = t.value_features,
                .a = memory.values + std::int64_t{key} * t.value_features,
                .a_step = t.value_features,
                .b = slopes_across,
                .b_step = query_tile,
                .c = score_slopes,
                .c_step = query_tile});
      const ScoreTile tile{.keys = keys,
                           .queries = lanes,
                           .ahead = t.causal ? first - key : key_tile,
                           .scores = scores,
                           .logarithms = logarithms,
                           .means = means,
                           .slopes = score_slopes,
                           .kept = draw_tile(t, row, head, first, lanes, key, kept_tile)};
      simd::run<ScoreSlopeLoop>(&tile);
      if (t.gradient[2] != nullptr)
        multiply({.m = keys,
                  .n = t.value_features,
                  .k = count,
                  .a = scores,
                  .a_step = query_tile,
                  .b = slopes,
                  .b_step = value_row,
                  .c = d_values + key * value_row,
                  .c_step = value_row,
                  .into = SmallProduct::Into::add});
      if (t.gradient[1] != nullptr)
        multiply({.m = keys,
                  .n = t.key_features,
                  .k = count,
                  .a = score_slopes,
                  .a_step = query_tile,
                  .b = queries,
                  .b_step = key_row,
                  .c = d_keys + key * key_row,
                  .c_step = key_row,
                  .into = SmallProduct::Into::add});
      if (t.gradient[0] != nullptr)
        multiply({.m = t.key_features,
                  .n = lanes,
                  .k = keys,
                  .a = key_rows,
                  .a_step = t.key_features,
                  .a_by_columns = true,
                  .b = score_slopes,
                  .b_step = query_tile,
                  .c = d_queries,
                  .c_step = query_tile,
                  .into = key == 0 ? SmallProduct::Into::assign : SmallProduct::Into::add});
    }
    if (t.gradient[0] == nullptr) continue;
    if (end > 0)
      transpose(d_queries, query_tile, t.key_features, count, t.gradient[0] + query_at, t.step[0], t.scale);
    else
      for (int i = 0; i < count; ++i)
        std::fill_n(t.gradient[0] + query_at + i * t.step[0], t.key_features, 0.0f);
  }

  const auto deliver = [&](int part, const float* from, std::int64_t from_step, int features) {
    if (t.gradient[part] == nullptr) return;
    float* const to = t.gradient[part] + std::int64_t{row} * t.keys * t.step[part] + head * features;
    for (std::int64_t j = 0; j < t.keys; ++j) {
      if (j < readable)
        std::copy_n(from + j * from_step, features, to + j * t.step[part]);
      else
        std::fill_n(to + j * t.step[part], features, 0.0f);
    }
  };
  deliver(1, d_keys, key_row, t.key_features);
  deliver(2, d_values, value_row, t.value_features);
}

inline void attention_backward(const AttentionTask& task, int threads) {
  parallel(task.team(threads), [&](int thread, int team) {
    const Range units = share(std::int64_t{task.rows} * task.heads, thread, team);
    for (std::int64_t unit = units.begin; unit < units.end; ++unit)
      attend_backward(task, static_cast<int>(unit / task.heads), static_cast<int>(unit % task.heads),
                      task.scratch + thread * task.scratch_of_backward());
  });
}

}  // namespace convoy::exec::host
