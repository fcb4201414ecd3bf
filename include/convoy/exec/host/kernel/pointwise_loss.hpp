// Losses with one number per row: means over the elements of a value and its target, both plain.
#pragma once

#include <cstdint>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/kernel/functions.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

/// (x - t)^2. A loss type has `loss`, and its derivatives in x and in the target; all overwrite x.
struct SquaredError {
  template <class V>
  CONVOY_INLINE static void loss(V& x, const V& t) {
    x = (x - t) * (x - t);
  }
  template <class V>
  CONVOY_INLINE static void slope(V& x, const V& t) {
    x = (x - t) * 2.0f;
  }
  template <class V>
  CONVOY_INLINE static void target_slope(V& x, const V& t) {
    x = (t - x) * 2.0f;
  }
};

/// max(x, 0) - x t + log(1 + e^-|x|): binary cross-entropy of a logit, in a form that does not overflow.
struct LogitError {
  template <class V>
  CONVOY_INLINE static void loss(V& x, const V& t) {
    V e = x < V{} ? x : -x;
    exponential(e);
    // log(1 + e) = 2 atanh(z) with z at most 1/3, as a series.
    const V z = e / (e + 2.0f), square = z * z;
    V log = square * (2.0f / 15) + 2.0f / 13;
    log = log * square + 2.0f / 11;
    log = log * square + 2.0f / 9;
    log = log * square + 2.0f / 7;
    log = log * square + 2.0f / 5;
    log = log * square + 2.0f / 3;
    log = (log * square + 2.0f) * z;
    x = (x < V{} ? V{} : x) - x * t + log;
  }
  template <class V>
  CONVOY_INLINE static void slope(V& x, const V& t) {
    logistic(x);
    x -= t;
  }
  template <class V>
  CONVOY_INLINE static void target_slope(V& x, const V&) {
    x = -x;
  }
};

/// *sum = the sum of F over n elements.
template <class F>
struct LossLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t n, const float* x, const float* target, float* sum) {
    simd::Vec<float, W> sums{}, v, t;
    simd::Vec<float, 1> rest{}, one, of;
    std::int64_t i = 0;
    for (; i + W <= n; i += W) {
      simd::load(v, x + i);
      simd::load(t, target + i);
      F::loss(v, t);
      sums += v;
    }
    for (; i < n; ++i) {
      simd::load(one, x + i);
      simd::load(of, target + i);
      F::loss(one, of);
      rest += one;
    }
    *sum = rest[0];
    for (int lane = 0; lane < W; ++lane) *sum += sums[lane];
  }
};

/// d (+)= factor times the derivative in x or in the target.
template <class F, bool of_target>
struct LossSlopeLoop {
  template <int W>
  CONVOY_INLINE static void run(std::int64_t n, const float* x, const float* target, float factor, float* d,
                                bool accumulate) {
    CONVOY_FOR_VECTORS(W, 0, n, {
      V v, t;
      simd::load(v, x + i);
      simd::load(t, target + i);
      if constexpr (of_target)
        F::target_slope(v, t);
      else
        F::slope(v, t);
      v *= factor;
      if (accumulate) {
        simd::load(t, d + i);
        v += t;
      }
      simd::store(d + i, v);
    })
  }
};

/// losses[r] = the mean of F over row r.
template <class F>
void pointwise_loss(int threads, int rows, std::int64_t n, const float* x, const float* target,
                    float* losses) {
  parallel(rows * n < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(rows, thread, team);
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      simd::run<LossLoop<F>>(n, x + r * n, target + r * n, losses + r);
      losses[r] /= static_cast<float>(n);
    }
  });
}

/// d (+)= dlosses times the derivative of `pointwise_loss`.
template <class F, bool of_target>
void pointwise_loss_slope(int threads, int rows, std::int64_t n, const float* x, const float* target,
                          const float* dlosses, float* d, bool accumulate) {
  parallel(rows * n < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(rows, thread, team);
    for (std::int64_t r = range.begin; r < range.end; ++r)
      simd::run<LossSlopeLoop<F, of_target>>(n, x + r * n, target + r * n, dlosses[r] / static_cast<float>(n),
                                             d + r * n, accumulate);
  });
}

}  // namespace convoy::exec::host
