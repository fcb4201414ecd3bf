// Batch normalization fused with its surroundings: forward in a pass for the statistics and one for the
// values (+ residual) (+ ReLU), backward in two passes. A thread takes whole channel blocks, so that a block
// that was read for its statistics is still in its cache when it is normalized. Threads share rows instead if
// channels come last, if blocks do not divide evenly and are fewer than four per thread, or if ranks share
// statistics; ranks then exchange the sums between the two passes.
//
// The statistics are exact to float: values are shifted by the mean of the channel's first values, summed in
// float over fewer than 2 * `norm_tuning.chunk` values and then in double. The order of additions depends
// only on the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/pixels.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/exec/running_statistics.hpp>
#include <convoy/parallel/elements.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

/// Per-channel values of a batch norm, one array each, padded to whole blocks.
struct NormState {
  float* mean = nullptr;     ///< subtracted from x
  float* scale = nullptr;    ///< weight / sqrt(variance + epsilon)
  float* shift = nullptr;    ///< bias
  float* inverse = nullptr;  ///< 1 / sqrt(variance + epsilon)
  float* slope = nullptr;    ///< backward: dx = scale g + slope (x - mean) + offset
  float* offset = nullptr;
  double* sums = nullptr;      ///< two numbers per lane, block and thread
  double* exchange = nullptr;  ///< for ranks to sum: two numbers per channel, and the count

  static std::int64_t bytes(const Map& map, int threads) {
    const std::int64_t lanes = static_cast<std::int64_t>(map.blocks) * map.lanes;
    return lanes * (6 * static_cast<std::int64_t>(sizeof(float)) +
                    (threads + 1) * 2 * static_cast<std::int64_t>(sizeof(double))) +
           static_cast<std::int64_t>(sizeof(double));
  }
  void bind(void* memory, const Map& map, int threads) {
    const std::int64_t lanes = static_cast<std::int64_t>(map.blocks) * map.lanes;
    sums = exchange = nullptr;
    float* at = static_cast<float*>(memory);
    for (float** array : {&mean, &scale, &shift, &inverse, &slope, &offset}) *array = at, at += lanes;
    sums = reinterpret_cast<double*>(at);
    exchange = sums + threads * 2 * lanes;
  }
};

/// One batch norm and its surroundings over a batch. Pointers that do not apply are null.
struct NormTask {
  Map map;
  NormState state;
  float epsilon = 0, momentum = 0;
  bool relu = false;
  AcrossRanks* across = nullptr;  // null: statistics over this rank's rows only
  double count = 0;               // number of values per channel in the statistics
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  Pixels x, residual, y;
  bf16* y_rounded = nullptr;  // null, or a copy of y in bf16
  // Backward. The gradient of the output is dy + second.
  Pixels dy, second;
  Pixels dx;  // may be dy
  bool accumulate_dx = false;
  Pixels d_residual;
  bool accumulate_residual = false;
  float* d_weight = nullptr;
  float* d_bias = nullptr;

  /// Whether any buffer is in bf16.
  bool narrow() const {
    return x.narrow || residual.narrow || y.narrow || dy.narrow || second.narrow || dx.narrow ||
           d_residual.narrow;
  }
  /// Whether backward's first pass stores the residual's gradient, which is the gradient of the norm's
  /// result, for the second pass to read.
  bool keeps_gradient() const { return d_residual && !accumulate_residual; }
};

/// Normalizes x. Forward and backward must compute the same bits, because backward masks by the sign.
template <class V>
CONVOY_INLINE void normalize(V& x, const V& mean, const V& scale, const V& shift) {
  x = (x - mean) * scale + shift;
}

/// Some positions of some rows, in some blocks of channels.
struct NormSpan {
  Range blocks, rows, positions;
};

/// Calls `visit(span)` for a thread's share of a map, in the order of memory: whole rows if blocks lie apart,
/// parts of rows that fit into the L1 cache if channels come last.
template <class Visit>
void for_each_span(const Map& m, int thread, int team, Visit visit) {
  const Range blocks{0, m.blocks};
  if (!m.channels_last) return visit(NormSpan{blocks, share(m.rows, thread, team), {0, m.positions()}});
  const std::int64_t most = std::max(norm_tuning.fewest_positions, norm_tuning.span / m.channels);
  const std::int64_t parts = (m.positions() + most - 1) / most;
  const Range range = share(m.rows * parts, thread, team);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / parts, first = i % parts * most;
    visit(NormSpan{blocks, {row, row + 1}, {first, std::min(first + most, m.positions())}});
  }
}

/// Stores the means of the first values of the channels of blocks as the means to subtract.
template <bool narrow>
struct ShiftLoop {
  template <int W>
  CONVOY_INLINE static void run(const NormTask* task, Range blocks) {
    using V = simd::Vec<float, W>;
    const NormTask& t = *task;
    const Map& m = t.map;
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block)
      for (int lane = 0; lane < m.lanes; lane += W) {
        V shift{};
        std::int64_t taken = 0;
        for (int row = 0; row < m.rows && taken < norm_tuning.chunk; ++row)
          for (std::int64_t p = 0; p < m.positions() && taken < norm_tuning.chunk; ++p, ++taken) {
            V v;
            load<narrow>(v, t.x, block * m.block_stride + lane + row * m.row_stride + p * m.position_stride);
            shift += v;
          }
        shift *= 1.0f / static_cast<float>(taken);
        simd::store(t.state.mean + block * m.lanes + lane, shift);
      }
  }
};

/// Adds the sums of (x - mean) and of its square, over a span, to `all` ([blocks][2][lanes]).
template <bool narrow>
struct StatisticsLoop {
  template <int W>
  CONVOY_INLINE static void run(const NormTask* task, NormSpan span, double* all) {
    using V = simd::Vec<float, W>;
    const NormTask& t = *task;
    const Map& m = t.map;
    const std::int64_t step = m.position_stride;
    for (std::int64_t block = span.blocks.begin; block < span.blocks.end; ++block)
      for (int lane = 0; lane < m.lanes; lane += W) {
        const std::int64_t first = block * m.block_stride + lane;
        double* const sums = all + block * 2 * m.lanes;
        V mean;
        simd::load(mean, t.state.mean + block * m.lanes + lane);
        V sum[4] = {}, squares[4] = {};
        std::int64_t count = 0;
        auto flush = [&]() __attribute__((always_inline)) {
          for (int k = 1; k < 4; ++k) sum[0] += sum[k], squares[0] += squares[k];
          for (int k = 0; k < W; ++k) {
            sums[lane + k] += static_cast<double>(sum[0][k]);
            sums[m.lanes + lane + k] += static_cast<double>(squares[0][k]);
          }
          for (int k = 0; k < 4; ++k) sum[k] = V{}, squares[k] = V{};
          count = 0;
        };
        for (std::int64_t row = span.rows.begin; row < span.rows.end; ++row) {
          const std::int64_t from = first + row * m.row_stride;
          for (std::int64_t begin = span.positions.begin; begin < span.positions.end;
               begin += norm_tuning.chunk) {
            const std::int64_t end = std::min(begin + norm_tuning.chunk, span.positions.end);
            std::int64_t p = begin;
            for (; p + 4 <= end; p += 4)
              for (int k = 0; k < 4; ++k) {
                V v;
                load<narrow>(v, t.x, from + (p + k) * step);
                v -= mean;
                sum[k] += v;
                squares[k] += v * v;
              }
            for (; p < end; ++p) {
              V v;
              load<narrow>(v, t.x, from + p * step);
              v -= mean;
              sum[p & 3] += v;
              squares[p & 3] += v * v;
            }
            count += end - begin;
            if (count >= norm_tuning.chunk) flush();
          }
        }
        flush();
      }
  }
};

/// y = normalized x (+ residual) (rectified) over a span.
template <bool narrow>
struct NormalizeLoop {
  template <int W>
  CONVOY_INLINE static void run(const NormTask* task, NormSpan span) {
    using V = simd::Vec<float, W>;
    const NormTask& t = *task;
    const Map& m = t.map;
    const std::int64_t step = m.position_stride;
    for (std::int64_t block = span.blocks.begin; block < span.blocks.end; ++block)
      for (int lane = 0; lane < m.lanes; lane += W) {
        V mean, scale, shift;
        simd::load(mean, t.state.mean + block * m.lanes + lane);
        simd::load(scale, t.state.scale + block * m.lanes + lane);
        simd::load(shift, t.state.shift + block * m.lanes + lane);
        for (std::int64_t row = span.rows.begin; row < span.rows.end; ++row) {
          const std::int64_t base = row * m.row_stride + block * m.block_stride + lane;
          for (std::int64_t p = span.positions.begin; p < span.positions.end; ++p) {
            const std::int64_t at = base + p * step;
            V v, other;
            load<narrow>(v, t.x, at);
            normalize(v, mean, scale, shift);
            if (t.residual) {
              load<narrow>(other, t.residual, at);
              v += other;
            }
            if (t.relu) rectify(v);
            store<narrow>(t.y, at, v);
            if (t.y_rounded != nullptr) simd::Elements<bf16, W>::store(t.y_rounded + at, v);
          }
        }
      }
  }
};

/// The gradient of the batch norm's result for one vector: dy + second, masked by the ReLU. Without a
/// residual the mask is computed from x, which is read anyway; with one it is read from y.
template <bool narrow, class V>
CONVOY_INLINE void masked_gradient(V& g, const NormTask& t, std::int64_t at, const V& x, const V& mean,
                                   const V& scale, const V& shift) {
  V other;
  load<narrow>(g, t.dy, at);
  if (t.second) {
    load<narrow>(other, t.second, at);
    g += other;
  }
  if (t.relu) {
    if (t.residual) {
      load<narrow>(other, t.y, at);
    } else {
      other = x;
      normalize(other, mean, scale, shift);
    }
    g = other > V{} ? g : V{};
  }
}

/// Adds the sums of g and of g (x - mean), over a span, to `all` ([blocks][2][lanes]). Writes the residual's
/// gradient unless it accumulates.
template <bool narrow>
struct GradientSumsLoop {
  template <int W>
  CONVOY_INLINE static void run(const NormTask* task, NormSpan span, double* all) {
    using V = simd::Vec<float, W>;
    const NormTask& t = *task;
    const Map& m = t.map;
    const std::int64_t step = m.position_stride;
    for (std::int64_t block = span.blocks.begin; block < span.blocks.end; ++block)
      for (int lane = 0; lane < m.lanes; lane += W) {
        V mean, scale, shift;
        simd::load(mean, t.state.mean + block * m.lanes + lane);
        simd::load(scale, t.state.scale + block * m.lanes + lane);
        simd::load(shift, t.state.shift + block * m.lanes + lane);
        double* const sums = all + block * 2 * m.lanes;
        V sum[2] = {}, dot[2] = {};
        std::int64_t count = 0;
        auto flush = [&]() __attribute__((always_inline)) {
          sum[0] += sum[1], dot[0] += dot[1];
          for (int k = 0; k < W; ++k) {
            sums[lane + k] += static_cast<double>(sum[0][k]);
            sums[m.lanes + lane + k] += static_cast<double>(dot[0][k]);
          }
          for (int k = 0; k < 2; ++k) sum[k] = V{}, dot[k] = V{};
          count = 0;
        };
        for (std::int64_t row = span.rows.begin; row < span.rows.end; ++row) {
          const std::int64_t base = row * m.row_stride + block * m.block_stride + lane;
          for (std::int64_t begin = span.positions.begin; begin < span.positions.end;
               begin += norm_tuning.chunk) {
            const std::int64_t end = std::min(begin + norm_tuning.chunk, span.positions.end);
            std::int64_t p = begin;
            auto take = [&](int k, std::int64_t at) __attribute__((always_inline)) {
              V x, g;
              load<narrow>(x, t.x, at);
              masked_gradient<narrow>(g, t, at, x, mean, scale, shift);
              if (t.keeps_gradient()) store<narrow>(t.d_residual, at, g);
              sum[k] += g;
              dot[k] += g * (x - mean);
            };
            for (; p + 2 <= end; p += 2) {
              take(0, base + p * step);
              take(1, base + (p + 1) * step);
            }
            if (p < end) take(0, base + p * step);
            count += end - begin;
            if (count >= norm_tuning.chunk) flush();
          }
        }
        flush();
      }
  }
};

/// Writes dx over a span, then the residual's gradient if it accumulates, perhaps in dx: the residual may be
/// x.
template <bool narrow>
struct NormBackwardLoop {
  template <int W>
  CONVOY_INLINE static void run(const NormTask* task, NormSpan span) {
    using V = simd::Vec<float, W>;
    const NormTask& t = *task;
    const Map& m = t.map;
    const std::int64_t step = m.position_stride;
    for (std::int64_t block = span.blocks.begin; block < span.blocks.end; ++block)
      for (int lane = 0; lane < m.lanes; lane += W) {
        const std::int64_t channel = block * m.lanes + lane;
        V mean, scale, shift, slope, offset;
        simd::load(mean, t.state.mean + channel);
        simd::load(scale, t.state.scale + channel);
        simd::load(shift, t.state.shift + channel);
        simd::load(slope, t.state.slope + channel);
        simd::load(offset, t.state.offset + channel);
        for (std::int64_t row = span.rows.begin; row < span.rows.end; ++row) {
          const std::int64_t base = row * m.row_stride + block * m.block_stride + lane;
          for (std::int64_t p = span.positions.begin; p < span.positions.end; ++p) {
            const std::int64_t at = base + p * step;
            V x, g, other;
            load<narrow>(x, t.x, at);
            if (t.keeps_gradient())
              load<narrow>(g, t.d_residual, at);
            else
              masked_gradient<narrow>(g, t, at, x, mean, scale, shift);
            if (t.dx) {
              V to = g * scale + ((x - mean) * slope + offset);
              if (t.accumulate_dx) {
                load<narrow>(other, t.dx, at);
                to += other;
              }
              store<narrow>(t.dx, at, to);
            }
            if (t.d_residual && t.accumulate_residual) {
              load<narrow>(other, t.d_residual, at);
              other += g;
              store<narrow>(t.d_residual, at, other);
            }
          }
        }
      }
  }
};

/// The forward pass for `run_norm`.
struct NormForward {
  template <bool narrow>
  using Sums = StatisticsLoop<narrow>;
  template <bool narrow>
  using Values = NormalizeLoop<narrow>;

  /// Chooses what the sums of blocks subtract from values.
  template <bool narrow>
  static void begin(const NormTask& t, Range blocks) {
    run_in_lanes<ShiftLoop<narrow>>(t.map.lanes, &t, blocks);
  }

  /// Reads results of this rank alone from the sums of a block; forward has none.
  static void keep_own(const NormTask&, int) {}

  /// Undoes the shift: turns the sums into those of x and of its square, which ranks can add.
  static void prepare_exchange(const NormTask& t, int block) {
    const Map& m = t.map;
    double* sums = t.state.sums + block * 2 * m.lanes;
    const auto count = static_cast<double>(m.count());
    for (int k = 0; k < m.lanes; ++k) {
      float& shift = t.state.mean[block * m.lanes + k];
      const auto by = static_cast<double>(shift);
      sums[m.lanes + k] += by * (2 * sums[k] + count * by);
      sums[k] += count * by;
      shift = 0;
    }
  }

  /// Turns the sums of a block into its statistics and updates the running ones.
  static void finish(const NormTask& t, int block) {
    const Map& m = t.map;
    const double* sums = t.state.sums + block * 2 * m.lanes;
    for (int k = 0; k < m.lanes; ++k) {
      const int channel = block * m.lanes + k;
      const double away = sums[k] / t.count, mean = static_cast<double>(t.state.mean[channel]) + away;
      double variance = sums[m.lanes + k] / t.count - away * away;
      if (variance < 0) variance = 0;
      const bool real = channel < m.channels;
      const double inverse = 1 / std::sqrt(variance + static_cast<double>(t.epsilon));
      t.state.mean[channel] = static_cast<float>(mean);
      t.state.inverse[channel] = static_cast<float>(inverse);
      t.state.scale[channel] =
          real ? static_cast<float>(inverse * static_cast<double>(t.weight[channel])) : 0.0f;
      t.state.shift[channel] = real ? t.bias[channel] : 0.0f;
      if (real)
        move_running(t.momentum, static_cast<double>(t.count), static_cast<float>(mean), variance,
                     t.running_mean[channel], t.running_variance[channel]);
    }
  }
};

/// The backward pass for `run_norm`.
struct NormBackward {
  template <bool narrow>
  using Sums = GradientSumsLoop<narrow>;
  template <bool narrow>
  using Values = NormBackwardLoop<narrow>;

  template <bool narrow>
  static void begin(const NormTask&, Range) {}

  /// Writes the gradients of weight and bias, which are exchanged with all other gradients.
  static void keep_own(const NormTask& t, int block) {
    const Map& m = t.map;
    const double* sums = t.state.sums + block * 2 * m.lanes;
    for (int k = 0; k < m.lanes; ++k) {
      const int channel = block * m.lanes + k;
      if (channel >= m.channels) continue;
      const auto inverse = static_cast<double>(t.state.inverse[channel]);
      if (t.d_weight != nullptr) t.d_weight[channel] = static_cast<float>(sums[m.lanes + k] * inverse);
      if (t.d_bias != nullptr) t.d_bias[channel] = static_cast<float>(sums[k]);
    }
  }

  static void prepare_exchange(const NormTask&, int) {}

  /// Turns the sums of a block into the coefficients of dx.
  static void finish(const NormTask& t, int block) {
    const Map& m = t.map;
    const double* sums = t.state.sums + block * 2 * m.lanes;
    for (int k = 0; k < m.lanes; ++k) {
      const int channel = block * m.lanes + k;
      const auto scale = static_cast<double>(t.state.scale[channel]),
                 inverse = static_cast<double>(t.state.inverse[channel]);
      t.state.slope[channel] = static_cast<float>(-scale * inverse * inverse * sums[m.lanes + k] / t.count);
      t.state.offset[channel] = static_cast<float>(-scale * sums[k] / t.count);
    }
  }
};

/// Adds the sums of the other `parts` - 1 threads to those of the first.
inline void fold_parts(const NormTask& t, int parts) {
  const std::int64_t size = static_cast<std::int64_t>(t.map.blocks) * 2 * t.map.lanes;
  for (int part = 1; part < parts; ++part)
    for (std::int64_t i = 0; i < size; ++i) t.state.sums[i] += t.state.sums[part * size + i];
}

/// Replaces this rank's sums and its count by those of all ranks. Sums are exchanged in channel order,
/// because ranks may have blocks of different sizes.
inline void sum_across_ranks(NormTask& t) {
  const Map& m = t.map;
  const auto channels = static_cast<std::size_t>(m.channels);
  double* const all = t.state.exchange;
  const auto for_each_channel = [&](auto&& visit) {
    for (std::size_t c = 0; c < channels; ++c) {
      const auto lanes = static_cast<std::size_t>(m.lanes);
      double* const own = t.state.sums + c / lanes * 2 * lanes + c % lanes;
      visit(all[c], own[0]);
      visit(all[channels + c], own[lanes]);
    }
  };
  for_each_channel([](double& exchanged, const double& own) { exchanged = own; });
  all[2 * channels] = static_cast<double>(m.count());
  t.across->sum({all, 2 * channels + 1});
  for_each_channel([](const double& exchanged, double& own) { own = exchanged; });
  t.count = all[2 * channels];
}

/// Runs a pass for the sums and one for the values, over all blocks and rows.
template <class Norm, bool narrow>
void run_norm(NormTask& task, int threads) {
  using Sums = typename Norm::template Sums<narrow>;
  using Values = typename Norm::template Values<narrow>;
  const Map& m = task.map;
  const NormTask* const t = &task;
  if (m.elements() < loop_tuning.worth_a_team) threads = 1;
  const std::int64_t block_sums = 2 * static_cast<std::int64_t>(m.lanes);
  task.count = static_cast<double>(m.count());
  if (task.across == nullptr && !m.channels_last && (m.blocks % threads == 0 || m.blocks >= 4 * threads)) {
    parallel(threads, [&](int thread, int team) {
      const Range blocks = share(m.blocks, thread, team);
      for (auto block = static_cast<int>(blocks.begin); block < blocks.end; ++block) {
        const NormSpan span{{block, block + 1}, {0, m.rows}, {0, m.positions()}};
        std::fill_n(task.state.sums + block * block_sums, block_sums, 0.0);
        Norm::template begin<narrow>(task, span.blocks);
        run_in_lanes<Sums>(m.lanes, t, span, task.state.sums);
        Norm::keep_own(task, block);
        Norm::finish(task, block);
        run_in_lanes<Values>(m.lanes, t, span);
      }
    });
    return;
  }
  parallel(threads,
           [&](int thread, int team) { Norm::template begin<narrow>(task, share(m.blocks, thread, team)); });
  int parts = 1;  // the team may be smaller than requested
  parallel(threads, [&](int thread, int team) {
    if (thread == 0) parts = team;
    double* const sums = task.state.sums + thread * m.blocks * block_sums;
    std::fill_n(sums, m.blocks * block_sums, 0.0);
    for_each_span(m, thread, team, [&](const NormSpan& span) { run_in_lanes<Sums>(m.lanes, t, span, sums); });
  });
  fold_parts(task, parts);
  for (int block = 0; block < m.blocks; ++block) Norm::keep_own(task, block);
  if (task.across != nullptr) {
    for (int block = 0; block < m.blocks; ++block) Norm::prepare_exchange(task, block);
    sum_across_ranks(task);
  }
  for (int block = 0; block < m.blocks; ++block) Norm::finish(task, block);
  parallel(threads, [&](int thread, int team) {
    for_each_span(m, thread, team, [&](const NormSpan& span) { run_in_lanes<Values>(m.lanes, t, span); });
  });
}

/// Computes the statistics of the batch, updates the running ones and writes y.
inline void norm_forward(NormTask& task, int threads) {
  task.narrow() ? run_norm<NormForward, true>(task, threads) : run_norm<NormForward, false>(task, threads);
}

/// Writes dx, the residual's gradient, and the gradients of weight and bias.
inline void norm_backward(NormTask& task, int threads) {
  task.narrow() ? run_norm<NormBackward, true>(task, threads) : run_norm<NormBackward, false>(task, threads);
}

/// Writes y with the running statistics.
inline void norm_evaluate(const NormTask& task, int threads) {
  const Map& m = task.map;
  for (int c = 0; c < m.blocks * m.lanes; ++c) {
    const bool real = c < m.channels;
    task.state.mean[c] = real ? task.running_mean[c] : 0.0f;
    task.state.scale[c] = real ? task.weight[c] / std::sqrt(task.running_variance[c] + task.epsilon) : 0.0f;
    task.state.shift[c] = real ? task.bias[c] : 0.0f;
  }
  if (m.elements() < loop_tuning.worth_a_team) threads = 1;
  parallel(threads, [&](int thread, int team) {
    for_each_span(m, thread, team, [&](const NormSpan& span) {
      task.narrow() ? run_in_lanes<NormalizeLoop<true>>(m.lanes, &task, span)
                    : run_in_lanes<NormalizeLoop<false>>(m.lanes, &task, span);
    });
  });
}

}  // namespace convoy::exec::host
