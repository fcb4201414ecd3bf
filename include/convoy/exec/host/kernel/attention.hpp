// Attention by tiles of queries and keys with an online softmax (Dao et al., 2022; Dao, 2023): no score or
// probability leaves a core's cache, and backward recomputes them from the logarithms that forward saves. A
// tile of scores is [keys, queries], so that vectors run along queries: a maximum, a sum or a factor per
// query is then an operation on whole vectors, and keys and values are read in their own order as scalars.
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
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

inline constexpr int query_tile = 64, key_tile = Draws::chunk;

/// The buffers of attention. Queries, keys and values are `step` elements apart; results and their gradients
/// are contiguous.
struct AttentionTask {
  int rows = 0, heads = 0, queries = 0, keys = 0;
  int key_features = 0, value_features = 0;  ///< of a head
  bool causal = false;
  float scale = 1;               ///< of scores
  const float* part[3] = {};     ///< queries, keys, values
  std::int64_t step[3] = {};     ///< stride of queries, keys and values, and of their gradients
  const i32* lengths = nullptr;  ///< [rows] or null: all keys count
  float* y = nullptr;            ///< [rows, queries, heads, value_features]
  float* log_sums = nullptr;     ///< [rows, heads, queries]: log of the sum of exponentials of scores
  const float* dy = nullptr;
  const float* second = nullptr;  ///< null, or added to dy
  float* gradient[3] = {};        ///< written; null if not wanted
  bool drops = false;             ///< whether probabilities are dropped, by `draws` and `rule`
  Draws draws;
  DropoutRule rule{0};
  float* scratch = nullptr;  ///< for each thread as many floats as the functions below return
  std::int64_t scratch_of_forward() const;
  std::int64_t scratch_of_backward() const;

  int blocks() const { return (queries + query_tile - 1) / query_tile; }
  /// The number of keys that at least one of a row's queries below `query_end` may read.
  int readable(int row, int query_end) const {
    const int length = lengths == nullptr ? keys : std::min<int>(keys, lengths[row]);
    return causal ? std::min(length, query_end) : length;
  }
  /// The stride between results of a head, and between their gradients.
  std::int64_t result_step() const { return std::int64_t{heads} * value_features; }
  /// Strides between padded rows of key features and of value features.
  std::int64_t key_row() const { return padded_columns(key_features); }
  std::int64_t value_row() const { return padded_columns(value_features); }
  /// The size of a tile's dropout factors, stored in both orders.
  std::int64_t dropout_factors() const { return drops ? 2 * query_tile * key_tile : 0; }
  /// The number of threads to use.
  int team(int threads) const {
    const std::int64_t work = std::int64_t{rows} * heads * queries * keys;
    return work < attention_tuning.worth_a_team ? 1 : threads;
  }
};

/// One tile of scores, [keys, query_tile].
struct ScoreTile {
  int keys = 0, queries = 0;
  /// Query i may read key j of the tile if j <= i + ahead.
  int ahead = key_tile;
  float* scores = nullptr;
  float* largest = nullptr;  ///< of each query so far; so are the sums
  float* sums = nullptr;
  float* factors = nullptr;  ///< factors by which the sums and the results so far were rescaled
  const float* log_sums = nullptr;
  const float* means = nullptr;
  float* slopes = nullptr;
  const float* dropout_factors = nullptr;  ///< factors of probabilities; null: none is dropped

  /// The number of keys that every query in the vector from query i on may read.
  CONVOY_INLINE int open(int i) const { return std::clamp(i + ahead + 1, 0, keys); }
};

/// x *= factors[at ...], unless that is null.
template <class V>
CONVOY_INLINE void drop(V& x, const float* factors, std::int64_t at) {
  if (factors == nullptr) return;
  V factor;
  simd::load(factor, factors + at);
  x *= factor;
}

inline constexpr std::int32_t lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// Replaces scores by exp(score - largest so far), with dropout, and updates the largest, sums and factors.
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
        drop(x, t.dropout_factors, j * query_tile + i);
        simd::store(scores + j * query_tile, x);
      }
      for (int j = open; j < t.keys; ++j) {
        simd::load(x, scores + j * query_tile);
        x -= best;
        exponential(x);
        x = lane + (i + t.ahead) < j ? V{} : x;
        sum += x;
        drop(x, t.dropout_factors, j * query_tile + i);
        simd::store(scores + j * query_tile, x);
      }
      simd::store(t.largest + i, best);
      simd::store(t.sums + i, sum);
      simd::store(t.factors + i, factor);
    }
  }
};

/// Replaces scores by probabilities p, with dropout, and gradients of these by those of the scores: p
/// (gradient of p - mean).
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
      simd::load(logarithm, t.log_sums + i);
      simd::load(mean, t.means + i);
      for (int j = 0; j < t.keys; ++j) {
        float *const score = t.scores + j * query_tile + i, *const to = t.slopes + j * query_tile + i;
        simd::load(x, score);
        x -= logarithm;
        exponential(x);
        if (j >= open) x = lane + (i + t.ahead) < j ? V{} : x;
        simd::load(slope, to);
        drop(slope, t.dropout_factors, j * query_tile + i);
        slope = x * (slope - mean);
        simd::store(to, slope);
        drop(x, t.dropout_factors, j * query_tile + i);
        simd::store(score, x);
      }
    }
  }
};

/// factors[query, key] = the dropout factor of a probability, for `queries` queries from `first` on, counted
/// over all heads, and for the keys of one chunk.
struct DrawLoop {
  template <int W>
  CONVOY_INLINE static void run(const AttentionTask* task, std::uint64_t position, std::int64_t first,
                                int queries, int key, float* factors) {
    const AttentionTask& t = *task;
    alignas(64) std::int32_t numbers[Draws::chunk];
    for (int q = 0; q < queries; ++q) {
      draw_chunk<W>(t.draws, position, chunk_of_keys(first + q, t.keys, key), numbers);
      for (int k = 0; k < Draws::chunk; k += W) {
        simd::Vec<std::int32_t, W> number;
        simd::load(number, numbers + k);
        const simd::Vec<float, W> none{};
        const simd::Vec<float, W> factor = number < t.rule.threshold ? none : none + t.rule.scale;
        simd::store(factors + q * key_tile + k, factor);
      }
    }
  }
};

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

/// Copies rows contiguously: to[r, c] = (from[r, c] + second[r, c]) factor, with zeros up to `to_step`.
/// means[r] = the sum over c of to[r, c] y[r, c], unless `y` is null.
inline void gather(const float* from, const float* second, std::int64_t from_step, int rows, int columns,
                   float* to, std::int64_t to_step, float factor, const float* y = nullptr,
                   float* means = nullptr) {
  simd::run<GatherLoop>(from, second, from_step, rows, columns, to, to_step, factor, y, means);
}

/// Writes `rows` queries to `to` as [columns, query_tile], with zeros after the last query up to whole
/// vectors.
inline void transpose_queries(const float* from, std::int64_t step, int rows, int columns, float factor,
                              float* to) {
  transpose(from, step, rows, columns, to, query_tile, factor);
  const auto end = static_cast<int>(padded_columns(rows));
  if (end > rows)
    for (int c = 0; c < columns; ++c) std::fill(to + c * query_tile + rows, to + c * query_tile + end, 0.0f);
}

/// Up to `query_tile` consecutive queries of a head.
struct QueryBlock {
  int row, head, first, count;
  int lanes;                                      ///< `count` rounded up to whole vectors
  int readable;                                   ///< number of keys that at least one of them may read
  std::int64_t query_at, result_at, log_sums_at;  ///< offsets of the first query's data

  QueryBlock(const AttentionTask& t, int of_row, int of_head, int block)
      : row(of_row),
        head(of_head),
        first(block * query_tile),
        count(std::min(query_tile, t.queries - first)),
        lanes(static_cast<int>(padded_columns(count))),
        readable(t.readable(row, first + count)) {
    const std::int64_t query = std::int64_t{row} * t.queries + first;
    query_at = query * t.step[0] + head * t.key_features;
    result_at = query * t.result_step() + head * t.value_features;
    log_sums_at = (std::int64_t{row} * t.heads + head) * t.queries + first;
  }
};

/// The dropout factors of a block of queries and the keys of a chunk, as [keys, queries] in `memory`, which
/// has room for both orders; null if nothing is dropped.
inline const float* draw_tile(const AttentionTask& t, const QueryBlock& block, int key, float* memory) {
  if (!t.drops) return nullptr;
  float* const by_queries = memory + query_tile * key_tile;
  simd::run<DrawLoop>(&t, t.draws.position + static_cast<std::uint64_t>(block.row),
                      std::int64_t{block.head} * t.queries + block.first, block.lanes, key, by_queries);
  transpose(by_queries, key_tile, block.lanes, key_tile, memory, query_tile, 1.0f);
  return memory;
}

/// A thread's scratch memory, divided into pieces; without memory it only counts their size. Keys and values
/// of one head are copied here contiguously: in the inputs, other heads lie between them, and many of them
/// share the same few cache sets.
struct HeadScratch {
  const AttentionTask& t;
  float* memory;
  std::int64_t size = 0;  ///< floats in all pieces

  float* const keys = cut(padded_columns(std::int64_t{t.keys} * t.key_features));
  float* const values = cut(padded_columns(std::int64_t{t.keys} * t.value_features));

  HeadScratch(const AttentionTask& task, float* of_thread) : t(task), memory(of_thread) {}
  float* cut(std::int64_t count) {
    float* const piece = memory == nullptr ? nullptr : memory + size;
    size += count;
    return piece;
  }
  void fill(int row, int head) const {
    const std::int64_t first = std::int64_t{row} * t.keys, count = t.readable(row, t.queries);
    const float* const key = t.part[1] + first * t.step[1] + head * t.key_features;
    const float* const value = t.part[2] + first * t.step[2] + head * t.value_features;
    for (std::int64_t j = 0; j < count; ++j) {
      std::copy_n(key + j * t.step[1], t.key_features, keys + j * t.key_features);
      std::copy_n(value + j * t.step[2], t.value_features, values + j * t.value_features);
    }
  }
};

/// Arrays named `across` have a column for each query of a block.
struct ForwardScratch : HeadScratch {
  using HeadScratch::HeadScratch;
  float* const queries_across = cut(t.key_features * query_tile);  ///< scaled
  float* const results_across = cut(t.value_features * query_tile);
  float* const scores = cut(key_tile * query_tile);
  float* const largest = cut(query_tile);  ///< this and the next two: see ScoreTile
  float* const sums = cut(query_tile);
  float* const factors = cut(query_tile);
  float* const dropout_factors = cut(t.dropout_factors());
};

struct BackwardScratch : HeadScratch {
  using HeadScratch::HeadScratch;
  float* const queries = cut(query_tile * t.key_row());   ///< of a block, scaled
  float* const slopes = cut(query_tile * t.value_row());  ///< gradients of the block's results
  float* const d_keys = cut(t.keys * t.key_row());        ///< of the head; so are `d_values`
  float* const d_values = cut(t.keys * t.value_row());
  float* const queries_across = cut(t.key_features * query_tile);  ///< `queries` transposed
  float* const slopes_across = cut(t.value_features * query_tile);
  float* const d_queries_across = cut(t.key_features * query_tile);
  float* const scores = cut(key_tile * query_tile);
  float* const score_slopes = cut(key_tile * query_tile);
  float* const log_sums = cut(query_tile);  ///< this and the next: see ScoreTile
  float* const means = cut(query_tile);
  float* const dropout_factors = cut(t.dropout_factors());
};

inline std::int64_t AttentionTask::scratch_of_forward() const { return ForwardScratch(*this, nullptr).size; }
inline std::int64_t AttentionTask::scratch_of_backward() const {
  return BackwardScratch(*this, nullptr).size;
}

/// Computes the results of a block of queries.
inline void attend(const AttentionTask& t, const QueryBlock& block, const ForwardScratch& s) {
  const std::int64_t y_step = t.result_step();
  float* const y = t.y + block.result_at;
  float* const log_sums = t.log_sums + block.log_sums_at;
  if (block.readable == 0) {
    for (int i = 0; i < block.count; ++i) std::fill_n(y + i * y_step, t.value_features, 0.0f);
    std::fill_n(log_sums, block.count, 0.0f);
    return;
  }
  transpose_queries(t.part[0] + block.query_at, t.step[0], block.count, t.key_features, t.scale,
                    s.queries_across);
  std::fill_n(s.largest, block.lanes, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sums, block.lanes, 0.0f);
  for (int key = 0; key < block.readable; key += key_tile) {
    const int keys = std::min(key_tile, block.readable - key);
    multiply({.m = keys,
              .n = block.lanes,
              .k = t.key_features,
              .a = s.keys + std::int64_t{key} * t.key_features,
              .a_step = t.key_features,
              .b = s.queries_across,
              .b_step = query_tile,
              .c = s.scores,
              .c_step = query_tile});
    const ScoreTile tile{.keys = keys,
                         .queries = block.lanes,
                         .ahead = t.causal ? block.first - key : key_tile,
                         .scores = s.scores,
                         .largest = s.largest,
                         .sums = s.sums,
                         .factors = s.factors,
                         .dropout_factors = draw_tile(t, block, key, s.dropout_factors)};
    simd::run<OnlineSoftmaxLoop>(&tile);
    multiply({.m = t.value_features,
              .n = block.lanes,
              .k = keys,
              .a = s.values + std::int64_t{key} * t.value_features,
              .a_step = t.value_features,
              .a_by_columns = true,
              .b = s.scores,
              .b_step = query_tile,
              .c = s.results_across,
              .c_step = query_tile,
              .into = key == 0 ? SmallProduct::Into::assign : SmallProduct::Into::scale,
              .factors = s.factors});
  }
  for (int i = 0; i < block.count; ++i) log_sums[i] = s.largest[i] + std::log(s.sums[i]);
  for (int i = 0; i < block.count; ++i) s.factors[i] = 1.0f / s.sums[i];
  transpose(s.results_across, query_tile, t.value_features, block.count, y, y_step, 1.0f, s.factors);
}

inline void attention_forward(const AttentionTask& task, int threads) {
  const int blocks = task.blocks();
  parallel(task.team(threads), [&](int thread, int team) {
    const Range units = share(std::int64_t{task.rows} * task.heads * blocks, thread, team);
    const ForwardScratch scratch(task, task.scratch + thread * task.scratch_of_forward());
    for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
      const auto head = static_cast<int>(unit / blocks);
      const QueryBlock block(task, head / task.heads, head % task.heads, static_cast<int>(unit % blocks));
      if (unit == units.begin || block.first == 0) scratch.fill(block.row, block.head);
      attend(task, block, scratch);
    }
  });
}

/// Adds the contributions of a block of queries and of the tile of keys from `key` on to the gradients.
inline void add_gradients(const AttentionTask& t, const QueryBlock& block, int key,
                          const BackwardScratch& s) {
  const int keys = std::min(key_tile, block.readable - key);
  const float* const key_rows = s.keys + std::int64_t{key} * t.key_features;
  multiply({.m = keys,
            .n = block.lanes,
            .k = t.key_features,
            .a = key_rows,
            .a_step = t.key_features,
            .b = s.queries_across,
            .b_step = query_tile,
            .c = s.scores,
            .c_step = query_tile});
  multiply({.m = keys,
            .n = block.lanes,
            .k = t.value_features,
            .a = s.values + std::int64_t{key} * t.value_features,
            .a_step = t.value_features,
            .b = s.slopes_across,
            .b_step = query_tile,
            .c = s.score_slopes,
            .c_step = query_tile});
  const ScoreTile tile{.keys = keys,
                       .queries = block.lanes,
                       .ahead = t.causal ? block.first - key : key_tile,
                       .scores = s.scores,
                       .log_sums = s.log_sums,
                       .means = s.means,
                       .slopes = s.score_slopes,
                       .dropout_factors = draw_tile(t, block, key, s.dropout_factors)};
  simd::run<ScoreSlopeLoop>(&tile);
  if (t.gradient[2] != nullptr)
    multiply({.m = keys,
              .n = t.value_features,
              .k = block.count,
              .a = s.scores,
              .a_step = query_tile,
              .b = s.slopes,
              .b_step = t.value_row(),
              .c = s.d_values + key * t.value_row(),
              .c_step = t.value_row(),
              .into = SmallProduct::Into::add});
  if (t.gradient[1] != nullptr)
    multiply({.m = keys,
              .n = t.key_features,
              .k = block.count,
              .a = s.score_slopes,
              .a_step = query_tile,
              .b = s.queries,
              .b_step = t.key_row(),
              .c = s.d_keys + key * t.key_row(),
              .c_step = t.key_row(),
              .into = SmallProduct::Into::add});
  if (t.gradient[0] != nullptr)
    multiply({.m = t.key_features,
              .n = block.lanes,
              .k = keys,
              .a = key_rows,
              .a_step = t.key_features,
              .a_by_columns = true,
              .b = s.score_slopes,
              .b_step = query_tile,
              .c = s.d_queries_across,
              .c_step = query_tile,
              .into = key == 0 ? SmallProduct::Into::assign : SmallProduct::Into::add});
}

/// Computes the gradient of a block of queries, and adds its contributions to those of keys and values.
inline void attend_backward(const AttentionTask& t, const QueryBlock& block, const BackwardScratch& s) {
  if (block.readable > 0) {
    gather(t.part[0] + block.query_at, nullptr, t.step[0], block.count, t.key_features, s.queries,
           t.key_row(), t.scale);
    gather(t.dy + block.result_at, t.second == nullptr ? nullptr : t.second + block.result_at,
           t.result_step(), block.count, t.value_features, s.slopes, t.value_row(), 1.0f,
           t.y + block.result_at, s.means);
    transpose_queries(s.queries, t.key_row(), block.count, t.key_features, 1.0f, s.queries_across);
    transpose_queries(s.slopes, t.value_row(), block.count, t.value_features, 1.0f, s.slopes_across);
    std::copy_n(t.log_sums + block.log_sums_at, block.count, s.log_sums);
    std::fill(s.log_sums + block.count, s.log_sums + block.lanes, 0.0f);
    std::fill(s.means + block.count, s.means + block.lanes, 0.0f);
  }
  for (int key = 0; key < block.readable; key += key_tile) add_gradients(t, block, key, s);
  if (t.gradient[0] == nullptr) return;
  float* const d_queries = t.gradient[0] + block.query_at;
  if (block.readable > 0)
    transpose(s.d_queries_across, query_tile, t.key_features, block.count, d_queries, t.step[0], t.scale);
  else
    for (int i = 0; i < block.count; ++i) std::fill_n(d_queries + i * t.step[0], t.key_features, 0.0f);
}

/// Computes the gradients of one head of a row, tile by tile in a fixed order, so that every sum has a fixed
/// order.
inline void attend_backward_of_head(const AttentionTask& t, int row, int head, const BackwardScratch& s) {
  const int readable = t.readable(row, t.queries);
  s.fill(row, head);
  std::fill_n(s.d_keys, readable * t.key_row(), 0.0f);
  std::fill_n(s.d_values, readable * t.value_row(), 0.0f);
  for (int block = 0; block < t.blocks(); ++block) attend_backward(t, {t, row, head, block}, s);

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
  deliver(1, s.d_keys, t.key_row(), t.key_features);
  deliver(2, s.d_values, t.value_row(), t.value_features);
}

inline void attention_backward(const AttentionTask& task, int threads) {
  parallel(task.team(threads), [&](int thread, int team) {
    const Range units = share(std::int64_t{task.rows} * task.heads, thread, team);
    const BackwardScratch scratch(task, task.scratch + thread * task.scratch_of_backward());
    for (std::int64_t unit = units.begin; unit < units.end; ++unit)
      attend_backward_of_head(task, static_cast<int>(unit / task.heads), static_cast<int>(unit % task.heads),
                              scratch);
  });
}

}  // namespace convoy::exec::host
