// Layer normalization of a sum, one summand of which may go through dropout: a warp or a block adds up a row
// and normalizes it while it is in the cache, and does the same with its gradient. The draws are those of
// draws.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/exec/cuda/kernel/dropout.cuh>
#include <convoy/exec/cuda/kernel/layer_norm.cuh>

// For loops whose iterations need so many registers that unrolling would spill them.
#if defined(__CUDACC__)
#define CONVOY_NOT_UNROLLED _Pragma("unroll 1")
#else
#define CONVOY_NOT_UNROLLED
#endif

namespace convoy::exec::cuda {

/// A layer norm of x = addend + branch, where dropout applies to the branch if there are draws. Backward
/// writes the gradient of x to `d_addend`, which may be `dy`, and the part of it that dropout keeps to
/// `d_branch`.
template <class T>
struct ResidualNormTask : LayerNormTask<T> {
  const Draws* draws = nullptr;  ///< those of the layer and the pass, in device memory
  DropoutRule rule{0};
  int batch_row = 1;  ///< rows of features per row of the batch
  const T* branch = nullptr;
  const T* addend = nullptr;
  T* sum = nullptr;       ///< x, to be written; may be y if no backward follows
  T* d_addend = nullptr;  ///< null: not wanted
  bool accumulate_addend = false;
  T* d_branch = nullptr;  ///< null: not wanted
  bool accumulate_branch = false;
};

/// How the draws for the elements of a row are made.
enum class Dropping : unsigned char {
  none,    ///< there are none
  chunks,  ///< rows are whole chunks: the threads of a warp draw for each other
  words,   ///< each thread draws for its own elements, one at a time, and uses one word of four
};

template <Dropping form, int W, int threads>
struct RowPieces {
  static_assert(form != Dropping::words || W == 1);

  /// Calls `visit` with the first element of each vector of this thread in a row of n elements.
  template <class Visit>
  __device__ static void for_each(int n, Visit visit) {
    CONVOY_NOT_UNROLLED
    for (int i = Team<threads>::thread() * W; i < n; i += threads * W) visit(i);
  }
  /// The same for all threads of a warp together, with any i.
  template <class Visit>
  __device__ static void for_each_of_warp(int n, Visit visit) {
    const int lane = Team<threads>::thread() % device::warp_size * W;
    CONVOY_NOT_UNROLLED
    for (int i = Team<threads>::thread() * W; i - lane < n; i += threads * W) visit(i);
  }
  /// Which elements are kept of the vector whose first is element `e` of row `row` of the batch. All threads
  /// of the warp call this. The draws are read anew each time, because the keys of all rounds of Philox would
  /// take too many registers.
  template <class T>
  __device__ static unsigned kept(const ResidualNormTask<T>& t, int row, std::int64_t e) {
    if constexpr (form == Dropping::none)
      return 0;
    else if constexpr (form == Dropping::chunks)
      return WarpDraws<W>::kept(*t.draws, t.rule, row, e - WarpDraws<W>::element(0));
    else
      return keeps(*t.draws, t.rule, row, e) ? 1 : 0;
  }
};

template <Dropping form, class T, int W, int threads>
__global__ void __launch_bounds__(team_block<threads>, threads == device::warp_size ? 4 : 2)
    residual_norm_rows(ResidualNormTask<T> t) {
  __shared__ float scratch[32];
  using Row = Team<threads>;
  using Pieces = RowPieces<form, W, threads>;
  const int n = t.features;
  const float count = static_cast<float>(n);
  for (std::int64_t row = Row::first_row(); row < t.rows; row += Row::row_step()) {
    const std::int64_t begin = row * n;
    const int batch_row = static_cast<int>(row / t.batch_row);
    const std::int64_t of_batch_row = row % t.batch_row * n;
    float sum = 0, squares = 0;
    Pieces::for_each_of_warp(n, [&](int i) {
      const unsigned kept = Pieces::kept(t, batch_row, of_batch_row + i);
      if (i >= n) return;
      float v[W], other[W];
      load(v, t.branch + begin + i);
      load(other, t.addend + begin + i);
      if constexpr (form != Dropping::none) drop(v, kept, 0, t.rule.scale);
      for (int k = 0; k < W; ++k) v[k] += other[k];
      round_to<T>(v);  // the norm uses the sum as backward will read it
      store(t.sum + begin + i, v);
      for (int k = 0; k < W; ++k) sum += v[k];
    });
    // From here on a thread reads of the sum only what it wrote itself.
    const T* x = t.sum + begin;
    const float mean = Row::sum(sum, scratch) / count;
    Pieces::for_each(n, [&](int i) {
      float v[W];
      load(v, x + i);
      for (int k = 0; k < W; ++k) squares = fmaf(v[k] - mean, v[k] - mean, squares);
    });
    const float inverse = 1.0f / sqrtf(Row::sum(squares, scratch) / count + t.epsilon);
    if (Row::thread() == 0) {
      t.mean[row] = mean;
      t.inverse[row] = inverse;
    }
    Pieces::for_each(n, [&](int i) {
      float v[W], weight[W], bias[W] = {};
      load(v, x + i);
      load(weight, t.weight + i);
      if (t.bias != nullptr) load(bias, t.bias + i);
      for (int k = 0; k < W; ++k) v[k] = fmaf((v[k] - mean) * inverse, weight[k], bias[k]);
      store(t.y + begin + i, v);
    });
  }
}

template <Dropping form, class T, int W, int threads>
__global__ void __launch_bounds__(team_block<threads>, threads == device::warp_size ? 3 : 2)
    residual_norm_gradients(ResidualNormTask<T> t) {
  __shared__ float scratch[32];
  using Row = Team<threads>;
  using Pieces = RowPieces<form, W, threads>;
  const int n = t.features;
  const float count = static_cast<float>(n);
  for (std::int64_t row = Row::first_row(); row < t.rows; row += Row::row_step()) {
    const std::int64_t begin = row * n;
    const int batch_row = static_cast<int>(row / t.batch_row);
    const std::int64_t of_batch_row = row % t.batch_row * n;
    const float mean = t.mean[row], inverse = t.inverse[row];
    float sum = 0, dot = 0;
    Pieces::for_each(n, [&](int i) {
      float g[W], x[W], weight[W];
      load_gradient(g, t.dy, t.second, begin + i);
      load(x, t.x + begin + i);
      load(weight, t.weight + i);
      for (int k = 0; k < W; ++k) {
        sum = fmaf(g[k], weight[k], sum);
        dot = fmaf(g[k] * weight[k], (x[k] - mean) * inverse, dot);
      }
    });
    const float of_one = Row::sum(sum, scratch) / count, of_normal = Row::sum(dot, scratch) / count;
    Pieces::for_each_of_warp(n, [&](int i) {
      unsigned kept = 0;
      if (t.d_branch != nullptr) kept = Pieces::kept(t, batch_row, of_batch_row + i);
      if (i >= n) return;
      float g[W], x[W], weight[W];
      load_gradient(g, t.dy, t.second, begin + i);
      load(x, t.x + begin + i);
      load(weight, t.weight + i);
      for (int k = 0; k < W; ++k)
        g[k] = (fmaf(g[k], weight[k], -of_one) - (x[k] - mean) * inverse * of_normal) * inverse;
      if (t.d_addend != nullptr) {
        float of_addend[W];
        for (int k = 0; k < W; ++k) of_addend[k] = g[k];
        store(t.d_addend + begin + i, of_addend, t.accumulate_addend);
      }
      if (t.d_branch == nullptr) return;
      if constexpr (form != Dropping::none) drop(g, kept, 0, t.rule.scale);
      store(t.d_branch + begin + i, g, t.accumulate_branch);
    });
  }
}

/// Calls `visit` with the sharing, the width and the team size (each a constant) that suit the rows of a
/// task.
template <class T, class Visit>
void with_pieces(const ResidualNormTask<T>& t, Visit visit) {
  constexpr int W = device::lanes<T>;
  const auto with_team = [&](auto form, auto width) {
    if (t.features <= layer_norm_warp)
      visit(form, width, Width<32>());
    else
      visit(form, width, Width<512>());
  };
  using Form = Dropping;
  if (t.draws != nullptr && t.features % Draws::chunk == 0)
    with_team(std::integral_constant<Form, Form::chunks>(), Width<W>());
  else if (t.draws != nullptr)
    with_team(std::integral_constant<Form, Form::words>(), Width<1>());
  else if (t.features % W == 0)
    with_team(std::integral_constant<Form, Form::none>(), Width<W>());
  else
    with_team(std::integral_constant<Form, Form::none>(), Width<1>());
}

/// The sums, y, and the mean and the inverse deviation of each row.
template <class T>
void residual_norm_forward(cudaStream_t stream, const ResidualNormTask<T>& t) {
  with_pieces(t, [&](auto form, auto width, auto threads) {
    device::launch({stream, Team<threads>::blocks(t.rows), team_block<threads>},
                   residual_norm_rows<form, T, width, threads>, t);
  });
}

/// The gradients of addend, branch, weight and bias.
template <class T>
void residual_norm_backward(cudaStream_t stream, const ResidualNormTask<T>& t) {
  layer_norm_parameters<T>(stream, t);
  if (t.d_addend == nullptr && t.d_branch == nullptr) return;
  with_pieces(t, [&](auto form, auto width, auto threads) {
    device::launch({stream, Team<threads>::blocks(t.rows), team_block<threads>},
                   residual_norm_gradients<form, T, width, threads>, t);
  });
}

}  // namespace convoy::exec::cuda

#undef CONVOY_NOT_UNROLLED
