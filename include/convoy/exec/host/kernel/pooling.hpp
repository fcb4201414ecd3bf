// Pooling over blocked maps. Max pooling notes which tap won, so that backward reads neither input nor
// output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/graph/node.hpp>
#include <convoy/graph/window.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// One pooling over a batch; `x` and `y` stand for the gradients in backward.
struct PoolTask {
  Map map;  ///< of x
  Map out;  ///< of y
  graph::Window window;
  float* x = nullptr;
  float* y = nullptr;
  std::int32_t* winner = nullptr;  ///< max: the tap, in the order of y's memory
  bool accumulate = false;         ///< backward: add to x
};

/// The taps [begin, end) of the window at output position `o` that meet the input.
inline Range taps_at(int o, const graph::Window& w, int kernel, int extent) {
  const int start = o * w.stride - w.padding;
  return {start < 0 ? -start : 0, start + kernel > extent ? extent - start : kernel};
}

/// Max pooling number by number, where a NaN wins and stays, as in PyTorch.
[[gnu::cold]] inline void max_pool_of_any(const PoolTask& t, int row, int block) {
  const graph::Window& w = t.window;
  for (int oy = 0; oy < t.out.height; ++oy) {
    const Range down = taps_at(oy, w, w.height, t.map.height);
    for (int ox = 0; ox < t.out.width; ++ox) {
      const Range right = taps_at(ox, w, w.width, t.map.width);
      const std::int64_t at = row * t.out.row_stride + block * t.out.block_stride +
                              (static_cast<std::int64_t>(oy) * t.out.width + ox) * t.out.position_stride;
      for (int lane = 0; lane < t.map.lanes; ++lane) {
        float best = -std::numeric_limits<float>::infinity();
        std::int64_t winner = down.begin * w.width + right.begin;
        for (std::int64_t ky = down.begin; ky < down.end; ++ky)
          for (std::int64_t kx = right.begin; kx < right.end; ++kx) {
            const std::int64_t position =
                (oy * w.stride - w.padding + ky) * t.map.width + ox * w.stride - w.padding + kx;
            const float v = t.x[row * t.map.row_stride + block * t.map.block_stride +
                                position * t.map.position_stride + lane];
            if (v <= best || best != best) continue;
            best = v;
            winner = ky * w.width + kx;
          }
        t.y[at + lane] = best;
        t.winner[at + lane] = static_cast<std::int32_t>(winner);
      }
    }
  }
}

struct MaxPoolLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    const PoolTask& t = *task;
    using I = simd::Vec<std::int32_t, W>;
    const graph::Window& w = t.window;
    // A second comparison for NaN would make g++ 12 go lane by lane. What is not finite shows here instead,
    // and is rare enough to be pooled again.
    V odd{};
    for (int oy = 0; oy < t.out.height; ++oy) {
      const Range down = taps_at(oy, w, w.height, t.map.height);
      for (int ox = 0; ox < t.out.width; ++ox) {
        const Range right = taps_at(ox, w, w.width, t.map.width);
        const std::int64_t at = row * t.out.row_stride + block * t.out.block_stride +
                                (static_cast<std::int64_t>(oy) * t.out.width + ox) * t.out.position_stride;
        for (int lane = 0; lane < t.map.lanes; lane += W) {
          V best = V{} - std::numeric_limits<float>::infinity();
          I winner = I{} + static_cast<std::int32_t>(down.begin * w.width + right.begin);
          for (std::int64_t ky = down.begin; ky < down.end; ++ky) {
            const std::int64_t line =
                (oy * w.stride - w.padding + ky) * t.map.width + ox * w.stride - w.padding;
            const float* x = t.x + row * t.map.row_stride + block * t.map.block_stride + lane;
            for (std::int64_t kx = right.begin; kx < right.end; ++kx) {
              V v;
              simd::load(v, x + (line + kx) * t.map.position_stride);
              const I tap = I{} + static_cast<std::int32_t>(ky * w.width + kx);
              winner = v <= best ? winner : tap;
              best = v <= best ? best : v;
              odd += v * 0.0f;
            }
          }
          simd::store(t.y + at + lane, best);
          simd::store(t.winner + at + lane, winner);
        }
      }
    }
    float any = 0;
    for (int k = 0; k < W; ++k) any += odd[k];
    if (any != any) max_pool_of_any(t, row, block);
  }
};

CONVOY_INLINE void clear_map(const PoolTask& t, int row, int block) {
  for (std::int64_t p = 0; p < t.map.positions(); ++p)
    __builtin_memset(t.x + row * t.map.row_stride + block * t.map.block_stride + p * t.map.position_stride, 0,
                     static_cast<std::size_t>(t.map.lanes) * sizeof(float));
}

struct MaxPoolBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    const PoolTask& t = *task;
    using I = simd::Vec<std::int32_t, W>;
    const graph::Window& w = t.window;
    if (!t.accumulate) clear_map(t, row, block);
    for (int oy = 0; oy < t.out.height; ++oy) {
      const Range down = taps_at(oy, w, w.height, t.map.height);
      for (int ox = 0; ox < t.out.width; ++ox) {
        const Range right = taps_at(ox, w, w.width, t.map.width);
        const std::int64_t at = row * t.out.row_stride + block * t.out.block_stride +
                                (static_cast<std::int64_t>(oy) * t.out.width + ox) * t.out.position_stride;
        for (int lane = 0; lane < t.map.lanes; lane += W) {
          V dy;
          I winner;
          simd::load(dy, t.y + at + lane);
          simd::load(winner, t.winner + at + lane);
          for (std::int64_t ky = down.begin; ky < down.end; ++ky) {
            const std::int64_t line =
                (oy * w.stride - w.padding + ky) * t.map.width + ox * w.stride - w.padding;
            float* x = t.x + row * t.map.row_stride + block * t.map.block_stride + lane;
            for (std::int64_t kx = right.begin; kx < right.end; ++kx) {
              V v;
              float* to = x + (line + kx) * t.map.position_stride;
              simd::load(v, to);
              v += winner == static_cast<std::int32_t>(ky * w.width + kx) ? dy : V{};
              simd::store(to, v);
            }
          }
        }
      }
    }
  }
};

struct AveragePoolLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    const PoolTask& t = *task;
    const graph::Window& w = t.window;
    const float share = 1.0f / static_cast<float>(w.height * w.width);
    for (int oy = 0; oy < t.out.height; ++oy) {
      const Range down = taps_at(oy, w, w.height, t.map.height);
      for (int ox = 0; ox < t.out.width; ++ox) {
        const Range right = taps_at(ox, w, w.width, t.map.width);
        const std::int64_t at = row * t.out.row_stride + block * t.out.block_stride +
                                (static_cast<std::int64_t>(oy) * t.out.width + ox) * t.out.position_stride;
        for (int lane = 0; lane < t.map.lanes; lane += W) {
          V sum{};
          for (std::int64_t ky = down.begin; ky < down.end; ++ky) {
            const std::int64_t line =
                (oy * w.stride - w.padding + ky) * t.map.width + ox * w.stride - w.padding;
            const float* x = t.x + row * t.map.row_stride + block * t.map.block_stride + lane;
            for (std::int64_t kx = right.begin; kx < right.end; ++kx) {
              V v;
              simd::load(v, x + (line + kx) * t.map.position_stride);
              sum += v;
            }
          }
          sum *= share;
          simd::store(t.y + at + lane, sum);
        }
      }
    }
  }
};

struct AveragePoolBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(const PoolTask* task, int row, int block) {
    using V = simd::Vec<float, W>;
    const PoolTask& t = *task;
    const graph::Window& w = t.window;
    const float share = 1.0f / static_cast<float>(w.height * w.width);
    if (!t.accumulate) clear_map(t, row, block);
    for (int oy = 0; oy < t.out.height; ++oy) {
      const Range down = taps_at(oy, w, w.height, t.map.height);
      for (int ox = 0; ox < t.out.width; ++ox) {
        const Range right = taps_at(ox, w, w.width, t.map.width);
        const std::int64_t at = row * t.out.row_stride + block * t.out.block_stride +
                                (static_cast<std::int64_t>(oy) * t.out.width + ox) * t.out.position_stride;
        for (int lane = 0; lane < t.map.lanes; lane += W) {
          V dy;
          simd::load(dy, t.y + at + lane);
          dy *= share;
          for (std::int64_t ky = down.begin; ky < down.end; ++ky) {
            const std::int64_t line =
                (oy * w.stride - w.padding + ky) * t.map.width + ox * w.stride - w.padding;
            float* x = t.x + row * t.map.row_stride + block * t.map.block_stride + lane;
            for (std::int64_t kx = right.begin; kx < right.end; ++kx) {
              V v;
              float* to = x + (line + kx) * t.map.position_stride;
              simd::load(v, to);
              v += dy;
              simd::store(to, v);
            }
          }
        }
      }
    }
  }
};

/// Runs a pooling loop over all rows and blocks.
template <class Loop>
void pool(const PoolTask& task, int threads) {
  if (task.map.elements() < parallel_threshold) threads = 1;
  parallel(threads, [&](int thread, int team) {
    const Range planes = share(static_cast<std::int64_t>(task.map.rows) * task.map.blocks, thread, team);
    for (std::int64_t plane = planes.begin; plane < planes.end; ++plane)
      run_in_lanes<Loop>(task.map.lanes, &task, static_cast<int>(plane / task.map.blocks),
                         static_cast<int>(plane % task.map.blocks));
  });
}

}  // namespace convoy::exec::host
