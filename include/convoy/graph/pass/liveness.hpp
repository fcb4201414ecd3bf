// Liveness: when each value of a training step is needed, and an arena in which values with disjoint
// lifetimes share memory. Time counts stages: forward 0 .. S-1, backward S .. 2S-1, where stage s runs
// backward at 2S-1-s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/graph/pass/fusion.hpp>

namespace convoy::graph {

/// The values of a node: its output, the further data it saves for backward, and the gradient of its output.
enum class ValueKind : unsigned char { output, saved, gradient };
inline constexpr int values_per_node = 3;

/// One value, alive from `begin` to `end` inclusive; `bytes` 0 for a value that does not exist.
struct Lifetime {
  int begin = 0, end = -1;
  std::int64_t bytes = 0;
};

/// The node that owns the memory of the value of node `n`: a view shares that of its input.
constexpr int storage_of(const Graph& g, int n) {
  while (operation_views[static_cast<std::size_t>(g.nodes[n].op)]) n = g.input(n, 0);
  return n;
}

/// Writes `values_per_node` lifetimes per node, with the bytes of one sample. If `training` is false, for
/// forward alone.
constexpr void find_lifetimes(const Graph& g, const Stage* stages, int stage_count, const int* stage_of,
                              bool training, Lifetime* lifetimes) {
  const int last = training ? 2 * stage_count - 1 : stage_count;
  auto backward = [&](int s) { return 2 * stage_count - 1 - s; };
  auto value = [&](int n, ValueKind kind) -> Lifetime& {
    return lifetimes[n * values_per_node + static_cast<int>(kind)];
  };
  auto later = [](Lifetime& lifetime, int time) {
    if (time > lifetime.end) lifetime.end = time;
  };
  // A value inside a fused stage has no bytes unless backward reads it.
  auto bytes_of = [&](int n) {
    return g.nodes[n].shape.size() * static_cast<std::int64_t>(size_of(g.nodes[n].dtype));
  };
  for (int n = 0; n < g.count.nodes; ++n) {
    const int s = stage_of[n];
    for (int k = 0; k < values_per_node; ++k) lifetimes[n * values_per_node + k] = {};
    if (s < 0 || operation_views[static_cast<std::size_t>(g.nodes[n].op)]) continue;
    const bool yielded = stages[s].output == n;
    value(n, ValueKind::output) = {s, s, yielded ? bytes_of(n) : 0};
    if (training && yielded) value(n, ValueKind::gradient) = {backward(s), backward(s), bytes_of(n)};
  }
  for (int n = 0; n < g.count.nodes; ++n) {
    const int s = stage_of[n];
    if (s < 0) continue;
    const Saves saves = operation_saves[static_cast<std::size_t>(g.nodes[n].op)](g, n);
    if (training && saves.bytes > 0) value(n, ValueKind::saved) = {s, backward(s), saves.bytes};
    for (int i = 0; i < g.nodes[n].inputs; ++i) {
      const int x = storage_of(g, g.input(n, i));
      if (stage_of[x] < 0) continue;
      const bool saved = training && i < 32 && (saves.inputs >> i & 1u) != 0;
      Lifetime& output = value(x, ValueKind::output);
      later(output, saved ? backward(s) : s);
      if (saved) output.bytes = bytes_of(x);
      Lifetime& gradient = value(x, ValueKind::gradient);
      if (gradient.bytes > 0 && backward(s) < gradient.begin) gradient.begin = backward(s);
    }
    if (training && saves.output) {
      Lifetime& output = value(storage_of(g, n), ValueKind::output);
      output.bytes = bytes_of(n);
      later(output, backward(s));
    }
  }
  auto keep = [&](int n) {
    n = storage_of(g, n);
    if (stage_of[n] >= 0) later(value(n, ValueKind::output), last);
  };
  for (int i = 0; i < g.count.outputs; ++i) keep(g.outputs[i].node);
  for (int i = 0; i < g.count.losses; ++i) keep(g.losses[i].node);
  for (int i = 0; i < g.count.metrics; ++i)
    for (int k = 0; k < g.metrics[i].inputs; ++k) keep(g.edges[g.metrics[i].input + k]);
}

/// A free block of an arena under construction, in bytes.
struct FreeBlock {
  std::int64_t begin = 0, end = 0;
};

/// The free blocks of an arena below its `top`, in order. No two are adjacent, and none ends at the top.
struct FreeList {
  FreeBlock* blocks;
  int count = 0;
  std::int64_t top = 0;

  /// Allocates `bytes` in the first block that is large enough, or else at the top, which rises. Returns the
  /// offset.
  constexpr std::int64_t take(std::int64_t bytes) {
    int at = 0;
    while (at < count && blocks[at].end - blocks[at].begin < bytes) ++at;
    if (at == count) {
      top += bytes;
      return top - bytes;
    }
    const std::int64_t begin = blocks[at].begin;
    blocks[at].begin += bytes;
    if (blocks[at].begin == blocks[at].end) erase(at);
    return begin;
  }
  constexpr void release(std::int64_t begin, std::int64_t end) {
    int at = count;
    while (at > 0 && blocks[at - 1].begin > begin) --at;
    const bool joins_left = at > 0 && blocks[at - 1].end == begin;
    const bool joins_right = at < count && blocks[at].begin == end;
    if (joins_left && joins_right) {
      blocks[at - 1].end = blocks[at].end;
      erase(at);
    } else if (joins_left) {
      blocks[at - 1].end = end;
    } else if (joins_right) {
      blocks[at].begin = begin;
    } else {
      for (int i = count++; i > at; --i) blocks[i] = blocks[i - 1];
      blocks[at] = {begin, end};
    }
    if (blocks[count - 1].end == top) top = blocks[--count].begin;
  }
  constexpr void erase(int at) {
    --count;
    for (int i = at; i < count; ++i) blocks[i] = blocks[i + 1];
  }
};

/// Writes an offset for each of `count` values, aligned to 64 bytes, such that no two values alive at the
/// same time overlap; returns the arena's size in bytes. First fit over a sorted free list, in the order in
/// which the values begin; time runs from 0 to `last`. `first_at` and `release_at` (last + 2 entries),
/// `next_at` and `release_next` (count entries) and `blocks` (count + 1 entries) are scratch. The caller
/// provides it, because in constant expressions the sizes are known there.
constexpr std::int64_t pack(const Lifetime* values, int count, int last, std::int64_t* offsets, int* first_at,
                            int* next_at, int* release_at, int* release_next, FreeBlock* blocks) {
  auto aligned = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  for (int t = 0; t <= last + 1; ++t) first_at[t] = release_at[t] = -1;
  for (int v = count - 1; v >= 0; --v) {
    offsets[v] = 0;
    if (values[v].bytes == 0) continue;
    next_at[v] = first_at[values[v].begin];
    first_at[values[v].begin] = v;
    release_next[v] = release_at[values[v].end + 1];
    release_at[values[v].end + 1] = v;
  }
  FreeList free{blocks};
  std::int64_t size = 0;
  for (int t = 0; t <= last; ++t) {
    for (int v = release_at[t]; v >= 0; v = release_next[v])
      free.release(offsets[v], offsets[v] + aligned(values[v].bytes));
    for (int v = first_at[t]; v >= 0; v = next_at[v]) {
      offsets[v] = free.take(aligned(values[v].bytes));
      if (free.top > size) size = free.top;
    }
  }
  return size;
}

/// The same at run time. An Exec calls it with its real sizes (batch, padded layouts).
inline std::int64_t pack(const std::vector<Lifetime>& values, int last, std::vector<std::int64_t>& offsets) {
  const auto count = values.size(), moments = static_cast<std::size_t>(last) + 2;
  offsets.assign(count, 0);
  std::vector<int> first_at(moments), release_at(moments), next_at(count), release_next(count);
  std::vector<FreeBlock> blocks(count + 1);
  return pack(values.data(), static_cast<int>(count), last, offsets.data(), first_at.data(), next_at.data(),
              release_at.data(), release_next.data(), blocks.data());
}

}  // namespace convoy::graph
