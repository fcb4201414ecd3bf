// Dropout: vectorized Philox, a chunk of elements at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/draws.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/map.hpp>

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

inline constexpr std::uint64_t block_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// Stores the random numbers of Philox words, which are held in 64 bits each.
template <int W>
CONVOY_INLINE void store_numbers(std::int32_t* to, const simd::Vec<std::uint64_t, W>& words) {
  simd::Vec<std::int32_t, W> numbers;
  simd::convert(numbers, words >> 8);
  simd::store(to, numbers);
}

/// The random numbers of a chunk as defined by Draws, W blocks at a time. A vector of W 64-bit words fills
/// two registers, so that a product need not wait for the one before.
template <int W>
CONVOY_INLINE void draw_chunk(const Draws& draws, std::uint64_t position, std::int64_t chunk,
                              std::int32_t* numbers) {
  using U = simd::Vec<std::uint64_t, W>;
  constexpr std::uint64_t low = 0xffffffffu;
  for (int at = 0; at < Draws::blocks_a_chunk; at += W) {
    const U none{};
    U c0, c1 = none + draws.epoch, c2 = none + (position & low), c3 = none + (position >> 32);
    simd::load(c0, block_numbers);
    c0 = (c0 + static_cast<std::uint64_t>(chunk * Draws::blocks_a_chunk + at)) & low;
    std::uint32_t k0 = draws.key[0], k1 = draws.key[1];
    for (int round = 0; round < 10; ++round) {
      const U a = c0 * 0xd2511f53ull, b = c2 * 0xcd9e8d57ull;
      c0 = (b >> 32) ^ c1 ^ static_cast<std::uint64_t>(k0);
      c1 = b & low;
      c2 = (a >> 32) ^ c3 ^ static_cast<std::uint64_t>(k1);
      c3 = a & low;
      k0 += 0x9e3779b9u;
      k1 += 0xbb67ae85u;
    }
    store_numbers<W>(numbers + at, c0);
    store_numbers<W>(numbers + 16 + at, c1);
    store_numbers<W>(numbers + 32 + at, c2);
    store_numbers<W>(numbers + 48 + at, c3);
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
  parallel(chunks * Draws::chunk < parallel_threshold ? 1 : threads, [&](int thread, int team) {
    const Range range = share(chunks, thread, team);
    simd::run<DropoutLoop>(&task, range.begin, range.end);
  });
}

}  // namespace convoy::exec::host
