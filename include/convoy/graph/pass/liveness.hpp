// Liveness: when each value of a training step is needed, and an arena in which values that never live
// together share memory. Time counts steps: forward 0 .. S-1, backward S .. 2S-1, where step s runs backward
// at 2S-1-s.
#pragma once

#include <vector>

#include <convoy/graph/pass/fusion.hpp>

namespace convoy::graph {

/// What a step keeps: `saved` is the result before its batch norm, which backward needs.
enum class ValueKind : unsigned char { output, saved, gradient };
inline constexpr int values_per_step = 3;

/// One value, alive from `begin` to `end` inclusive; `bytes` 0 for a value that does not exist.
struct Lifetime {
  int begin = 0, end = -1;
  std::int64_t bytes = 0;
};

/// The step whose memory the value of node `n` is: a flatten is a view of its input.
constexpr int storage_step(const Graph& g, const int* step_of, int n) {
  while (g.nodes[n].op == Op::flatten) n = g.nodes[n].input[0];
  return step_of[n];
}

/// Writes `values_per_step` lifetimes a step, with the bytes of one sample in f32. `training` false: forward
/// alone.
constexpr void find_lifetimes(const Graph& g, const Step* steps, int step_count, const int* step_of,
                              bool training, Lifetime* lifetimes) {
  const int last = training ? 2 * step_count - 1 : step_count;
  auto backward = [&](int s) { return 2 * step_count - 1 - s; };
  auto value = [&](int s, ValueKind kind) -> Lifetime& {
    return lifetimes[s * values_per_step + static_cast<int>(kind)];
  };
  const auto element = static_cast<std::int64_t>(sizeof(float));
  for (int s = 0; s < step_count; ++s) {
    const Step& step = steps[s];
    const bool view = step.op == Op::flatten;
    const std::int64_t bytes = view ? 0 : g.nodes[step.output].shape.size() * element;
    value(s, ValueKind::output) = {s, s, bytes};
    value(s, ValueKind::saved) = {s, s, step.norm >= 0 ? g.nodes[step.main].shape.size() * element : 0};
    value(s, ValueKind::gradient) = {backward(s), backward(s), training ? bytes : 0};
    if (training) {
      // A batch norm recomputes its normalised input from `saved`, a ReLU masks by its output, a convolution
      // needs its input.
      value(s, ValueKind::saved).end = backward(s);
      value(s, ValueKind::output).end = backward(s);
    }
  }
  auto used_by = [&](int n, int s) {
    const int owner = storage_step(g, step_of, n);
    if (owner < 0) return;
    Lifetime& output = value(owner, ValueKind::output);
    Lifetime& gradient = value(owner, ValueKind::gradient);
    const int time = training ? backward(s) : s;
    if (time > output.end) output.end = time;
    if (training && backward(s) < gradient.begin) gradient.begin = backward(s);
  };
  for (int s = 0; s < step_count; ++s) {
    for (int i = 0; i < g.nodes[steps[s].main].inputs; ++i) used_by(g.nodes[steps[s].main].input[i], s);
    if (steps[s].residual >= 0) used_by(steps[s].residual, s);
  }
  auto keep = [&](int n) {
    const int owner = storage_step(g, step_of, n);
    if (owner >= 0) value(owner, ValueKind::output).end = last;
  };
  for (int i = 0; i < g.output_count; ++i) keep(g.outputs[i].node);
  for (int i = 0; i < g.loss_count; ++i) keep(g.losses[i]);
  for (int i = 0; i < g.metric_count; ++i)
    for (int k = 0; k < g.metrics[i].inputs; ++k) keep(g.metrics[i].input[k]);
}

/// A free piece of an arena under construction.
struct FreeBlock {
  std::int64_t begin = 0, end = 0;
};

/// Writes an offset for each of `count` values, aligned to 64 bytes, such that no two that live together
/// overlap; returns the arena's size in bytes. First fit over a sorted free list, values in the order of
/// their beginnings: time runs from 0 to `last`. `first_at` and `next_at` (last + 2 and count entries),
/// `release_at`, `release_next` likewise, and `blocks` (count + 1 entries) are scratch, given by the caller
/// because constants know their sizes.
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
  int free = 0;
  std::int64_t top = 0;
  for (int t = 0; t <= last; ++t) {
    for (int v = release_at[t]; v >= 0; v = release_next[v]) {
      const std::int64_t begin = offsets[v], end = begin + aligned(values[v].bytes);
      int at = free;
      while (at > 0 && blocks[at - 1].begin > begin) --at;
      const bool joins_left = at > 0 && blocks[at - 1].end == begin;
      const bool joins_right = at < free && blocks[at].begin == end;
      if (joins_left && joins_right) {
        blocks[at - 1].end = blocks[at].end;
        for (int i = at; i + 1 < free; ++i) blocks[i] = blocks[i + 1];
        --free;
      } else if (joins_left) {
        blocks[at - 1].end = end;
      } else if (joins_right) {
        blocks[at].begin = begin;
      } else {
        for (int i = free; i > at; --i) blocks[i] = blocks[i - 1];
        blocks[at] = {begin, end};
        ++free;
      }
      if (free > 0 && blocks[free - 1].end == top) top = blocks[--free].begin;
    }
    for (int v = first_at[t]; v >= 0; v = next_at[v]) {
      const std::int64_t size = aligned(values[v].bytes);
      int at = 0;
      while (at < free && blocks[at].end - blocks[at].begin < size) ++at;
      if (at == free) {
        offsets[v] = top;
        top += size;
        continue;
      }
      offsets[v] = blocks[at].begin;
      blocks[at].begin += size;
      if (blocks[at].begin == blocks[at].end) {
        for (int i = at; i + 1 < free; ++i) blocks[i] = blocks[i + 1];
        --free;
      }
    }
  }
  std::int64_t size = 0;
  for (int v = 0; v < count; ++v)
    if (values[v].bytes > 0 && offsets[v] + aligned(values[v].bytes) > size)
      size = offsets[v] + aligned(values[v].bytes);
  return size;
}

/// The same at run time: what Exec calls on its real sizes (batch, padded layouts).
inline std::int64_t pack(const std::vector<Lifetime>& values, int last, std::vector<std::int64_t>& offsets) {
  const auto count = values.size(), moments = static_cast<std::size_t>(last) + 2;
  offsets.assign(count, 0);
  std::vector<int> first_at(moments), release_at(moments), next_at(count), release_next(count);
  std::vector<FreeBlock> blocks(count + 1);
  return pack(values.data(), static_cast<int>(count), last, offsets.data(), first_at.data(), next_at.data(),
              release_at.data(), release_next.data(), blocks.data());
}

}  // namespace convoy::graph
