// Conversion of images between NHWC and their canonical order [rows, channels, height, width], which inputs,
// flatten and the outputs of a model have. Each image is a matrix that is transposed through shared memory,
// so that reads and writes are contiguous.
#pragma once

#include <cstdint>
#include <type_traits>

#include <convoy/core/hd.hpp>
#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// Images of a batch; `positions` is height times width. In NHWC a position has `padded` elements; those
/// beyond the image's channels are zeros.
struct Images {
  int rows = 0, channels = 0, padded = 0, positions = 0;
};

/// Transposes matrices of `lines` lines of `length` elements, `from_stride` apart, to `length` lines of
/// `lines` elements, `to_stride` apart; the gaps between these become zero.
struct Transposition {
  int rows = 0, lines = 0, length = 0, from_stride = 0, to_stride = 0;
  float scale = 1, offset = 0;  ///< u8 values x become scale * x + offset
  int log_width = 5;            ///< log2 of the elements of a line in a tile
  bool accumulate = false;
};

inline constexpr int log_tile = 10;  ///< log2 of the elements of a tile

template <class From, class To>
__global__ void transpose(Transposition t, const From* x, const From* second, To* y) {
  // Lines of a tile are padded by one element, so that a warp that reads a column accesses all banks.
  __shared__ float tile[2 << log_tile];
  const int log_height = log_tile - t.log_width;
  const int width = 1 << t.log_width, height = 1 << log_height, pitch = width + 1;
  const int tiles_across = (t.length + width - 1) / width;
  const int first = static_cast<int>(blockIdx.x) % tiles_across * width;
  const int line = static_cast<int>(blockIdx.x) / tiles_across * height;
  for (int row = static_cast<int>(blockIdx.y); row < t.rows; row += static_cast<int>(gridDim.y)) {
    const std::int64_t from = static_cast<std::int64_t>(row) * t.lines * t.from_stride;
    for (int i = static_cast<int>(threadIdx.x); i < 1 << log_tile; i += static_cast<int>(blockDim.x)) {
      const int down = i >> t.log_width, across = i & (width - 1);
      if (line + down >= t.lines || first + across >= t.length) continue;
      const std::int64_t at = from + static_cast<std::int64_t>(line + down) * t.from_stride + first + across;
      float v;
      if constexpr (std::is_same_v<From, u8>) {
        v = multiply_add(t.scale, static_cast<float>(x[at]), t.offset);
      } else {
        v = device::widen(x[at]);
        if (second != nullptr) v += device::widen(second[at]);
      }
      tile[down * pitch + across] = v;
    }
    __syncthreads();
    const std::int64_t to = static_cast<std::int64_t>(row) * t.length * t.to_stride;
    for (int i = static_cast<int>(threadIdx.x); i < 1 << log_tile; i += static_cast<int>(blockDim.x)) {
      const int across = i >> log_height, down = i & (height - 1);
      if (line + down >= t.to_stride || first + across >= t.length) continue;
      float v = line + down < t.lines ? tile[down * pitch + across] : 0.0f;
      To* const place = y + to + static_cast<std::int64_t>(first + across) * t.to_stride + line + down;
      if (t.accumulate) v += device::widen(*place);
      *place = device::narrow<To>(v);
    }
    __syncthreads();
  }
}

/// Launches the transposition with tiles as square as its matrices allow.
template <class From, class To>
void start_transposition(cudaStream_t stream, Transposition t, const From* x, const From* second, To* y) {
  while (t.log_width > 0 && 1 << t.log_width >= 2 * t.length) --t.log_width;
  while (t.log_width < log_tile && 1 << (log_tile - t.log_width) >= 2 * t.to_stride) ++t.log_width;
  const int width = 1 << t.log_width, height = 1 << (log_tile - t.log_width);
  device::Launch where = over_images(stream, t.rows, 1);
  where.grid.x =
      static_cast<unsigned>((t.length + width - 1) / width * ((t.to_stride + height - 1) / height));
  where.block = 256;
  device::launch(where, transpose<From, To>, t, x, second, y);
}

// Images of few channels, which become 8 or 16 bytes a position. A thread takes some positions, so that its
// reads wait for memory together.
template <int padded, class From, class T>
__global__ void image_of_few_channels(Images images, const From* x, float scale, float offset, T* y) {
  constexpr int together = 4;
  const int first = static_cast<int>(blockIdx.x * blockDim.x * together + threadIdx.x);
  for (int row = static_cast<int>(blockIdx.y); row < images.rows; row += static_cast<int>(gridDim.y)) {
    const From* const from = x + static_cast<std::int64_t>(row) * images.channels * images.positions;
    float v[together][padded] = {};
    for (int c = 0; c < padded; ++c)
      for (int i = 0; i < together; ++i) {
        const int position = first + i * static_cast<int>(blockDim.x);
        if (c >= images.channels || position >= images.positions) continue;
        v[i][c] = static_cast<float>(from[static_cast<std::int64_t>(c) * images.positions + position]);
        if constexpr (std::is_same_v<From, u8>) v[i][c] = multiply_add(scale, v[i][c], offset);
      }
    for (int i = 0; i < together; ++i) {
      const int position = first + i * static_cast<int>(blockDim.x);
      if (position >= images.positions) continue;
      T* const to = y + (static_cast<std::int64_t>(row) * images.positions + position) * padded;
      if constexpr (padded == device::lanes<T>) {
        store(to, v[i]);
      } else {
        using Bits [[gnu::may_alias]] = std::uint64_t;
        *reinterpret_cast<Bits*>(to) =
            device::pair_of<T>(v[i][0], v[i][1]) | std::uint64_t{device::pair_of<T>(v[i][2], v[i][3])} << 32;
      }
    }
  }
}

/// Converts a batch of an input, in canonical order and of u8 (x becomes scale * x + offset) or float, to
/// images in NHWC.
template <class From, class T>
void image_from_input(cudaStream_t stream, const Images& images, const From* x, float scale, float offset,
                      T* y) {
  if constexpr (sizeof(T) == 2)
    if (images.padded == 4 || images.padded == 8) {
      const device::Launch where = over_images(stream, images.rows, (images.positions + 3) / 4);
      return device::launch(
          where, images.padded == 4 ? image_of_few_channels<4, From, T> : image_of_few_channels<8, From, T>,
          images, x, scale, offset, y);
    }
  start_transposition<From, T>(stream,
                               {.rows = images.rows,
                                .lines = images.channels,
                                .length = images.positions,
                                .from_stride = images.positions,
                                .to_stride = images.padded,
                                .scale = scale,
                                .offset = offset},
                               x, nullptr, y);
}

/// Images x + second in canonical order, of T for flatten or of float for an output, without the padding.
/// `second` may be null.
template <class T, class To>
void image_to_canonical(cudaStream_t stream, const Images& images, const T* x, To* y,
                        const T* second = nullptr) {
  start_transposition<T, To>(stream,
                             {.rows = images.rows,
                              .lines = images.positions,
                              .length = images.channels,
                              .from_stride = images.padded,
                              .to_stride = images.positions},
                             x, second, y);
}

/// dx = g or dx += g, where dx is in NHWC and g = dy + second is the gradient of the result of
/// `image_to_canonical`. `second` may be null.
template <class From, class T>
void image_to_canonical_backward(cudaStream_t stream, const Images& images, const From* dy,
                                 const std::type_identity_t<From>* second, T* dx, bool accumulate) {
  start_transposition<From, T>(stream,
                               {.rows = images.rows,
                                .lines = images.channels,
                                .length = images.positions,
                                .from_stride = images.positions,
                                .to_stride = images.padded,
                                .accumulate = accumulate},
                               dy, second, dx);
}

}  // namespace convoy::exec::cuda
