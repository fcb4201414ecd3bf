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

/// Which of `V` neighbors in each quarter of a chunk are kept: bit q * V + k is that of element k of quarter
/// q. The words of the first element are those of block `block` of row `row`.
template <int V>
__device__ unsigned kept_in_quarters(const Draws& draws, const DropoutRule& rule, int row,
                                     std::uint32_t block) {
  unsigned kept = 0;
  for (int k = 0; k < V; ++k) {
    const auto words = words_of(draws, row, block + static_cast<unsigned>(k));
    for (int q = 0; q < 4; ++q)
      kept |= static_cast<unsigned>(Draws::number(words[static_cast<std::size_t>(q)]) >= rule.threshold)
              << (q * V + k);
  }
  return kept;
}

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

// A thread takes V elements of each quarter of a chunk, because these share V blocks of four words.
template <int V, class T>
__global__ void drop_rows(const Draws* draws, DropoutRule rule, int rows, std::int64_t elements, const T* x,
                          const T* second, const T* addend, T* y) {
  constexpr int quarter = Draws::blocks_a_chunk, parts = quarter / V;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int part = static_cast<int>(item % parts) * V;
  const std::int64_t first = item / parts * Draws::chunk + part;
  if (first >= elements) return;
  const Draws from = *draws;
  const auto block = static_cast<std::uint32_t>(item / parts * quarter + part);
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    const unsigned kept = kept_in_quarters<V>(from, rule, row, block);
    for (int q = 0; q < 4; ++q)
      if (first + q * quarter < elements)
        drop<V>(kept, q * V, rule.scale, x, second, addend, y, row * elements + first + q * quarter);
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
        const unsigned keep = Draws::number(words[static_cast<std::size_t>(q)]) >= rule.threshold;
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
  const std::int64_t chunks = (elements + Draws::chunk - 1) / Draws::chunk;
  device::launch(over_images(stream, rows, chunks * (Draws::blocks_a_chunk / (whole ? width : 1))),
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
