// Dropout: vectorized Philox, a chunk of elements at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/draws.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/parallel/vector_philox.hpp>

namespace convoy::exec::host {

/// y = addend + scale (x + second) for an element that is kept, y = addend for one that is dropped.
struct DropoutTask {
  Draws draws;
  DropoutRule rule{0};
  int rows = 0;
  std::int64_t elements = 0;  ///< per row
  const Map* map = nullptr;   ///< layout of all buffers if they are blocked; null: plain
  const float* x = nullptr;
  const float* second = nullptr;  ///< may be null
  const float* addend = nullptr;  ///< may be null, or y
  float* y = nullptr;             ///< may be x

  std::int64_t chunks() const { return (elements + Draws::chunk - 1) / Draws::chunk; }
};

/// The random numbers of a chunk as defined by Draws, W blocks at a time.
template <int W>
CONVOY_INLINE void draw_chunk(const Draws& draws, std::uint64_t position, std::int64_t chunk,
                              std::int32_t* numbers) {
  for (int at = 0; at < Draws::blocks_a_chunk; at += W) {
    simd::Vec<std::uint32_t, W> words[4];
    simd::philox<W>({static_cast<std::uint32_t>(chunk * Draws::blocks_a_chunk + at), draws.epoch,
                     static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32)},
                    draws.key, words);
    CONVOY_UNROLL
    for (int w = 0; w < 4; ++w) {
      words[w] >>= 8;
      simd::store(numbers + w * Draws::blocks_a_chunk + at, words[w]);
    }
  }
}

/// A sum that ignores the values that a loop writes.
struct Ignored {
  template <class V>
  CONVOY_INLINE void add(const V&) {}
};

/// Applies dropout to `count` elements of one chunk with the given random numbers: y = addend + scale (x +
/// second) for an element that is kept, y = addend for one that is dropped. `second` and `addend` may be
/// null. The values written are added to `total`.
template <int W, class Sum>
CONVOY_INLINE void drop_part(const DropoutRule& rule, const std::int32_t* numbers, std::int64_t count,
                             const float* x, const float* second, const float* addend, float* y, Sum& total) {
  CONVOY_FOR_VECTORS(W, 0, count, {
    V v, other;
    decltype(v < v) number;
    simd::load(number, numbers + i);
    simd::load(v, x + i);
    if (second != nullptr) {
      simd::load(other, second + i);
      v += other;
    }
    v = number < rule.threshold ? V{} : v * rule.scale;
    if (addend != nullptr) {
      simd::load(other, addend + i);
      v += other;
    }
    simd::store(y + i, v);
    total.add(v);
  })
}

/// Chunks [begin_chunk, end_chunk) of the batch, row after row.
struct DropoutLoop {
  template <int W>
  CONVOY_INLINE static void run(const DropoutTask* task, std::int64_t begin_chunk, std::int64_t end_chunk) {
    const DropoutTask& t = *task;
    const std::int64_t chunks = t.chunks();
    alignas(64) std::int32_t numbers[Draws::chunk];
    for (std::int64_t chunk = begin_chunk; chunk < end_chunk; ++chunk) {
      const std::int64_t row = chunk / chunks, first = chunk % chunks * Draws::chunk;
      const std::int64_t count = std::min<std::int64_t>(Draws::chunk, t.elements - first);
      draw_chunk<W>(t.draws, t.draws.position + static_cast<std::uint64_t>(row), chunk % chunks, numbers);
      if (t.map != nullptr) {
        in_blocks(t, row, first, count, numbers);
        continue;
      }
      const std::int64_t at = row * t.elements + first;
      Ignored ignored;
      drop_part<W>(t.rule, numbers, count, t.x + at, t.second == nullptr ? nullptr : t.second + at,
                   t.addend == nullptr ? nullptr : t.addend + at, t.y + at, ignored);
    }
  }

 private:
  // Elements that are adjacent in canonical order are not adjacent in blocks of channels.
  CONVOY_INLINE static void in_blocks(const DropoutTask& t, std::int64_t row, std::int64_t first,
                                      std::int64_t count, const std::int32_t* numbers) {
    const Map& map = *t.map;
    std::int64_t channel = first / map.positions(), position = first % map.positions();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = row * map.row_stride + channel / map.lanes * map.block_stride +
                              position * map.position_stride + channel % map.lanes;
      float v = t.x[at] + (t.second == nullptr ? 0.0f : t.second[at]);
      v = numbers[i] < t.rule.threshold ? 0.0f : v * t.rule.scale;
      t.y[at] = t.addend == nullptr ? v : t.addend[at] + v;
      if (++position == map.positions()) position = 0, ++channel;
    }
  }
};

inline void dropout(const DropoutTask& task, int threads) {
  // The lanes past the last channel must be zero.
  if (task.map != nullptr && task.map->channels % task.map->lanes != 0 && task.addend != task.y)
    std::fill_n(task.y, task.map->elements(), 0.0f);
  const std::int64_t chunks = task.rows * task.chunks();
  parallel(chunks * Draws::chunk < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(chunks, thread, team);
    simd::run<DropoutLoop>(&task, range.begin, range.end);
  });
}

}  // namespace convoy::exec::host
