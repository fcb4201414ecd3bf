// Attention in plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/draws.hpp>
#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// Queries, keys and values of a batch: pointers to the first feature of the first position, and the stride
/// between positions. `T` is const for what is read.
template <class T>
struct AttentionParts {
  T* part[3] = {};  ///< queries, keys, values; null: no gradient wanted
  std::int64_t step[3] = {};
};

/// Replaces scores by probabilities.
template <class T>
void softmax(std::vector<T>& scores) {
  T largest = scores.empty() ? T(0) : scores[0], sum = 0;
  for (const T score : scores) largest = std::max(largest, score);
  for (T& score : scores) sum += score = std::exp(score - largest);
  for (T& score : scores) score /= sum;
}

/// One query of one head: the offsets of its features, of the first key, of the first value and of the result
/// in their arrays; the probabilities of the keys that it may read; and the dropout factor of each
/// probability, 0 if it is dropped.
template <class T>
struct Query {
  std::int64_t query = 0, key = 0, value = 0, result = 0;
  std::vector<T> probabilities, factors;
};

/// If `draws` is null, nothing is dropped.
template <class T, class Visit>
void for_each_query(const graph::Attention::Extents& e, int rows, const AttentionParts<const T>& x,
                    const i32* lengths, const Draws* draws, Visit&& visit) {
  const T scale = T(1) / std::sqrt(static_cast<T>(e.key_features));
  const DropoutRule rule(e.dropout);
  Query<T> q;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < e.heads; ++h)
      for (std::int64_t i = 0; i < e.queries; ++i) {
        std::int64_t keys = lengths == nullptr ? e.keys : lengths[r];
        if (e.causal) keys = std::min(keys, i + 1);
        q.query = (r * e.queries + i) * x.step[0] + h * e.key_features;
        q.key = r * e.keys * x.step[1] + h * e.key_features;
        q.value = r * e.keys * x.step[2] + h * e.value_features;
        q.result = ((r * e.queries + i) * e.heads + h) * e.value_features;
        q.probabilities.assign(static_cast<std::size_t>(keys), T(0));
        q.factors.assign(q.probabilities.size(), T(1));
        for (std::int64_t j = 0; j < keys; ++j) {
          T& score = q.probabilities[static_cast<std::size_t>(j)];
          for (std::int64_t c = 0; c < e.key_features; ++c)
            score += x.part[0][q.query + c] * x.part[1][q.key + j * x.step[1] + c];
          score *= scale;
          if (draws == nullptr) continue;
          const std::int64_t chunk = chunk_of_keys(h * e.queries + i, e.keys, j);
          const bool dropped = (*draws)(r, chunk * Draws::chunk + j % Draws::chunk) < rule.threshold;
          q.factors[static_cast<std::size_t>(j)] = dropped ? T(0) : static_cast<T>(rule.scale);
        }
        softmax(q.probabilities);
        visit(q);
      }
}

/// y [rows, queries, heads * value_features] = the values weighted by each query's probabilities.
template <class T>
void attention(const graph::Attention::Extents& e, int rows, const AttentionParts<const T>& x,
               const i32* lengths, const Draws* draws, T* y) {
  for_each_query(e, rows, x, lengths, draws, [&](const Query<T>& q) {
    std::fill_n(y + q.result, e.value_features, T(0));
    for (std::size_t j = 0; j < q.factors.size(); ++j)
      for (std::int64_t c = 0; c < e.value_features; ++c)
        y[q.result + c] += q.probabilities[j] * q.factors[j] *
                           x.part[2][q.value + static_cast<std::int64_t>(j) * x.step[2] + c];
  });
}

/// Adds the gradients of queries, keys and values to `dx`.
template <class T>
void attention_backward(const graph::Attention::Extents& e, int rows, const AttentionParts<const T>& x,
                        const i32* lengths, const Draws* draws, const T* dy, const AttentionParts<T>& dx) {
  const T scale = T(1) / std::sqrt(static_cast<T>(e.key_features));
  std::vector<T> slopes;  // gradients of the loss with respect to the probabilities
  for_each_query(e, rows, x, lengths, draws, [&](const Query<T>& q) {
    slopes.assign(q.factors.size(), T(0));
    T mean = 0;
    for (std::size_t j = 0; j < slopes.size(); ++j) {
      const std::int64_t v = q.value + static_cast<std::int64_t>(j) * x.step[2];
      for (std::int64_t c = 0; c < e.value_features; ++c) {
        slopes[j] += q.factors[j] * dy[q.result + c] * x.part[2][v + c];
        if (dx.part[2] != nullptr) dx.part[2][v + c] += q.probabilities[j] * q.factors[j] * dy[q.result + c];
      }
      mean += q.probabilities[j] * slopes[j];
    }
    for (std::size_t j = 0; j < slopes.size(); ++j) {
      const std::int64_t k = q.key + static_cast<std::int64_t>(j) * x.step[1];
      const T slope = q.probabilities[j] * (slopes[j] - mean) * scale;
      for (std::int64_t c = 0; c < e.key_features; ++c) {
        if (dx.part[0] != nullptr) dx.part[0][q.query + c] += slope * x.part[1][k + c];
        if (dx.part[1] != nullptr) dx.part[1][k + c] += slope * x.part[0][q.query + c];
      }
    }
  });
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Attention> {
  static graph::Attention::Extents extents(const reference::Frame<T>& f) {
    return graph::Attention::extents(f.graph(), f.index());
  }
  static const i32* lengths(const reference::Frame<T>& f) {
    const int input = extents(f).lengths;
    return input < 0 ? nullptr : f.integers(input);
  }
  /// Queries, keys and values as parts of the input arrays that `of` returns.
  template <class U, class Of>
  static reference::AttentionParts<U> parts(const reference::Frame<T>& f, Of of) {
    const graph::Attention::Extents e = extents(f);
    reference::AttentionParts<U> found;
    for (int p = 0; p < 3; ++p) {
      U* const input = of(e.input[p]);
      found.part[p] = input == nullptr ? nullptr : input + e.first[p];
      found.step[p] = e.features[p];
    }
    return found;
  }
  static reference::AttentionParts<const T> x(const reference::Frame<T>& f) {
    return parts<const T>(f, [&](int i) { return f.x(i); });
  }
  static void forward(const reference::Frame<T>& f) {
    const graph::Attention::Extents e = extents(f);
    const Draws draws(f.pass(), f.node().name.view());
    const bool drops = e.dropout > 0 && f.pass().mode == Mode::train;
    reference::attention(e, f.rows(), x(f), lengths(f), drops ? &draws : nullptr, f.y());
  }
  static void backward(const reference::Frame<T>& f) {
    const graph::Attention::Extents e = extents(f);
    const Draws draws(f.pass(), f.node().name.view());
    reference::attention_backward(e, f.rows(), x(f), lengths(f), e.dropout > 0 ? &draws : nullptr, f.dy(),
                                  parts<T>(f, [&](int i) { return f.dx(i); }));
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Attention);

}  // namespace convoy::exec
