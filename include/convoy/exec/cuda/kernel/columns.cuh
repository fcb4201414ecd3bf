// Sums over the rows of [rows, columns] for each column, always added in the same order: blocks write partial
// sums of chunks of rows, and a second kernel adds these in f64.
#pragma once

#include <cstdint>

#include <convoy/core/hd.hpp>
#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// How [rows, columns] is shared among a grid of `tiles` times `chunks` blocks. Tiles are along x, because
/// there may be more of them than the 65,535 blocks possible along y. A line of a block is `tile` threads
/// side by side, each with `width` neighboring columns; of the block's chunk of rows, each line takes every
/// `lines()`th row.
struct Columns {
  static constexpr int most_threads = 256;
  static constexpr int processors = 132;  // SMs of a Hopper GPU; others only run more or fewer blocks each

  std::int64_t rows = 0;
  int columns = 0;
  int width = 1;
  int tile = 1;
  int threads = most_threads;
  int tiles = 1;
  int chunks = 1;
  std::int64_t chunk_rows = 0;

  CONVOY_HD int lines() const { return threads / tile; }
  dim3 grid() const { return dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks)); }
  dim3 block() const { return dim3(static_cast<unsigned>(threads)); }
};

/// Shares `rows` (at least 1) rows and `columns` columns of T among at most about `blocks` blocks. Unless
/// their number is a multiple of the lanes of T, columns are taken one by one.
template <class T>
Columns share_columns(std::int64_t rows, int columns, int blocks = Columns::processors * 4) {
  Columns c;
  c.rows = rows;
  c.columns = columns;
  c.width = columns % device::lanes<T> == 0 ? device::lanes<T> : 1;
  const int vectors = columns / c.width;
  // Whole warps side by side unless more than a quarter of the threads would idle.
  c.tile = 32;
  while ((vectors + c.tile - 1) / c.tile * c.tile - vectors > vectors / 3) c.tile /= 2;
  c.tiles = (vectors + c.tile - 1) / c.tile;
  const auto most_chunks = [&] { return (rows + c.lines() - 1) / c.lines(); };
  // Little work is spread over all multiprocessors.
  while (c.threads > 64 && c.tiles * most_chunks() < Columns::processors) c.threads /= 2;
  std::int64_t chunks = blocks / c.tiles;
  if (chunks > most_chunks()) chunks = most_chunks();
  if (chunks < 1) chunks = 1;
  c.chunk_rows = (rows + chunks - 1) / chunks;
  c.chunks = static_cast<int>((rows + c.chunk_rows - 1) / c.chunk_rows);
  return c;
}

/// The part of this thread: columns [column, column + width), none if `column` is not below the number of
/// columns; and rows [row, end) in steps of `step`.
struct ColumnPlace {
  int line = 0, step = 1;
  std::int64_t column = 0, row = 0, end = 0;

  __device__ explicit ColumnPlace(const Columns& c) {
    line = static_cast<int>(threadIdx.x) / c.tile;
    step = c.lines();
    column =
        (static_cast<std::int64_t>(blockIdx.x) * c.tile + static_cast<int>(threadIdx.x) % c.tile) * c.width;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * c.chunk_rows;
    end = first + c.chunk_rows < c.rows ? first + c.chunk_rows : c.rows;
    row = first + line;
    if (column >= c.columns) row = end;
  }
};

/// Partial sums in scratch memory: [chunks][sums][columns].
template <int sums>
struct Partials {
  float* values = nullptr;
  int columns = 0;

  static std::int64_t bytes(const Columns& c) {
    return static_cast<std::int64_t>(c.chunks) * sums * c.columns * static_cast<std::int64_t>(sizeof(float));
  }
  __device__ float* at(int chunk, int sum, std::int64_t column) const {
    return values + (static_cast<std::int64_t>(chunk) * sums + sum) * columns + column;
  }
  /// Adds the partial sums of a chunk to the totals of a column.
  __device__ void take(double (&totals)[sums], int chunk, int column) const {
    for (int s = 0; s < sums; ++s) totals[s] += static_cast<double>(*at(chunk, s, column));
  }
};

/// Partial sums of the terms of `Terms`. `Terms::At<W>(terms, column).add<U>(float (&)[sums][W], row, step)`
/// adds the terms of W neighboring columns of U rows, `step` apart; `Terms::together` rows are read at once.
template <int sums, int W, class Terms>
__global__ void __launch_bounds__(Columns::most_threads, 2)
    column_partials(Columns c, Terms terms, Partials<sums> partials) {
  __shared__ float all[sums][W][Columns::most_threads];
  const ColumnPlace place(c);
  float sum[sums][W] = {};
  if (place.row < place.end) {
    const typename Terms::template At<W> at(terms, place.column);
    std::int64_t row = place.row;
    constexpr int U = Terms::together;
    for (; row + (U - 1) * place.step < place.end; row += U * place.step)
      at.template add<U>(sum, row, place.step);
    for (; row < place.end; row += place.step) at.template add<1>(sum, row, place.step);
  }
  for (int s = 0; s < sums; ++s)
    for (int k = 0; k < W; ++k) all[s][k][threadIdx.x] = sum[s][k];
  for (int half = c.lines() / 2; half > 0; half /= 2) {
    __syncthreads();
    if (place.line < half)
      for (int s = 0; s < sums; ++s)
        for (int k = 0; k < W; ++k)
          all[s][k][threadIdx.x] += all[s][k][static_cast<int>(threadIdx.x) + half * c.tile];
  }
  if (place.line > 0 || place.column >= c.columns) return;
  for (int s = 0; s < sums; ++s) {
    float total[W];
    for (int k = 0; k < W; ++k) total[k] = all[s][k][threadIdx.x];
    store(partials.at(static_cast<int>(blockIdx.y), s, place.column), total);
  }
}

inline constexpr int finish_side = 8;         // columns per block at least, 32 contiguous bytes
inline constexpr int most_finish_lines = 64;  // threads per column

/// The totals of each column: `Finish::take(totals, chunk, column)` adds those of a chunk, and
/// `Finish::finish(column, totals)` uses them. `lines` threads, a power of two, share a column.
template <int sums, class Finish>
__global__ void __launch_bounds__(finish_side* most_finish_lines)
    finish_columns(int chunks, int columns, int lines, Finish f) {
  __shared__ double all[sums][finish_side * most_finish_lines];
  const int side = static_cast<int>(blockDim.x) / lines;
  const int line = static_cast<int>(threadIdx.x) / side;
  const int column = static_cast<int>(blockIdx.x) * side + static_cast<int>(threadIdx.x) % side;
  double total[sums] = {};
  if (column < columns)
    for (int chunk = line; chunk < chunks; chunk += lines) f.take(total, chunk, column);
  for (int s = 0; s < sums; ++s) all[s][threadIdx.x] = total[s];
  for (int half = lines / 2; half > 0; half /= 2) {
    __syncthreads();
    if (line < half)
      for (int s = 0; s < sums; ++s)
        all[s][threadIdx.x] += all[s][static_cast<int>(threadIdx.x) + half * side];
  }
  if (line > 0 || column >= columns) return;
  for (int s = 0; s < sums; ++s) total[s] = all[s][threadIdx.x];
  f.finish(column, total);
}

template <int sums, class Finish>
void launch_finish(cudaStream_t stream, const Columns& c, const Finish& finish) {
  constexpr int threads = 256;
  int lines = 1;
  while (lines < most_finish_lines && lines < c.chunks) lines *= 2;
  const int side = lines * finish_side < threads ? threads / lines : finish_side;
  device::launch({stream, dim3(static_cast<unsigned>((c.columns + side - 1) / side)),
                  dim3(static_cast<unsigned>(side * lines))},
                 finish_columns<sums, Finish>, c.chunks, c.columns, lines, finish);
}

/// Sums `terms` over rows; `finish`, which reads the same partial sums, uses the totals.
template <class T, int sums, class Terms, class Finish>
void sum_columns(cudaStream_t stream, const Columns& c, const Terms& terms, const Partials<sums>& partials,
                 const Finish& finish) {
  constexpr int W = device::lanes<T>;
  device::launch({stream, c.grid(), c.block()},
                 c.width == W ? column_partials<sums, W, Terms> : column_partials<sums, 1, Terms>, c, terms,
                 partials);
  launch_finish<sums>(stream, c, finish);
}

}  // namespace convoy::exec::cuda
