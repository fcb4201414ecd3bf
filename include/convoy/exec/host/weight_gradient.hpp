// WeightGradient: the gradient of a linear layer's weight from copies of both factors whose rows are padded.
//
// The gradient is a product over the vectors of a batch, so that it reads both factors by columns. Rows whose
// bytes are a multiple of 4096 all start in the same set of the first-level cache, and evict one another.
// Rows one cache line further apart start in different sets. oneDNN's product for AVX2 makes no such copies
// where a side of the weight is short.
#pragma once

#include <algorithm>
#include <cstdint>

#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/onednn_product.hpp>
#include <convoy/exec/host/program.hpp>
#include <convoy/exec/host/tuning.hpp>

namespace convoy::exec::host {

/// A matrix [rows, columns] whose rows start on cache lines, with at least one unused line between them.
struct PaddedMatrix {
  std::int64_t rows = 0, columns = 0;
  static constexpr std::int64_t line = 16;  // floats
  std::int64_t stride() const { return (columns + line - 1) / line * line + line; }
  std::int64_t bytes() const { return rows * stride() * static_cast<std::int64_t>(sizeof(float)); }
};

struct PadLoop {
  /// Copies columns [begin, end) of a dense matrix, and adds up each column in order if `sums` is not null.
  template <int W>
  CONVOY_INLINE static void run(std::int64_t begin, std::int64_t end, PaddedMatrix matrix, const float* from,
                                float* to, float* sums) {
    if (sums != nullptr) std::fill(sums + begin, sums + end, 0.0f);
    for (std::int64_t row = 0; row < matrix.rows; ++row, from += matrix.columns, to += matrix.stride()) {
      CONVOY_FOR_VECTORS(W, begin, end, {
        V x, sum;
        simd::load(x, from + i);
        simd::store(to + i, x);
        if (sums == nullptr) continue;
        simd::load(sum, sums + i);
        sum += x;
        simd::store(sums + i, sum);
      })
    }
  }
};

/// Copies a dense matrix. Threads share the columns, so that the order of each sum is fixed.
inline void pad(const PaddedMatrix& matrix, const float* from, float* to, float* sums, int threads) {
  parallel(matrix.rows * matrix.columns < loop_tuning.worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range range = share(matrix.columns, thread, team, PaddedMatrix::line);
    simd::run<PadLoop>(range.begin, range.end, matrix, from, to, sums);
  });
}

/// A product of oneDNN and the copies that it reads.
class WeightGradient {
 public:
  /// Whether the copies cost less than they save. With AVX-512 this was not measured.
  static bool pays(const Backend& backend, std::int64_t vectors, std::int64_t in, std::int64_t out) {
    return backend.factor == dnnl_f32 && has_isa(dnnl_cpu_isa_avx2) && !has_isa(dnnl_cpu_isa_avx512_core) &&
           std::min(in, out) >= linear_tuning.narrowest_copied &&
           vectors * in * out >= linear_tuning.least_copied;
  }

  [[gnu::cold]] WeightGradient(Program& p, std::int64_t vectors, std::int64_t in, std::int64_t out, int time)
      : x_{vectors, in},
        dy_{vectors, out},
        x_copy_(p.request(x_.bytes(), time, time)),
        dy_copy_(p.request(dy_.bytes(), time, time)) {}

  /// Computes d_weight [out, in] = dy' x for dense x [vectors, in] and dy [vectors, out], and the sums
  /// d_bias [out] of the columns of dy unless it is null.
  void operator()(Program& p, const float* x, const float* dy, float* d_weight, float* d_bias) const {
    float *const x_copy = p.address(x_copy_), *const dy_copy = p.address(dy_copy_);
    pad(x_, x, x_copy, nullptr, p.threads());
    pad(dy_, dy, dy_copy, d_bias, p.threads());
    multiply_matrices(dy_.columns, x_.columns, x_.rows, {dy_copy, dy_.stride(), true}, {x_copy, x_.stride()},
                      0.0f, d_weight);
  }

 private:
  PaddedMatrix x_, dy_;
  Location x_copy_, dy_copy_;
};

}  // namespace convoy::exec::host
