// Layer normalization over plain vectors. Each vector is read from cache for its mean, then for its variance
// and then for its result, so that nothing is lost to cancellation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

/// The buffers of the loops. `kept` has two numbers per vector: its mean and 1 / sqrt(variance + epsilon).
/// `partial` has 2 * features numbers per thread.
struct LayerNormTask {
  std::int64_t vectors = 0, features = 0;
  float epsilon = 0;
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;  ///< null: none
  float* y = nullptr;
  float* kept = nullptr;
  const float* dy = nullptr;
  const float* second = nullptr;  ///< null, or added to dy
  float* dx = nullptr;            ///< null: not wanted; may be dy
  bool accumulate_dx = false;
  float* partial = nullptr;
  float* d_weight = nullptr;  ///< null: frozen
  float* d_bias = nullptr;
};

/// The sum of the lanes of a vector.
template <int W, class V>
CONVOY_INLINE float sum_of_lanes(const V& v) {
  float sum = 0;
  for (int i = 0; i < W; ++i) sum += v[i];
  return sum;
}

/// The sum of values that a loop visits in vectors of W and one by one.
template <int W>
struct Total {
  simd::Vec<float, W> lanes{};
  float rest = 0;

  template <class V>
  CONVOY_INLINE void add(const V& v) {
    if constexpr (sizeof(V) == sizeof(lanes))
      lanes += v;
    else
      rest += v[0];
  }
  CONVOY_INLINE float sum() const { return sum_of_lanes<W>(lanes) + rest; }
};

/// Writes y and `kept` of vector `v`, whose elements have the sum `sum`.
template <int W>
CONVOY_INLINE void normalize_vector(const LayerNormTask& t, std::int64_t v, float sum) {
  using V = simd::Vec<float, W>;
  const std::int64_t n = t.features, whole = n / W * W;
  const float count = static_cast<float>(n), mean = sum / count;
  const float* x = t.x + v * n;
  V value, other, squares{};
  for (std::int64_t i = 0; i < whole; i += W) {
    simd::load(value, x + i);
    value -= mean;
    squares += value * value;
  }
  float square = sum_of_lanes<W>(squares);
  for (std::int64_t i = whole; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
  const float inverse = 1.0f / std::sqrt(square / count + t.epsilon);
  t.kept[2 * v] = mean;
  t.kept[2 * v + 1] = inverse;
  float* y = t.y + v * n;
  for (std::int64_t i = 0; i < whole; i += W) {
    simd::load(value, x + i);
    simd::load(other, t.weight + i);
    value = (value - mean) * inverse * other;
    if (t.bias != nullptr) {
      simd::load(other, t.bias + i);
      value += other;
    }
    simd::store(y + i, value);
  }
  for (std::int64_t i = whole; i < n; ++i)
    y[i] = (x[i] - mean) * inverse * t.weight[i] + (t.bias == nullptr ? 0.0f : t.bias[i]);
}

/// Writes dx of vector `v` if it is wanted, and adds the gradients of weight and bias to a thread's
/// `partial`.
template <int W>
CONVOY_INLINE void normalize_vector_backward(const LayerNormTask& t, std::int64_t v, float* partial) {
  const std::int64_t n = t.features;
  const float count = static_cast<float>(n);
  float *d_weight = partial, *d_bias = partial + n;
  const float *x = t.x + v * n, *dy = t.dy + v * n;
  const float* second = t.second == nullptr ? nullptr : t.second + v * n;
  const float mean = t.kept[2 * v], inverse = t.kept[2 * v + 1];
  float sum = 0, dot = 0;
  simd::Vec<float, W> sums{}, dots{};
  std::int64_t k = 0;
  // One pass for the sums and the parameters' gradients.
#define CONVOY_LAYER_NORM_SUMS(width, add)    \
  for (; k + width <= n; k += width) {        \
    simd::Vec<float, width> g, normal, other; \
    simd::load(g, dy + k);                    \
    if (second != nullptr) {                  \
      simd::load(other, second + k);          \
      g += other;                             \
    }                                         \
    simd::load(normal, x + k);                \
    normal = (normal - mean) * inverse;       \
    simd::load(other, d_bias + k);            \
    other += g;                               \
    simd::store(d_bias + k, other);           \
    simd::load(other, d_weight + k);          \
    other += g * normal;                      \
    simd::store(d_weight + k, other);         \
    simd::load(other, t.weight + k);          \
    g *= other;                               \
    normal *= g;                              \
    add                                       \
  }
  CONVOY_LAYER_NORM_SUMS(W, sums += g; dots += normal;)
  CONVOY_LAYER_NORM_SUMS(1, sum += g[0]; dot += normal[0];)
#undef CONVOY_LAYER_NORM_SUMS
  if (t.dx == nullptr) return;
  const float of_one = (sum + sum_of_lanes<W>(sums)) / count;
  const float of_normal = (dot + sum_of_lanes<W>(dots)) / count;
  float* dx = t.dx + v * n;
  CONVOY_FOR_VECTORS(W, 0, n, {
    V g, normal, other;
    simd::load(g, dy + i);
    if (second != nullptr) {
      simd::load(other, second + i);
      g += other;
    }
    simd::load(normal, x + i);
    normal = (normal - mean) * inverse;
    simd::load(other, t.weight + i);
    g = (g * other - of_one - normal * of_normal) * inverse;
    if (t.accumulate_dx) {
      simd::load(other, dx + i);
      g += other;
    }
    simd::store(dx + i, g);
  })
}

/// Vectors [begin, end).
struct LayerNormLoop {
  template <int W>
  CONVOY_INLINE static void run(const LayerNormTask* task, std::int64_t begin, std::int64_t end) {
    const LayerNormTask t = *task;
    for (std::int64_t v = begin; v < end; ++v) {
      const float* x = t.x + v * t.features;
      Total<W> total;
      CONVOY_FOR_VECTORS(W, 0, t.features, {
        V value;
        simd::load(value, x + i);
        total.add(value);
      })
      normalize_vector<W>(t, v, total.sum());
    }
  }
};
struct LayerNormBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(const LayerNormTask* task, std::int64_t begin, std::int64_t end,
                                float* partial) {
    const LayerNormTask t = *task;
    for (std::int64_t v = begin; v < end; ++v) normalize_vector_backward<W>(t, v, partial);
  }
};

/// The number of threads to use.
inline int layer_norm_team(const LayerNormTask& task, int threads) {
  return task.vectors * task.features < loop_tuning.worth_a_team ? 1 : threads;
}

/// `Loop` and `Task` are those above, or an extended loop and its task.
template <class Loop = LayerNormLoop, class Task>
void layer_norm_forward(const Task& task, int threads) {
  parallel(layer_norm_team(task, threads), [&](int thread, int team) {
    const Range range = share(task.vectors, thread, team);
    simd::run<Loop>(&task, range.begin, range.end);
  });
}

template <class Loop = LayerNormBackwardLoop, class Task>
void layer_norm_backward(const Task& task, int threads) {
  const int team_size = layer_norm_team(task, threads);
  std::fill_n(task.partial, team_size * 2 * task.features, 0.0f);
  parallel(team_size, [&](int thread, int team) {
    const Range range = share(task.vectors, thread, team);
    simd::run<Loop>(&task, range.begin, range.end, task.partial + thread * 2 * task.features);
  });
  for (std::int64_t i = 0; i < task.features; ++i) {
    float weight = 0, bias = 0;
    for (int thread = 0; thread < team_size; ++thread) {
      weight += task.partial[thread * 2 * task.features + i];
      bias += task.partial[(thread * 2 + 1) * task.features + i];
    }
    if (task.d_weight != nullptr) task.d_weight[i] = weight;
    if (task.d_bias != nullptr) task.d_bias[i] = bias;
  }
}

}  // namespace convoy::exec::host
