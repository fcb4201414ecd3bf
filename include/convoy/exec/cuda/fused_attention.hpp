// Fused attention: one pass of a 16-bit attention as cuDNN computes it, described by numbers alone, as a
// convolution is (convolution.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/graph/plan.hpp>

namespace convoy::exec::cuda {

/// A tensor [rows, heads, positions, features], or a single number in host memory.
struct AttentionTensor {
  DType element = DType::f32;
  std::array<std::int64_t, 4> sizes{1, 1, 1, 1}, strides{1, 1, 1, 1};
  bool by_value = false;

  /// From the first element to the end of the last one.
  std::size_t bytes() const {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
    return static_cast<std::size_t>(last + 1) * size_of(element);
  }
};

/// Keys and values beyond a row's length are not read, and their gradients are not written.
struct FusedAttention {
  bool backward = false, causal = false, drops = false;
  DType element = DType::bf16;
  int rows = 0, heads = 0, queries = 0, keys = 0;
  int key_features = 0, value_features = 0;  ///< per head
  std::array<int, 3> step{};                 ///< elements from one query, key or value to the next

  friend constexpr bool operator==(const FusedAttention&, const FusedAttention&) = default;

  /// For error sentences.
  std::string text() const {
    return concat("an attention of ", heads, " heads of ", key_features, " features, ", queries,
                  " queries and ", keys, " keys, over ", rows, " rows in ", name_of(element));
  }
  std::uint64_t hash() const {
    std::uint64_t mixed = hash_of("attention");
    for (const int number : {static_cast<int>(backward), static_cast<int>(causal), static_cast<int>(drops),
                             static_cast<int>(element), rows, heads, queries, keys, key_features,
                             value_features, step[0], step[1], step[2]})
      mixed = hash_of(static_cast<std::uint64_t>(number), mixed);
    return mixed;
  }
  /// Whether every row of every head is aligned to 16 bytes, as cuDNN requires.
  bool is_aligned() const {
    for (const int count : {key_features, value_features, step[0], step[1], step[2]})
      if (count * size_of(element) % 16 != 0) return false;
    return true;
  }
  /// Whether no fault of cuDNN is known for the shape. Backward computes NaN for finite inputs on Hopper
  /// GPUs: in the gradients of queries if the number of keys is 64 above a multiple of 128 (pytorch issue
  /// 196678; cuDNN 9.20 to 9.30), and in those of keys and values if there is one query (cudnn-frontend issue
  /// 1072). It is not supported for one key (release notes of cuDNN 9.18.1).
  bool is_reliable() const { return !backward || (keys % 128 != 64 && keys > 1 && queries > 1); }
  /// Bytes of the dropout mask: 1 or 0 for each probability.
  std::size_t mask_bytes() const {
    return drops ? static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) *
                       static_cast<std::size_t>(queries) * static_cast<std::size_t>(keys) * size_of(element)
                 : 0;
  }
  /// The workspace worth having, if it and the mask may take `limit` bytes. Backward uses two bytes for each
  /// pair of a query and a key: without them the gradients of queries would be added in a varying order.
  std::size_t most_workspace(std::size_t limit) const {
    return limit > mask_bytes() ? limit - mask_bytes() : 0;
  }

  /// Queries, keys, values, results, and for each query the log-sum-exp of its scores; for each row the
  /// number of valid queries and of valid keys, the latter at least 1; the factor of scores, and the score of
  /// masked pairs. Then, for backward: the gradients of the results, queries, keys and values, scratch memory
  /// of one number per query, and 1. Then, with dropout: the mask, 1 for each probability that is kept, else
  /// 0, and the factor of kept probabilities. Backward with dropout takes the results times the share that
  /// dropout keeps: cuDNN's pattern has a number for that share, which cuDNN 9.19 takes for 1.
  std::vector<AttentionTensor> tensors() const {
    const AttentionTensor of_rows{DType::i32, {rows, 1, 1, 1}, {1, 1, 1, 1}},
        of_queries{DType::f32, {rows, heads, queries, 1}, {heads * queries, queries, 1, 1}},
        number{.by_value = true}, results = part(queries, value_features, heads * value_features);
    const AttentionTensor in[] = {part(queries, key_features, step[0]), part(keys, key_features, step[1]),
                                  part(keys, value_features, step[2])};
    std::vector<AttentionTensor> all = {in[0],
                                        transposed(in[1]),
                                        backward ? transposed(in[2]) : in[2],
                                        results,
                                        of_queries,
                                        of_rows,
                                        of_rows,
                                        number,
                                        number};
    if (backward) all.insert(all.end(), {results, in[0], in[1], in[2], of_queries, number});
    if (drops) {
      const std::int64_t of_head = std::int64_t{queries} * keys;
      all.push_back({element, {rows, heads, queries, keys}, {heads * of_head, of_head, keys, 1}});
      all.push_back(number);
    }
    return all;
  }

 private:
  AttentionTensor part(int positions, int features, int apart) const {
    return {
        element, {rows, heads, positions, features}, {std::int64_t{positions} * apart, features, apart, 1}};
  }
  static AttentionTensor transposed(AttentionTensor t) {
    std::swap(t.sizes[2], t.sizes[3]);
    std::swap(t.strides[2], t.strides[3]);
    return t;
  }
};

/// The attention of node `n` of a plan, forward or backward, in training.
inline FusedAttention fused_attention_of(const Plan& plan, int n, DType element, int rows, bool backward) {
  const graph::Attention::Extents e = graph::Attention::extents(plan.graph, n);
  return {.backward = backward,
          .causal = e.causal,
          .drops = e.dropout > 0,
          .element = element,
          .rows = rows,
          .heads = e.heads,
          .queries = e.queries,
          .keys = e.keys,
          .key_features = e.key_features,
          .value_features = e.value_features,
          .step = {e.features[0], e.features[1], e.features[2]}};
}

}  // namespace convoy::exec::cuda
