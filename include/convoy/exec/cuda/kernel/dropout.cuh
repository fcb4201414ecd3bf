// Dropout: the draws of draws.hpp, the same bits as on the host, for a vector of elements at a time. Backward
// draws again, so that nothing is stored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/access.cuh>
#include <convoy/exec/draws.hpp>

namespace convoy::exec::cuda {

/// The four words of block `block` for row `row` of the batch.
__device__ inline std::array<std::uint32_t, 4> words_of(const Draws& draws, int row, std::uint32_t block) {
  const std::uint64_t at = draws.position + static_cast<std::uint64_t>(row);
  return philox({block, draws.epoch, static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32)},
                draws.key);
}

/// Whether element `e` of a row is kept.
__device__ inline bool keeps(const Draws& draws, const DropoutRule& rule, int row, std::int64_t e) {
  constexpr int blocks = Draws::blocks_a_chunk;
  const auto words = words_of(draws, row, static_cast<std::uint32_t>(e / Draws::chunk * blocks + e % blocks));
  unsigned kept = 0;  // bits of all four, because an index of a word would put the words into memory
  for (int q = 0; q < 4; ++q)
    kept |= static_cast<unsigned>(rule.keeps(words[static_cast<std::size_t>(q)])) << q;
  return (kept >> (e % Draws::chunk / blocks) & 1u) != 0;
}

/// The draws of a warp for elements side by side: no block of words is computed twice, as its four words
/// belong to elements of several threads. At once, a warp takes `span` elements, a thread `vectors` times `V`
/// of them.
template <int V>
struct WarpDraws {
  static constexpr int elements_a_call = 4 * device::warp_size;
  static constexpr int span = V < 4 ? elements_a_call : V * device::warp_size;
  static constexpr int vectors = span / (V * device::warp_size);

  /// Index of this thread in its warp.
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x % static_cast<unsigned>(device::warp_size));
  }
  /// The first element of a vector of this thread, counted from the first of the warp.
  __device__ static int element(int vector) { return (vector * device::warp_size + lane()) * V; }

  /// Launch over `rows` rows of `elements` elements, rows along y as for over_images.
  static device::Launch over_rows(cudaStream_t stream, int rows, std::int64_t elements) {
    return over_images(stream, rows, (elements + span - 1) / span * device::warp_size);
  }
  /// The first element of this thread's warp in such a launch.
  __device__ static std::int64_t first() {
    const unsigned warps = blockDim.x / device::warp_size, warp = threadIdx.x / device::warp_size;
    return (static_cast<std::int64_t>(blockIdx.x) * warps + warp) * span;
  }
  /// Which elements of this thread are kept: bit k * V + i is that of element i of vector k. All threads of
  /// the warp call this. `first`, the warp's first element in a row, is a multiple of Draws::chunk.
  __device__ static unsigned kept(const Draws& draws, const DropoutRule& rule, int row, std::int64_t first) {
    constexpr int chunk = Draws::chunk, quarter = Draws::blocks_a_chunk;
    unsigned of_quarter[vectors] = {};
    for (int call = 0; call < span / elements_a_call; ++call) {
      const std::int64_t block = first / 4 + call * device::warp_size + lane();
      const auto words = words_of(draws, row, static_cast<std::uint32_t>(block));
      unsigned both[4];  // of a quarter of two chunks: bits 0 to 15 are those of the first chunk
      for (int q = 0; q < 4; ++q)
        both[q] = __ballot_sync(device::full_warp, rule.keeps(words[static_cast<std::size_t>(q)]));
      for (int k = 0; k < vectors; ++k) {
        const int own = element(k) % chunk / quarter;  // selected by its bits: an index would need memory
        const unsigned low = own % 2 == 0 ? both[0] : both[1], high = own % 2 == 0 ? both[2] : both[3];
        if (element(k) / elements_a_call == call) of_quarter[k] = own < 2 ? low : high;
      }
    }
    unsigned kept = 0;
    for (int k = 0; k < vectors; ++k) {
      const int bit = element(k) % elements_a_call / chunk * quarter + element(k) % quarter;
      kept |= (of_quarter[k] >> bit & ((1u << V) - 1)) << (k * V);
    }
    return kept;
  }
};

/// Multiplies v by the scale where it is kept, else zeroes it; bit `bit` + k of `kept` is element k's.
template <int V>
__device__ void drop(float (&v)[V], unsigned kept, int bit, float scale) {
  for (int k = 0; k < V; ++k) v[k] = (kept >> (bit + k) & 1u) != 0 ? v[k] * scale : 0.0f;
}

/// y = addend + (kept ? (x + second) * scale : 0) for `V` elements from `at`.
template <int V, class T>
__device__ void drop(unsigned kept, int bit, float scale, const T* x, const T* second, const T* addend, T* y,
                     std::int64_t at) {
  float v[V];
  load_gradient(v, x, second, at);
  drop(v, kept, bit, scale);
  if (addend != nullptr) {
    float other[V];
    load(other, addend + at);
    for (int k = 0; k < V; ++k) v[k] += other[k];
  }
  store(y + at, v);
}

template <int V, class T>
__global__ void drop_rows(const Draws* draws, DropoutRule rule, int rows, std::int64_t elements, const T* x,
                          const T* second, const T* addend, T* y) {
  using Warp = WarpDraws<V>;
  const std::int64_t first = Warp::first();
  if (first >= elements) return;
  const Draws from = *draws;
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    const unsigned kept = Warp::kept(from, rule, row, first);
    for (int k = 0; k < Warp::vectors; ++k)
      if (const std::int64_t e = first + Warp::element(k); e < elements)
        drop<V>(kept, k * V, rule.scale, x, second, addend, y, row * elements + e);
  }
}

// Neighbors in memory are channels, which are a map apart in canonical order. If maps are whole chunks, a
// thread takes V channels of a position in each quarter of a chunk, because these share V blocks of four
// words; else it takes one position and uses one word of four.
template <int V, bool chunks, class T>
__global__ void drop_images(const Draws* draws, DropoutRule rule, int rows, int channels, int positions,
                            const T* x, const T* second, const T* addend, T* y) {
  constexpr int quarter = Draws::blocks_a_chunk, quarters = chunks ? 4 : 1;
  const int vectors = channels / V;
  const auto item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int channel = item % vectors * V, place = item / vectors;
  const int position = chunks ? place / quarter * Draws::chunk + place % quarter : place;
  if (position >= positions) return;
  const Draws from = *draws;
  const std::int64_t image = static_cast<std::int64_t>(channels) * positions;
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    unsigned kept = 0;
    for (int k = 0; k < V; ++k) {
      const std::int64_t e = static_cast<std::int64_t>(channel + k) * positions + position;
      const auto block = static_cast<std::uint32_t>(e / Draws::chunk * quarter + e % quarter);
      const auto words = words_of(from, row, block);
      const int word = static_cast<int>(e % Draws::chunk) / quarter;  // 0 where maps are whole chunks
      for (int q = 0; q < 4; ++q) {
        const unsigned keep = rule.keeps(words[static_cast<std::size_t>(q)]);
        if constexpr (chunks)
          kept |= keep << (q * V + k);
        else if (q == word)
          kept |= keep << k;
      }
    }
    for (int q = 0; q < quarters; ++q)
      drop<V>(kept, q * V, rule.scale, x, second, addend, y,
              row * image + static_cast<std::int64_t>(position + q * quarter) * channels + channel);
  }
}

/// y = addend + d, where d = (x + second) * scale if the element is kept, else 0. This gives the value if x
/// is the input and `second` null, and the gradient of the input if x and `second` are the gradients of the
/// value. A row has `elements` elements, in canonical order in memory. `draws`, those of the layer and the
/// pass, are in device memory. `second` and `addend` may be null; `y` may be `x` and may be `addend`.
template <class T>
void dropout(cudaStream_t stream, const Draws* draws, const DropoutRule& rule, int rows,
             std::int64_t elements, const T* x, const T* second, const T* addend, T* y) {
  constexpr int width = device::lanes<T>;
  const bool whole = elements % width == 0;
  device::launch(whole ? WarpDraws<width>::over_rows(stream, rows, elements)
                       : WarpDraws<1>::over_rows(stream, rows, elements),
                 whole ? drop_rows<width, T> : drop_rows<1, T>, draws, rule, rows, elements, x, second,
                 addend, y);
}

/// The same for images in NHWC of fewer than 2^31 elements. `channels` are those in memory; those beyond the
/// image's own stay zero.
template <class T>
void dropout_image(cudaStream_t stream, const Draws* draws, const DropoutRule& rule, int rows, int channels,
                   int positions, const T* x, const T* second, const T* addend, T* y) {
  constexpr int width = device::lanes<T>;
  const bool whole = channels % width == 0, chunks = positions % Draws::chunk == 0;
  const std::int64_t items =
      static_cast<std::int64_t>(channels) * positions / (whole ? width : 1) / (chunks ? 4 : 1);
  const auto kernel = chunks ? (whole ? drop_images<width, true, T> : drop_images<1, true, T>)
                             : (whole ? drop_images<width, false, T> : drop_images<1, false, T>);
  device::launch(over_images(stream, rows, items), kernel, draws, rule, rows, channels, positions, x, second,
                 addend, y);
}

}  // namespace convoy::exec::cuda
