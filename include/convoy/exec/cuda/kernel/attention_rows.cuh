// Parts of an attention on tensor cores: rows of a head in shared memory, which a warp multiplies with those
// in its registers, and the draws of a tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/attention_head.cuh>
#include <convoy/memory/mma.cuh>

namespace convoy::exec::cuda {

inline constexpr int mma_threads = attention_tile / 16 * device::warp_size;

/// The place of a thread in the products of its warp (mma.cuh): its rows are row() and row() + 8 of the
/// block's tile; of every 8 columns it has column() and column() + 1.
struct MmaPlace {
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % device::warp_size; }
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x) / device::warp_size * 16; }
  __device__ static int row() { return warp_row() + lane() / 4; }
  __device__ static int column() { return lane() % 4 * 2; }

  /// The maximum, or the sum, over the 4 threads that share rows, returned to each.
  __device__ static float max_of_row(float x) {
    for (int apart = 2; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(device::full_warp, x, apart);
      x = other > x ? other : x;
    }
    return x;
  }
  __device__ static float sum_of_row(float x) {
    for (int apart = 2; apart > 0; apart /= 2) x += __shfl_xor_sync(device::full_warp, x, apart);
    return x;
  }
};

/// Rows of one head in shared memory, D features wide. Lines are padded by 16 bytes, so that 8 lines, which
/// are read at once, lie in different banks.
template <class T, int D>
struct SharedRows {
  static constexpr int line = D + device::lanes<T>;
  static constexpr int bytes(int rows) { return rows * line * static_cast<int>(sizeof(T)); }

  T* data;

  __device__ explicit SharedRows(unsigned char* shared, int first = 0)
      : data(reinterpret_cast<T*>(shared) + first * line) {}

  /// Copies `rows` rows of a tensor here, by the whole block.
  template <int rows>
  __device__ void fill(const HeadRows<T>& from, bool whole) const {
    constexpr int width = device::lanes<T>, pieces = D / width;
    if (!whole || from.second != nullptr) {
      for (int item = static_cast<int>(threadIdx.x); item < rows * D; item += static_cast<int>(blockDim.x)) {
        float one[1];
        from.read(one, item / D, item % D);
        data[item / D * line + item % D] = device::narrow<T>(one[0]);
      }
      return;
    }
    static_assert(rows * pieces % mma_threads == 0);
    constexpr int count = rows * pieces / mma_threads;
    device::Lanes<T> piece[count];  // all loads are issued before the first is waited for
    for (int i = 0; i < count; ++i) {
      const int item = i * mma_threads + static_cast<int>(threadIdx.x);
      piece[i] = from.copy(item / pieces, item % pieces * width);
    }
    for (int i = 0; i < count; ++i) {
      const int item = i * mma_threads + static_cast<int>(threadIdx.x);
      device::store_lanes(data + item / pieces * line + item % pieces * width, piece[i]);
    }
  }

  /// Loads the 16 rows of this warp as left factors of products.
  __device__ void take(std::uint32_t (&own)[D / 16][4]) const {
    const T* const from =
        data + (MmaPlace::warp_row() + MmaPlace::lane() % 16) * line + MmaPlace::lane() / 16 * 8;
    for (int k = 0; k < D / 16; ++k) device::load_matrices(own[k], from + 16 * k);
  }

  /// product[n] = the inner products of the rows in `own` and rows 8 n to 8 n + 7 of these.
  template <int N>
  __device__ void multiply(float (&product)[N][4], const std::uint32_t (&own)[D / 16][4]) const {
    const T* const from =
        data + (MmaPlace::lane() % 8 + MmaPlace::lane() / 16 * 8) * line + MmaPlace::lane() / 8 % 2 * 8;
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < 4; ++i) product[n][i] = 0;
    for (int k = 0; k < D / 16; ++k)
      for (int n = 0; n < N; n += 2) {
        std::uint32_t b[4];
        device::load_matrices(b, from + 8 * n * line + 16 * k);
        device::multiply_add<T>(product[n], own[k], b[0], b[1]);
        device::multiply_add<T>(product[n + 1], own[k], b[2], b[3]);
      }
  }

  /// sum[f] += the product of `weight` and features 8 f to 8 f + 7 of these rows.
  template <int N>
  __device__ void weigh(float (&sum)[D / 8][4], const float (&weight)[N][4]) const {
    const T* const from = data + MmaPlace::lane() % 16 * line + MmaPlace::lane() / 16 * 8;
    for (int n = 0; n < N; n += 2) {
      const std::uint32_t a[4] = {device::pair_of<T>(weight[n][0], weight[n][1]),
                                  device::pair_of<T>(weight[n][2], weight[n][3]),
                                  device::pair_of<T>(weight[n + 1][0], weight[n + 1][1]),
                                  device::pair_of<T>(weight[n + 1][2], weight[n + 1][3])};
      for (int f = 0; f < D / 8; f += 2) {
        std::uint32_t b[4];
        device::load_transposed(b, from + 8 * n * line + 8 * f);
        device::multiply_add<T>(sum[f], a, b[0], b[1]);
        device::multiply_add<T>(sum[f + 1], a, b[2], b[3]);
      }
    }
  }

  /// Writes the rows of this warp, times `factor`, to the tile's rows of a tensor, of which there are
  /// `count`. The warp's rows here serve as scratch memory.
  __device__ void write(const float (&rows)[D / 8][4], float factor, T* to, std::int64_t step, int count,
                        int features, bool whole) const {
    constexpr int width = device::lanes<T>, pieces = D / width;
    for (int f = 0; f < D / 8; ++f)
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<std::uint32_t*>(data + (MmaPlace::row() + 8 * h) * line + 8 * f +
                                          MmaPlace::column()) =
            device::pair_of<T>(rows[f][2 * h] * factor, rows[f][2 * h + 1] * factor);
    __syncwarp();
    for (int item = MmaPlace::lane(); item < 16 * pieces; item += device::warp_size) {
      const int row = MmaPlace::warp_row() + item / pieces, feature = item % pieces * width;
      if (row >= count || feature >= features) continue;
      const device::Lanes<T> piece = device::load_lanes(data + row * line + feature);
      if (whole)
        device::store_lanes(to + row * step + feature, piece);
      else
        for (int k = 0; k < width; ++k)
          if (feature + k < features) to[row * step + feature + k] = piece.lane[k];
    }
    __syncwarp();
  }
};

/// Which probabilities of `queries` queries and of a chunk of keys are dropped, in shared memory.
template <int queries>
struct SharedDraws {
  static constexpr int bytes = queries * Draws::blocks_a_chunk;

  unsigned char* words;  // bit w of [query, k]: key 16 w + k of the chunk

  /// Draws for queries from `query` on and the chunk that contains `key`, by the whole block.
  template <class T>
  __device__ void fill(const AttentionHead<T>& head, int query, int key) const {
    for (int item = static_cast<int>(threadIdx.x); item < bytes; item += static_cast<int>(blockDim.x)) {
      const int block = item % Draws::blocks_a_chunk;
      const auto four =
          head.words(query + item / Draws::blocks_a_chunk, key / Draws::chunk * Draws::chunk + block);
      unsigned bits = 0;
      for (int w = 0; w < 4; ++w)
        bits |=
            static_cast<unsigned>(Draws::number(four[static_cast<std::size_t>(w)]) < head.t.rule.threshold)
            << w;
      words[item] = static_cast<unsigned char>(bits);
    }
  }
  __device__ bool dropped(int query, int key) const {
    return (words[query * Draws::blocks_a_chunk + key % Draws::blocks_a_chunk] >>
                (key % Draws::chunk / Draws::blocks_a_chunk) &
            1) != 0;
  }
};

inline constexpr float log2_of_e = 1.44269504f, log_of_2 = 0.693147181f;

}  // namespace convoy::exec::cuda
