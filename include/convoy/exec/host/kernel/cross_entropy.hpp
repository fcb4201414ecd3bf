// Softmax cross-entropy over plain logits [rows, classes].
#pragma once

#include <cmath>
#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/kernel/functions.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// One row: its largest logit, the index of the first largest, and the sum of the exponentials shifted by it.
struct RowSummary {
  float largest = 0, sum = 0;
  std::int32_t argmax = 0;
};

struct SoftmaxRow {
  template <int W>
  CONVOY_INLINE static void run(const float* row, int classes, RowSummary* summary) {
    using V = simd::Vec<float, W>;
    float largest = row[0];
    std::int32_t argmax = 0;
    for (std::int32_t k = 1; k < classes; ++k)
      if (row[k] > largest) largest = row[k], argmax = k;
    V sums{};
    int k = 0;
    for (; k + W <= classes; k += W) {
      V v;
      simd::load(v, row + k);
      v -= largest;
      exponential(v);
      sums += v;
    }
    float sum = 0;
    for (int i = 0; i < W; ++i) sum += sums[i];
    for (; k < classes; ++k) {
      simd::Vec<float, 1> v = {row[k] - largest};
      exponential(v);
      sum += v[0];
    }
    *summary = {largest, sum, argmax};
  }
};

/// d[k] (+)= factor * exp(row[k] - normalizer).
struct SoftmaxGradientRow {
  template <int W>
  CONVOY_INLINE static void run(const float* row, int classes, float normalizer, float factor, float* d,
                                bool accumulate) {
    CONVOY_FOR_VECTORS(W, 0, classes, {
      V v, before;
      simd::load(v, row + i);
      v -= normalizer;
      exponential(v);
      v *= factor;
      if (accumulate) {
        simd::load(before, d + i);
        v += before;
      }
      simd::store(d + i, v);
    })
  }
};

/// For each label i, in `positions` a row: normalizers[i] = log of the sum of exponentials of its logits;
/// losses[row] = the sum over the row's labels of -log softmax(logits)[label]. Returns how many have their
/// (first) largest logit at their label.
inline std::int64_t cross_entropy_forward(int rows, int positions, int classes, const float* logits,
                                          const i32* labels, float* losses, float* normalizers) {
  std::int64_t correct = 0, i = 0;
  for (int r = 0; r < rows; ++r) {
    losses[r] = 0;
    for (int position = 0; position < positions; ++position, ++i) {
      const float* row = logits + i * classes;
      RowSummary summary;
      simd::run<SoftmaxRow>(row, classes, &summary);
      normalizers[i] = summary.largest + std::log(summary.sum);
      losses[r] += normalizers[i] - row[labels[i]];
      correct += summary.argmax == labels[i];
    }
  }
  return correct;
}

/// dlogits (+)= dloss * (softmax - one hot).
inline void cross_entropy_backward(int rows, int positions, int classes, const float* logits,
                                   const i32* labels, const float* normalizers, const float* dlosses,
                                   float* dlogits, bool accumulate) {
  std::int64_t i = 0;
  for (int r = 0; r < rows; ++r)
    for (int position = 0; position < positions; ++position, ++i) {
      float* d = dlogits + i * classes;
      simd::run<SoftmaxGradientRow>(logits + i * classes, classes, normalizers[i], dlosses[r], d, accumulate);
      d[labels[i]] -= dlosses[r];
    }
}

}  // namespace convoy::exec::host
