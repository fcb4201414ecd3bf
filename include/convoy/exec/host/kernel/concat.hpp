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

/// Clears the lanes past the last channel of one image.
inline void clear_last_lanes(const Map& map, float* row) {
  float* const block = row + (map.blocks - 1) * map.block_stride;
  for (std::int64_t p = 0; p < map.positions(); ++p)
    for (int lane = map.channels % map.lanes; lane < map.lanes; ++lane)
      block[p * map.position_stride + lane] = 0;
}

/// Copies the channels of one image: whole blocks of lanes where both images have them, else one by one.
inline void copy_channels_of(const ChannelTask& t, std::int64_t row) {
  const int lanes = t.to_map.lanes;
  const std::int64_t positions = t.to_map.positions();
  const std::int64_t from_step = t.from_map.position_stride, to_step = t.to_map.position_stride;
  const auto place = [&](const Map& map, int channel) {
    return row * map.row_stride + channel / lanes * map.block_stride + channel % lanes;
  };
  for (int done = 0; done < t.channels;) {
    const int a = t.from_channel + done, b = t.to_channel + done;
    const float* from = t.from + place(t.from_map, a);
    const float* second = t.second == nullptr ? nullptr : t.second + place(t.from_map, a);
    float* to = t.to + place(t.to_map, b);
    if (a % lanes == 0 && b % lanes == 0 && t.channels - done >= lanes) {
      // In blocks that lie apart, the lanes of adjacent positions are adjacent.
      const bool joined = from_step == lanes && to_step == lanes;
      copy_runs({.runs = joined ? 1 : positions,
                 .length = joined ? positions * lanes : lanes,
                 .from = from,
                 .second = second,
                 .from_stride = from_step,
                 .to = to,
                 .to_stride = to_step,
                 .accumulate = t.accumulate},
                1);
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

inline void copy_channels(const ChannelTask& t, int threads) {
  const Map& map = t.to_map;
  // The lanes past the last channel must be zero; the task that writes the last channel clears them.
  const bool clears =
      map.channels % map.lanes != 0 && !t.accumulate && t.to_channel + t.channels == map.channels;
  const bool small = map.rows * t.channels * map.positions() < loop_tuning.worth_a_team;
  parallel(small ? 1 : threads, [&](int thread, int team) {
    const Range range = share(map.rows, thread, team);
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      if (clears) clear_last_lanes(map, t.to + r * map.row_stride);
      copy_channels_of(t, r);
    }
  });
}

}  // namespace convoy::exec::host
