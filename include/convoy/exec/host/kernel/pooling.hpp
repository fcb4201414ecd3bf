// Pooling over blocked maps. Max pooling records which tap won, so that backward reads neither input nor
// output. To max pooling, a ReLU after it is one more candidate, zero, which is no tap: where zero wins, no
// gradient passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/pixels.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/graph/node.hpp>
#include <convoy/graph/window.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// One pooling over a batch; in backward `x` and `y` are gradients.
struct PoolTask {
  Map map;  ///< of x
  Map out;  ///< of y
  graph::Window window;
  bool relu = false;  ///< max pooling: a ReLU follows
  Pixels x, y;
  Pixels second;                   ///< backward: null, or what to add to y
  std::int32_t* winner = nullptr;  ///< max pooling: the winning tap, in the order of y's memory
  bool accumulate = false;         ///< backward: add to x

  /// Whether any buffer is in bf16.
  bool narrow() const { return x.narrow || y.narrow; }
};

/// The winning tap where zero wins.
inline constexpr std::int32_t no_tap = -1;

/// The taps [begin, end) of the window at output position `o` that meet the input.
inline Range taps_at(int o, const graph::Window& w, int kernel, int extent) {
  const int start = o * w.stride - w.padding;
  return {start < 0 ? -start : 0, start + kernel > extent ? extent - start : kernel};
}

/// An output position and the taps of its window that meet the input.
struct PoolWindow {
  std::int64_t at;      ///< the element of y
  std::int64_t corner;  ///< the element of x at tap (0, 0), which may lie outside the map
  Range down, right;

  /// What wins before the taps are compared: zero, or the first tap, whatever its value.
  std::int32_t first(const PoolTask& t) const {
    return t.relu ? no_tap : static_cast<std::int32_t>(down.begin * t.window.width + right.begin);
  }
};

/// Calls `visit(window)` for each position of a block of a row.
template <class Visit>
CONVOY_INLINE void for_each_window(const PoolTask& t, int row, int block, Visit visit) {
  const graph::Window& w = t.window;
  const std::int64_t from = row * t.map.row_stride + block * t.map.block_stride;
  std::int64_t at = row * t.out.row_stride + block * t.out.block_stride;
  for (int oy = 0; oy < t.out.height; ++oy) {
    const Range down = taps_at(oy, w, w.height, t.map.height);
    const std::int64_t line = static_cast<std::int64_t>(oy * w.stride - w.padding) * t.map.width;
    for (int ox = 0; ox < t.out.width; ++ox, at += t.out.position_stride)
      visit(PoolWindow{at, from + (line + ox * w.stride - w.padding) * t.map.position_stride, down,
                       taps_at(ox, w, w.width, t.map.width)});
  }
}

/// Calls `visit(x, tap)` for each tap of a window that meets the input, at element `x`.
template <class Visit>
CONVOY_INLINE void for_each_tap(const PoolTask& t, const PoolWindow& window, Visit visit) {
  for (std::int64_t ky = window.down.begin; ky < window.down.end; ++ky) {
    std::int64_t x = window.corner + (ky * t.map.width + window.right.begin) * t.map.position_stride;
    for (std::int64_t kx = window.right.begin; kx < window.right.end; ++kx, x += t.map.position_stride)
      visit(x, static_cast<std::int32_t>(ky * t.window.width + kx));
  }
}

/// The least result of max pooling.
inline float least(const PoolTask& t) { return t.relu ? 0.0f : -std::numeric_limits<float>::infinity(); }

/// Scalar max pooling in which NaN wins, as in PyTorch.
template <bool narrow>
[[gnu::cold]] void max_pool_of_any(const PoolTask& t, int row, int block) {
  for_each_window(t, row, block, [&](const PoolWindow& window) {
    for (int lane = 0; lane < t.map.lanes; ++lane) {
      float best = least(t);
      std::int32_t winner = window.first(t);
      for_each_tap(t, window, [&](std::int64_t x, std::int32_t tap) {
        simd::Vec<float, 1> v;
        load<narrow>(v, t.x, x + lane);
        if (v[0] <= best || best != best) return;
        best = v[0];
        winner = tap;
      });
      const simd::Vec<float, 1> only{best};
      store<narrow>(t.y, window.at + lane, only);
      t.winner[window.at + lane] = winner;
    }
  });
}

template <bool narrow>
struct MaxPoolLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    using Ints = simd::Vec<std::int32_t, W>;
    const PoolTask& t = *task;
    // A second comparison for NaN would make g++ 12 go lane by lane. Values that are not finite show here
    // instead; they are rare enough to pool again.
    V odd{};
    for_each_window(
        t, row, block, [&](const PoolWindow& window) __attribute__((always_inline)) {
          for (int lane = 0; lane < t.map.lanes; lane += W) {
            V best = V{} + least(t);
            Ints winner = Ints{} + window.first(t);
            for_each_tap(
                t, window, [&](std::int64_t x, std::int32_t tap) __attribute__((always_inline)) {
                  V v;
                  load<narrow>(v, t.x, x + lane);
                  const Ints here = Ints{} + tap;
                  winner = v <= best ? winner : here;
                  best = v <= best ? best : v;
                  odd += v * 0.0f;
                });
            store<narrow>(t.y, window.at + lane, best);
            simd::store(t.winner + window.at + lane, winner);
          }
        });
    float any = 0;
    for (int k = 0; k < W; ++k) any += odd[k];
    if (any != any) max_pool_of_any<narrow>(t, row, block);
  }
};

CONVOY_INLINE void clear_map(const PoolTask& t, int row, int block) {
  const std::size_t size = t.x.narrow ? sizeof(bf16) : sizeof(float);
  std::byte* const first =
      static_cast<std::byte*>(t.x.data) +
      (row * t.map.row_stride + block * t.map.block_stride) * static_cast<std::int64_t>(size);
  for (std::int64_t p = 0; p < t.map.positions(); ++p)
    __builtin_memset(first + p * t.map.position_stride * static_cast<std::int64_t>(size), 0,
                     static_cast<std::size_t>(t.map.lanes) * size);
}

/// The gradient of a vector of results.
template <bool narrow, class V>
CONVOY_INLINE void load_gradient(V& dy, const PoolTask& t, std::int64_t at) {
  load<narrow>(dy, t.y, at);
  if (!t.second) return;
  V other;
  load<narrow>(other, t.second, at);
  dy += other;
}

template <bool narrow>
struct MaxPoolBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    using Ints = simd::Vec<std::int32_t, W>;
    const PoolTask& t = *task;
    if (!t.accumulate) clear_map(t, row, block);
    for_each_window(
        t, row, block, [&](const PoolWindow& window) __attribute__((always_inline)) {
          for (int lane = 0; lane < t.map.lanes; lane += W) {
            V dy;
            Ints winner;
            load_gradient<narrow>(dy, t, window.at + lane);
            simd::load(winner, t.winner + window.at + lane);
            for_each_tap(
                t, window, [&](std::int64_t x, std::int32_t tap) __attribute__((always_inline)) {
                  V v;
                  load<narrow>(v, t.x, x + lane);
                  v += winner == tap ? dy : V{};
                  store<narrow>(t.x, x + lane, v);
                });
          }
        });
  }
};

template <bool narrow>
struct AveragePoolLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    const PoolTask& t = *task;
    const float share = 1.0f / static_cast<float>(t.window.height * t.window.width);
    for_each_window(
        t, row, block, [&](const PoolWindow& window) __attribute__((always_inline)) {
          for (int lane = 0; lane < t.map.lanes; lane += W) {
            V sum{};
            for_each_tap(
                t, window, [&](std::int64_t x, std::int32_t) __attribute__((always_inline)) {
                  V v;
                  load<narrow>(v, t.x, x + lane);
                  sum += v;
                });
            sum *= share;
            store<narrow>(t.y, window.at + lane, sum);
          }
        });
  }
};

template <bool narrow>
struct AveragePoolBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    const PoolTask& t = *task;
    const float share = 1.0f / static_cast<float>(t.window.height * t.window.width);
    if (!t.accumulate) clear_map(t, row, block);
    for_each_window(
        t, row, block, [&](const PoolWindow& window) __attribute__((always_inline)) {
          for (int lane = 0; lane < t.map.lanes; lane += W) {
            V dy;
            load_gradient<narrow>(dy, t, window.at + lane);
            dy *= share;
            for_each_tap(
                t, window, [&](std::int64_t x, std::int32_t) __attribute__((always_inline)) {
                  V v;
                  load<narrow>(v, t.x, x + lane);
                  v += dy;
                  store<narrow>(t.x, x + lane, v);
                });
          }
        });
  }
};

/// Runs a pooling loop over all rows and blocks.
template <template <bool> class Loop>
void pool(const PoolTask& task, int threads) {
  if (task.map.elements() < loop_tuning.worth_a_team) threads = 1;
  parallel(threads, [&](int thread, int team) {
    const Range planes = share(static_cast<std::int64_t>(task.map.rows) * task.map.blocks, thread, team);
    for (std::int64_t plane = planes.begin; plane < planes.end; ++plane) {
      const auto row = static_cast<int>(plane / task.map.blocks),
                 block = static_cast<int>(plane % task.map.blocks);
      task.narrow() ? run_in_lanes<Loop<true>>(task.map.lanes, &task, row, block)
                    : run_in_lanes<Loop<false>>(task.map.lanes, &task, row, block);
    }
  });
}

}  // namespace convoy::exec::host
