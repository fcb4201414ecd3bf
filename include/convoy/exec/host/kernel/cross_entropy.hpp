// Softmax cross-entropy over plain logits [rows, classes].
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/kernel/functions.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/parallel/elements.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// Softmax cross-entropy of `positions` labels per row, each with `classes` logits.
struct CrossEntropyTask {
  int rows = 0, positions = 1, classes = 0;
  std::int32_t ignored = 0;
  bool ignores = false;
  float smoothing = 0;
  const float* logits = nullptr;
  const i32* labels = nullptr;
  float* normalizers = nullptr;  ///< for each label, log of the sum of exponentials of its logits

  std::int64_t count() const { return static_cast<std::int64_t>(rows) * positions; }
  bool counts(std::int64_t i) const { return !ignores || labels[i] != ignored; }
};

/// Of one row: its largest logit, the index of the first largest, the sum of exp(logit - largest), and the
/// sum of (logit - largest).
struct RowSummary {
  float largest = 0, sum = 0, shifted = 0;
  std::int32_t argmax = 0;
};

struct SoftmaxRow {
  template <int W>
  CONVOY_INLINE static void run(const float* row, int classes, RowSummary* summary) {
    using V = simd::Vec<float, W>;
    const float largest = largest_of<W>(row, classes);
    // If the first logit is NaN, `largest` is NaN and argmax stays 0.
    std::int32_t argmax = 0;
    if (largest == largest)
      while (row[argmax] != largest) ++argmax;
    V sums{}, all_shifted{};
    int k = 0;
    for (; k + W <= classes; k += W) {
      V v;
      simd::load(v, row + k);
      v -= largest;
      all_shifted += v;
      exponential(v);
      sums += v;
    }
    float sum = 0, shifted = 0;
    for (int i = 0; i < W; ++i) sum += sums[i], shifted += all_shifted[i];
    for (; k < classes; ++k) {
      simd::Vec<float, 1> v = {row[k] - largest};
      shifted += v[0];
      exponential(v);
      sum += v[0];
    }
    *summary = {largest, sum, shifted, argmax};
  }

 private:
  /// The largest value; NaN counts only if it comes first.
  template <int W>
  CONVOY_INLINE static float largest_of(const float* row, int classes) {
    using V = simd::Vec<float, W>;
    // Several independent maxima, because each comparison waits for the one before it.
    constexpr int side_by_side = 4;
    V lanes[side_by_side];
    for (V& lane : lanes) lane = V{} + row[0];
    int k = 0;
    for (; k + side_by_side * W <= classes; k += side_by_side * W)
      for (int j = 0; j < side_by_side; ++j) {
        V v;
        simd::load(v, row + k + j * W);
        lanes[j] = v > lanes[j] ? v : lanes[j];
      }
    float largest = row[0];
    for (const V& lane : lanes)
      for (int i = 0; i < W; ++i) largest = lane[i] > largest ? lane[i] : largest;
    for (; k < classes; ++k) largest = row[k] > largest ? row[k] : largest;
    return largest;
  }
};

/// g[k] = factor * (exp(row[k] - normalizer) - each), minus `own` at k = label. d (+)= g, and `rounded` = g
/// in bf16; either may be null.
struct SoftmaxGradientRow {
  template <int W>
  CONVOY_INLINE static void run(const float* row, int classes, float normalizer, float factor, float each,
                                int label, float own, float* d, bool accumulate, bf16* rounded) {
    simd::Vec<float, 1> of_label = {row[label]};
    slope(of_label, normalizer, factor, each);
    of_label -= own;
    CONVOY_FOR_VECTORS(W, 0, classes, {
      V v, before;
      simd::load(v, row + i);
      slope(v, normalizer, factor, each);
      if (rounded != nullptr) simd::Elements<bf16, sizeof(V) / sizeof(float)>::store(rounded + i, v);
      if (accumulate) {
        simd::load(before, d + i);
        v += before;
      }
      if (d != nullptr) simd::store(d + i, v);
    })
    if (rounded != nullptr) simd::Elements<bf16, 1>::store(rounded + label, of_label);
    if (d != nullptr) d[label] -= own;
  }

 private:
  template <class V>
  CONVOY_INLINE static void slope(V& v, float normalizer, float factor, float each) {
    v -= normalizer;
    exponential(v);
    v = (v - each) * factor;
  }
};

/// The loss of label `i`, which must not be ignored, given the row of its logits. Writes its normalizer, and
/// adds 1 to `correct` if the first largest logit is the label's.
inline float label_loss(const CrossEntropyTask& t, std::int64_t i, const float* row, std::int64_t& correct) {
  RowSummary summary;
  simd::run<SoftmaxRow>(row, t.classes, &summary);
  const float log_sum = std::log(summary.sum);
  t.normalizers[i] = summary.largest + log_sum;
  const float mean = log_sum - summary.shifted / static_cast<float>(t.classes);
  const float own = t.normalizers[i] - row[t.labels[i]];
  correct += summary.argmax == t.labels[i];
  return t.smoothing > 0 ? own + t.smoothing * (mean - own) : own;
}

/// d (+)= dloss * (softmax - target distribution of label `i`), for one row of logits; `d` may be `row`.
/// `rounded` = the same in bf16, not accumulated. Either may be null.
inline void label_gradient(const CrossEntropyTask& t, std::int64_t i, const float* row, float dloss, float* d,
                           bool accumulate, bf16* rounded = nullptr) {
  if (t.counts(i)) {
    simd::run<SoftmaxGradientRow>(row, t.classes, t.normalizers[i], dloss,
                                  t.smoothing / static_cast<float>(t.classes), int{t.labels[i]},
                                  dloss * (1.0f - t.smoothing), d, accumulate, rounded);
  } else {
    if (d != nullptr && !accumulate) std::fill_n(d, t.classes, 0.0f);
    if (rounded != nullptr) std::fill_n(rounded, t.classes, bf16());
  }
}

/// The number of threads to use: one if there are few logits.
inline int cross_entropy_team(const CrossEntropyTask& t, int threads) {
  return t.count() * t.classes < loop_tuning.worth_a_team ? 1 : threads;
}

/// losses[row] = the sum over the row's labels of -log softmax(logits)[label], smoothed. Returns how many
/// labels that are not ignored have the (first) largest logit.
inline std::int64_t cross_entropy_forward(const CrossEntropyTask& t, float* losses, int threads) {
  std::atomic<std::int64_t> correct = 0;
  parallel(cross_entropy_team(t, threads), [&](int thread, int team) {
    const Range range = share(t.rows, thread, team);
    std::int64_t mine = 0;
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      losses[r] = 0;
      for (std::int64_t i = r * t.positions; i < (r + 1) * t.positions; ++i) {
        if (t.counts(i)) losses[r] += label_loss(t, i, t.logits + i * t.classes, mine);
      }
    }
    correct += mine;
  });
  return correct;
}

/// dlogits (+)= dloss * (softmax - target distribution of the label).
inline void cross_entropy_backward(const CrossEntropyTask& t, const float* dlosses, float* dlogits,
                                   bool accumulate, int threads) {
  parallel(cross_entropy_team(t, threads), [&](int thread, int team) {
    const Range range = share(t.count(), thread, team);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      label_gradient(t, i, t.logits + i * t.classes, dlosses[i / t.positions], dlogits + i * t.classes,
                     accumulate);
  });
}

}  // namespace convoy::exec::host
