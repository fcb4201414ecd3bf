// Concatenation: copies or adds runs of elements, or blocked channels of images, from one buffer to a part of
// another.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

/// to (+)= from + second, for `runs` runs of `length` elements; strides are between runs.
struct RunTask {
  std::int64_t runs = 0, length = 0;
  const float* from = nullptr;
  const float* second = nullptr;  ///< may be null
  std::int64_t from_stride = 0;
  float* to = nullptr;
  std::int64_t to_stride = 0;
  bool accumulate = false;
};

inline void copy_runs(const RunTask& t, int threads) {
  parallel(t.runs * t.length < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(t.runs, thread, team);
    const float* none = nullptr;
    for (std::int64_t r = range.begin; r < range.end; ++r)
      simd::run<PassLoop>(std::int64_t{0}, t.length, t.from + r * t.from_stride,
                          t.second == nullptr ? none : t.second + r * t.from_stride, none,
                          t.to + r * t.to_stride, t.accumulate);
  });
}

/// to (+)= from + second, for `channels` channels of images in blocks of equally many lanes, from channel
/// `from_channel` of one image to `to_channel` of the other.
struct ChannelTask {
  int channels = 0;
  const float* from = nullptr;
  const float* second = nullptr;  ///< may be null
  Map from_map;
  int from_channel = 0;
  float* to = nullptr;
  Map to_map;
  int to_channel = 0;
  bool accumulate = false;
};

inline void copy_channels(const ChannelTask& t, int threads) {
  const int lanes = t.to_map.lanes;
  const std::int64_t positions = t.to_map.positions();
  const bool has_padding = t.to_map.channels % lanes != 0;
  parallel(t.to_map.rows * t.channels * positions < loop_tuning.worth_a_team ? 1 : threads, [&](int thread,
                                                                                                int team) {
    const Range range = share(t.to_map.rows, thread, team);
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      float* const to_row = t.to + r * t.to_map.row_stride;
      // The lanes past the last channel must be zero; the task that writes the last channel clears them.
      if (has_padding && !t.accumulate && t.to_channel + t.channels == t.to_map.channels)
        for (std::int64_t p = 0; p < positions; ++p)
          for (int lane = t.to_map.channels % lanes; lane < lanes; ++lane)
            to_row[(t.to_map.blocks - 1) * t.to_map.block_stride + p * t.to_map.position_stride + lane] = 0;
      for (int done = 0; done < t.channels;) {
        const int a = t.from_channel + done, b = t.to_channel + done;
        const std::int64_t at = r * t.from_map.row_stride + a / lanes * t.from_map.block_stride + a % lanes;
        const float* from = t.from + at;
        const float* second = t.second == nullptr ? nullptr : t.second + at;
        float* to = to_row + b / lanes * t.to_map.block_stride + b % lanes;
        const std::int64_t from_step = t.from_map.position_stride, to_step = t.to_map.position_stride;
        if (a % lanes == 0 && b % lanes == 0 && t.channels - done >= lanes) {
          // In blocks that lie apart, the lanes of adjacent positions are adjacent.
          const bool joined = from_step == lanes && to_step == lanes;
          const std::int64_t runs = joined ? 1 : positions, run = joined ? positions * lanes : lanes;
          const float* none = nullptr;
          for (std::int64_t p = 0; p < runs; ++p)
            simd::run<PassLoop>(std::int64_t{0}, run, from + p * from_step,
                                second == nullptr ? none : second + p * from_step, none, to + p * to_step,
                                t.accumulate);
          done += lanes;
          continue;
        }
        for (std::int64_t p = 0; p < positions; ++p) {
          float& sum = to[p * to_step];
          sum = (t.accumulate ? sum : 0.0f) + from[p * from_step] +
                (second == nullptr ? 0.0f : second[p * from_step]);
        }
        ++done;
      }
    }
  });
}

}  // namespace convoy::exec::host
