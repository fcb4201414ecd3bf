// Pooling over images in NHWC. Max pooling records which tap won, so that backward reads neither input nor
// output. Backward gathers: each element of the input visits the windows that contain it, so that no two
// threads write the same element.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include <convoy/exec/cuda/kernel/access.cuh>
#include <convoy/graph/window.hpp>

namespace convoy::exec::cuda {

/// One pooling over a batch. `channels` are those in memory; an image has fewer than 2^31 elements.
struct Pooling {
  int rows = 0, channels = 0;
  int height = 0, width = 0;          ///< of x
  int out_height = 0, out_width = 0;  ///< of y
  graph::Window window;

  constexpr std::int64_t in_image() const { return static_cast<std::int64_t>(height) * width * channels; }
  constexpr std::int64_t out_image() const {
    return static_cast<std::int64_t>(out_height) * out_width * channels;
  }
  /// The factor of a sum over a window: padding counts in the mean.
  constexpr float share() const { return 1.0f / static_cast<float>(window.height * window.width); }
  constexpr bool global() const {
    return window.height == height && window.width == width && window.padding == 0 &&
           out_height * out_width == 1;
  }
  /// Bytes of one element of `winner`: u8 for up to 256 taps, else i32.
  constexpr int winner_bytes() const { return window.height * window.width <= 256 ? 1 : 4; }
};

/// The taps [begin, end) of the window at output position `o` that lie within the input; tap k is at input
/// position `start` + k.
struct TapRange {
  int start, begin, end;
  __device__ TapRange(int o, const graph::Window& w, int kernel, int extent)
      : start(o * w.stride - w.padding),
        begin(start < 0 ? -start : 0),
        end(start + kernel > extent ? extent - start : kernel) {}
};

/// The output positions [begin, end) whose windows contain input position `i`.
struct WindowRange {
  int begin, end;
  __device__ WindowRange(int i, const graph::Window& w, int kernel, int positions) {
    const int from_first = i + w.padding, past = from_first - kernel;
    begin = past < 0 ? 0 : past / w.stride + 1;
    end = from_first / w.stride + 1;
    if (end > positions) end = positions;
  }
};

/// Where a thread of a kernel over images works: at position (y, x), from `channel` on.
struct Pixel {
  int y, x, channel;
};

/// The place of item `item` of an image that is `across` positions wide; items are vectors of `V` channels.
template <int V>
__device__ Pixel place_of(unsigned item, int channels, int across) {
  const unsigned vectors = static_cast<unsigned>(channels) / V, position = item / vectors;
  return {static_cast<int>(position / static_cast<unsigned>(across)),
          static_cast<int>(position % static_cast<unsigned>(across)), static_cast<int>(item % vectors) * V};
}

template <int V, class Winner, class T>
__global__ void pool_max_forward(Pooling p, const T* x, T* y, Winner* winner) {
  const unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= p.out_image() / V) return;
  const Pixel at = place_of<V>(item, p.channels, p.out_width);
  const TapRange down(at.y, p.window, p.window.height, p.height);
  const TapRange right(at.x, p.window, p.window.width, p.width);
  for (int row = static_cast<int>(blockIdx.y); row < p.rows; row += static_cast<int>(gridDim.y)) {
    const T* image = x + row * p.in_image() + at.channel;
    float best[V];
    int won[V];
    for (int k = 0; k < V; ++k) {
      best[k] = -std::numeric_limits<float>::infinity();
      won[k] = down.begin * p.window.width + right.begin;
    }
    for (int ky = down.begin; ky < down.end; ++ky)
      for (int kx = right.begin; kx < right.end; ++kx) {
        float v[V];
        load(v,
             image + static_cast<std::int64_t>((down.start + ky) * p.width + right.start + kx) * p.channels);
        const int tap = ky * p.window.width + kx;
        for (int k = 0; k < V; ++k) {
          const bool wins = v[k] > best[k] || v[k] != v[k];  // NaN wins, as in PyTorch
          best[k] = wins ? v[k] : best[k];
          won[k] = wins ? tap : won[k];
        }
      }
    const std::int64_t to = row * p.out_image() + static_cast<std::int64_t>(item) * V;
    store(y + to, best);
    device::Lanes<Winner, V> pack;
    for (int k = 0; k < V; ++k) pack.lane[k] = static_cast<Winner>(won[k]);
    *reinterpret_cast<device::Lanes<Winner, V>*>(winner + to) = pack;
  }
}

// Winner = void: average pooling.
template <int V, class Winner, class T>
__global__ void __launch_bounds__(256, 4)
    pool_backward(Pooling p, const T* dy, const T* second, const Winner* winner, T* dx, bool accumulate) {
  const unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= p.in_image() / V) return;
  const Pixel at = place_of<V>(item, p.channels, p.width);
  const WindowRange down(at.y, p.window, p.window.height, p.out_height);
  const WindowRange right(at.x, p.window, p.window.width, p.out_width);
  for (int row = static_cast<int>(blockIdx.y); row < p.rows; row += static_cast<int>(gridDim.y)) {
    float sum[V] = {};
    // Two by two windows are read at once, so that they wait for memory together.
    for (int oy = down.begin; oy < down.end; oy += 2)
      for (int ox = right.begin; ox < right.end; ox += 2) {
        using Tap = std::conditional_t<std::is_void_v<Winner>, u8, Winner>;
        device::Lanes<T, V> read[4];
        device::Lanes<Tap, V> won[4];
        std::int64_t from[4];
        for (int i = 0; i < 4; ++i) {
          // In place of a window that is not there, the first one is read again.
          const int y = oy + i / 2 < down.end ? oy + i / 2 : oy, x = ox + i % 2 < right.end ? ox + i % 2 : ox;
          from[i] =
              row * p.out_image() + static_cast<std::int64_t>(y * p.out_width + x) * p.channels + at.channel;
          read[i] = *reinterpret_cast<const device::Lanes<T, V>*>(dy + from[i]);
          if constexpr (!std::is_void_v<Winner>)
            won[i] = *reinterpret_cast<const device::Lanes<Winner, V>*>(winner + from[i]);
        }
        for (int i = 0; i < 4; ++i) {
          const int y = oy + i / 2, x = ox + i % 2;
          if (y >= down.end || x >= right.end) continue;
          float more[V] = {};
          if (second != nullptr) load(more, second + from[i]);
          const int tap = (at.y + p.window.padding - y * p.window.stride) * p.window.width + at.x +
                          p.window.padding - x * p.window.stride;
          for (int k = 0; k < V; ++k) {
            const float g = device::widen(read[i].lane[k]) + more[k];
            sum[k] += std::is_void_v<Winner> || static_cast<int>(won[i].lane[k]) == tap ? g : 0.0f;
          }
        }
      }
    if constexpr (std::is_void_v<Winner>)
      for (int k = 0; k < V; ++k) sum[k] *= p.share();
    store(dx + row * p.in_image() + static_cast<std::int64_t>(item) * V, sum, accumulate);
  }
}

template <int V, class T>
__global__ void pool_average_forward(Pooling p, const T* x, T* y) {
  const unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= p.out_image() / V) return;
  const Pixel at = place_of<V>(item, p.channels, p.out_width);
  const TapRange down(at.y, p.window, p.window.height, p.height);
  const TapRange right(at.x, p.window, p.window.width, p.width);
  for (int row = static_cast<int>(blockIdx.y); row < p.rows; row += static_cast<int>(gridDim.y)) {
    const T* image = x + row * p.in_image() + at.channel;
    float sum[V] = {};
    for (int ky = down.begin; ky < down.end; ++ky)
      for (int kx = right.begin; kx < right.end; ++kx) {
        float v[V];
        load(v,
             image + static_cast<std::int64_t>((down.start + ky) * p.width + right.start + kx) * p.channels);
        for (int k = 0; k < V; ++k) sum[k] += v[k];
      }
    for (int k = 0; k < V; ++k) sum[k] *= p.share();
    store(y + row * p.out_image() + static_cast<std::int64_t>(item) * V, sum);
  }
}

inline constexpr int global_groups = 8;

// A warp takes 32 vectors of channels, and the warps of a block share the positions: with one thread for all
// positions of a vector, a small batch would have too few threads.
template <int V, class T>
__global__ void pool_global_forward(Pooling p, const T* x, T* y) {
  __shared__ float parts[global_groups][V][device::warp_size];
  const int lane = static_cast<int>(threadIdx.x) % device::warp_size;
  const int group = static_cast<int>(threadIdx.x) / device::warp_size;
  const int channel = (static_cast<int>(blockIdx.x) * device::warp_size + lane) * V;
  const int positions = p.height * p.width;
  for (int row = static_cast<int>(blockIdx.y); row < p.rows; row += static_cast<int>(gridDim.y)) {
    const T* image = x + row * p.in_image() + channel;
    float sum[V] = {};
    if (channel < p.channels)
      for (int at = group; at < positions; at += global_groups) {
        float v[V];
        load(v, image + static_cast<std::int64_t>(at) * p.channels);
        for (int k = 0; k < V; ++k) sum[k] += v[k];
      }
    for (int k = 0; k < V; ++k) parts[group][k][lane] = sum[k];
    __syncthreads();
    if (group == 0 && channel < p.channels) {
      for (int other = 1; other < global_groups; ++other)
        for (int k = 0; k < V; ++k) sum[k] += parts[other][k][lane];
      for (int k = 0; k < V; ++k) sum[k] *= p.share();
      store(y + row * p.out_image() + channel, sum);
    }
    __syncthreads();
  }
}

/// Writes the largest element of each window, and its tap to `winner`, which has y's shape and order and
/// elements of `winner_bytes()`. The first of equal elements wins; NaN wins.
template <class T>
void max_pool(cudaStream_t stream, const Pooling& p, const T* x, T* y, void* winner) {
  constexpr int width = device::lanes<T>;
  if (p.winner_bytes() != 1)  // with so many taps vectors gain little
    device::launch(over_images(stream, p.rows, p.out_image()), pool_max_forward<1, i32, T>, p, x, y,
                   static_cast<i32*>(winner));
  else if (p.channels % width == 0)
    device::launch(over_images(stream, p.rows, p.out_image() / width), pool_max_forward<width, u8, T>, p, x,
                   y, static_cast<u8*>(winner));
  else
    device::launch(over_images(stream, p.rows, p.out_image()), pool_max_forward<1, u8, T>, p, x, y,
                   static_cast<u8*>(winner));
}

/// dx = g or dx += g, g the gradient of max pooling's input for the gradient dy + second. `second` may be
/// null.
template <class T>
void max_pool_backward(cudaStream_t stream, const Pooling& p, const T* dy, const T* second,
                       const void* winner, T* dx, bool accumulate) {
  constexpr int width = device::lanes<T>;
  if (p.winner_bytes() != 1)
    device::launch(over_images(stream, p.rows, p.in_image()), pool_backward<1, i32, T>, p, dy, second,
                   static_cast<const i32*>(winner), dx, accumulate);
  else if (p.channels % width == 0)
    device::launch(over_images(stream, p.rows, p.in_image() / width), pool_backward<width, u8, T>, p, dy,
                   second, static_cast<const u8*>(winner), dx, accumulate);
  else
    device::launch(over_images(stream, p.rows, p.in_image()), pool_backward<1, u8, T>, p, dy, second,
                   static_cast<const u8*>(winner), dx, accumulate);
}

/// Writes the mean of each window, its padding counted as zeros.
template <class T>
void average_pool(cudaStream_t stream, const Pooling& p, const T* x, T* y) {
  constexpr int width = device::lanes<T>;
  const bool whole = p.channels % width == 0;
  const int vectors = whole ? p.channels / width : p.channels;
  if (p.global()) {
    device::Launch where = over_images(stream, p.rows, vectors);
    where.grid.x = static_cast<unsigned>((vectors + device::warp_size - 1) / device::warp_size);
    where.block = global_groups * device::warp_size;
    device::launch(where, whole ? pool_global_forward<width, T> : pool_global_forward<1, T>, p, x, y);
  } else {
    device::launch(over_images(stream, p.rows, p.out_image() / p.channels * vectors),
                   whole ? pool_average_forward<width, T> : pool_average_forward<1, T>, p, x, y);
  }
}

/// dx = g or dx += g, g the gradient of average pooling's input for the gradient dy + second. `second` may be
/// null.
template <class T>
void average_pool_backward(cudaStream_t stream, const Pooling& p, const T* dy, const T* second, T* dx,
                           bool accumulate) {
  constexpr int width = device::lanes<T>;
  const bool whole = p.channels % width == 0;
  device::launch(over_images(stream, p.rows, whole ? p.in_image() / width : p.in_image()),
                 whole ? pool_backward<width, void, T> : pool_backward<1, void, T>, p, dy, second, nullptr,
                 dx, accumulate);
}

}  // namespace convoy::exec::cuda
