// PowerSgd: a matrix of gradients as the product of two thin ones (Vogels, Karimireddy and Jaggi, "PowerSGD:
// Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/comm/codec/codec.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm::codec {

class Factors;

/// `rank` columns for each factor: rows * columns elements travel as rank * (rows + columns). A matrix that
/// two factors would not halve is sent uncompressed, and so is everything else in the bucket.
struct PowerSgd {
  static constexpr std::string_view name = "powersgd";
  static constexpr std::string_view about = "matrices as products of two low-rank factors";
  static constexpr Travel travel = Travel::factored;
  using Factors = codec::Factors;
  int rank = 4;
  /// The first steps after `open`, which send gradients uncompressed. Early gradients are large and change
  /// direction from step to step, so that a few directions hold little of them. An optimizer that scales by
  /// the size of gradients, as Adam does, learns that size from whole gradients.
  std::int64_t warm_up_steps = 50;

  static constexpr void fields(auto& self, auto&& field) {
    field("rank", self.rank);
    field("warm_up_steps", self.warm_up_steps);
  }
  std::int64_t warm_up() const { return warm_up_steps; }
  void check() const {
    if (rank < 1) fail<ConfigError>("powersgd needs a rank of at least 1, not ", rank);
    if (warm_up_steps < 0) fail<ConfigError>("powersgd cannot warm up for ", warm_up_steps, " steps");
  }
  constexpr bool compresses(std::int64_t rows, std::int64_t columns) const {
    return std::int64_t{2} * rank * (rows + columns) <= rows * columns;
  }
};

namespace detail {

/// A matrix whose rows are grouped in panels of `panel` rows, each stored column after column.
struct Panels {
  std::int64_t rows = 0, columns = 0, panel = 1;
  std::int64_t size() const { return rows * columns; }
};

/// Iterates over the columns of the panels in the order of storage: `panel` elements from `at` on, the first
/// of which is in `row`.
struct Strip {
  explicit Strip(const Panels& matrix) : of(matrix) {}
  explicit operator bool() const { return row < of.rows; }
  void operator++() {
    at += of.panel;
    if (++column < of.columns) return;
    column = 0;
    row += of.panel;
  }
  const Panels of;
  std::int64_t at = 0, row = 0, column = 0;
};

// A factor is `rank` columns, one after the other.

/// error += gradients; left = error * right.
struct Project {
  template <int W>
  CONVOY_INLINE static void run(float* left, float* error, const float* gradients, const float* right,
                                int rank, Panels m) {
    std::fill(left, left + rank * m.rows, 0.0f);
    for (Strip s(m); s; ++s) {
      float *e = error + s.at, *strip = left + s.row;
      const float *g = gradients + s.at, *factors = right + s.column;
      std::int64_t i = 0;
      simd::Vec<float, W> x, y;
      for (; i + W <= m.panel; i += W) {
        simd::load(x, e + i);
        simd::load(y, g + i);
        x = x + y;
        simd::store(e + i, x);
        for (int k = 0; k < rank; ++k) {
          simd::load(y, strip + k * m.rows + i);
          y = y + x * factors[k * m.columns];
          simd::store(strip + k * m.rows + i, y);
        }
      }
      for (; i < m.panel; ++i) {
        e[i] += g[i];
        for (int k = 0; k < rank; ++k) strip[k * m.rows + i] += e[i] * factors[k * m.columns];
      }
    }
  }
};

/// right = transposed matrix * left.
struct ProjectBack {
  template <int W>
  CONVOY_INLINE static void run(float* right, const float* matrix, const float* left, int rank, Panels m) {
    std::fill(right, right + rank * m.columns, 0.0f);
    for (Strip s(m); s; ++s)
      for (int k = 0; k < rank; ++k) {
        const float *a = matrix + s.at, *b = left + s.row + k * m.rows;
        simd::Vec<float, W> sums{}, x, y;
        std::int64_t i = 0;
        for (; i + W <= m.panel; i += W) {
          simd::load(x, a + i);
          simd::load(y, b + i);
          sums = sums + x * y;
        }
        float sum = 0;
        for (; i < m.panel; ++i) sum += a[i] * b[i];
        for (int w = 0; w < W; ++w) sum += sums[w];
        right[k * m.columns + s.column] += sum;
      }
  }
};

/// matrix = kept * matrix + sign * left * transposed right, for a `kept` of 0 or 1.
template <bool kept>
struct Multiply {
  template <int W>
  CONVOY_INLINE static void run(float* matrix, const float* left, const float* right, int rank, float sign,
                                Panels m) {
    for (Strip s(m); s; ++s) {
      float* to = matrix + s.at;
      const float *strip = left + s.row, *factors = right + s.column;
      std::int64_t i = 0;
      simd::Vec<float, W> x;
      for (; i + W <= m.panel; i += W) {
        simd::Vec<float, W> sums{};
        if constexpr (kept) simd::load(sums, to + i);
        for (int k = 0; k < rank; ++k) {
          simd::load(x, strip + k * m.rows + i);
          sums = sums + x * (sign * factors[k * m.columns]);
        }
        simd::store(to + i, sums);
      }
      for (; i < m.panel; ++i) {
        float sum = kept ? to[i] : 0;
        for (int k = 0; k < rank; ++k) sum += strip[k * m.rows + i] * (sign * factors[k * m.columns]);
        to[i] = sum;
      }
    }
  }
};

/// The order of additions is the same on every processor.
inline double dot(const float* a, const float* b, std::int64_t size) {
  double sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= size; i += 4)
    for (int j = 0; j < 4; ++j) sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  for (; i < size; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

// Whether a column is useless: its squared norm is next to nothing beside what it was, or not finite.
inline bool spent(double now, double before) { return !(now > 1e-8 * before) || !is_finite(now); }

/// Modified Gram-Schmidt over contiguous columns of `size` elements. If a column depends on those before it,
/// `replace(column)` is asked for another one: true if it wrote one.
template <class Replace>
void orthogonalize(float* columns, int count, std::int64_t size, Replace&& replace) {
  for (int k = 0; k < count; ++k) {
    float* column = columns + k * size;
    for (;;) {
      const double before = dot(column, column, size);
      for (int j = 0; j < k; ++j) {
        const float* other = columns + j * size;
        const auto along = static_cast<float>(dot(other, column, size));
        for (std::int64_t i = 0; i < size; ++i) column[i] -= along * other[i];
      }
      const double after = dot(column, column, size);
      if (spent(after, before) && replace(column)) continue;
      const double inverse = after == 0 ? 0 : 1 / std::sqrt(after);
      for (std::int64_t i = 0; i < size; ++i)
        column[i] = static_cast<float>(static_cast<double>(column[i]) * inverse);
      break;
    }
  }
}

}  // namespace detail

/// The factors of one bucket's matrices. A step is `project`, a sum of `left()` over the ranks,
/// `project_back`, a sum of `right()`, `expand`. The right factors are kept as the start of the next step.
/// Ranks compute from the sums with no vectors wider than every processor has: wider vectors round
/// differently, and all ranks must end with the same bits.
class Factors {
 public:
  Factors() = default;
  /// `seed` is the same on all ranks. Matrices that lie entirely in the bucket are factored.
  Factors(const PowerSgd& codec, Range bucket, std::span<const Matrix> matrices, std::uint64_t seed,
          std::pmr::memory_resource* memory)
      : rank_(codec.rank), seed_(seed) {
    std::int64_t left = 0, right = 0, at = bucket.begin;
    for (const Matrix& m : matrices) {
      if (m.range.begin < bucket.begin || m.range.end > bucket.end || !codec.compresses(m.rows, m.columns))
        continue;
      if (at < m.range.begin) plain_.push_back({at - bucket.begin, m.range.begin - bucket.begin});
      at = m.range.end;
      // A row-major matrix is its transpose in column-major order.
      const detail::Panels shape = m.panel == 1 ? detail::Panels{m.columns, m.rows, m.columns}
                                                : detail::Panels{m.rows, m.columns, m.panel};
      factored_.push_back({m.range.begin - bucket.begin, shape, left, right});
      left += rank_ * shape.rows;
      right += rank_ * shape.columns;
    }
    if (at < bucket.end) plain_.push_back({at - bucket.begin, bucket.end - bucket.begin});
    plain_at_ = left;
    for (const Range& r : plain_) left += r.size();
    left_ = Buffer<float>(static_cast<std::size_t>(left), memory);
    right_ = Buffer<float>(static_cast<std::size_t>(right), memory);
  }

  /// The left factors, and behind them what is sent uncompressed.
  std::span<float> left() { return left_; }
  std::span<float> right() { return right_; }

  /// Saves the right factors; `restore` goes back to them, `reset` to the initial state.
  void keep() {
    if (kept_.size() < right_.size()) kept_ = Buffer<float>(right_.size());
    std::copy(right_.begin(), right_.end(), kept_.begin());
    kept_draws_ = draws_;
  }
  void restore() {
    std::copy(kept_.begin(), kept_.end(), right_.begin());
    draws_ = kept_draws_;
  }
  void reset() {
    std::fill(right_.begin(), right_.end(), 0.0f);
    draws_ = 0;
  }
  /// The right factors, and the number of columns drawn.
  void visit_state(StateVisitor& visitor, int bucket) {
    visitor.values(concat("factors.", bucket), right_);
    auto draws = static_cast<std::int64_t>(draws_);
    visitor.counter(concat("draws.", bucket), draws);
    draws_ = static_cast<std::uint64_t>(draws);
  }

  /// error += gradients; left = error * right.
  void project(const float* gradients, float* error) {
    for (const Factorization& m : factored_) {
      detail::orthogonalize(right_.data() + m.right, rank_, m.shape.columns, [&](float* column) {
        Philox numbers(seed_, draws_++);
        for (std::int64_t i = 0; i < m.shape.columns; ++i) column[i] = numbers.normal();
        return true;
      });
      simd::run<detail::Project>(left_.data() + m.left, error + m.at, gradients + m.at,
                                 static_cast<const float*>(right_.data() + m.right), rank_, m.shape);
    }
    float* to = left_.data() + plain_at_;
    for (const Range& r : plain_) to = std::copy(gradients + r.begin, gradients + r.end, to);
  }

  /// Orthonormalizes left; then right = transposed error * left and error -= left * transposed right, so that
  /// error is what this rank's share of the sum omits.
  void project_back(float* error) {
    for (const Factorization& m : factored_) {
      float *left = left_.data() + m.left, *right = right_.data() + m.right;
      detail::orthogonalize(left, rank_, m.shape.rows, [&](float* column) {
        // A non-finite column stays, so that all ranks see it.
        if (is_finite(detail::dot(column, column, m.shape.rows)))
          std::fill(column, column + m.shape.rows, 0.0f);
        return false;
      });
      simd::run<detail::ProjectBack>(right, static_cast<const float*>(error + m.at),
                                     static_cast<const float*>(left), rank_, m.shape);
      if (is_finite(detail::dot(right, right, rank_ * m.shape.columns)))
        simd::run<detail::Multiply<true>>(error + m.at, static_cast<const float*>(left),
                                          static_cast<const float*>(right), rank_, -1.0f, m.shape);
      else  // a non-finite value is sent, not kept
        std::fill(error + m.at, error + m.at + m.shape.size(), 0.0f);
    }
  }

  /// gradients = left * transposed right.
  void expand(float* gradients) const {
    for (const Factorization& m : factored_)
      detail::Multiply<false>::run<4>(gradients + m.at, left_.data() + m.left, right_.data() + m.right, rank_,
                                      1.0f, m.shape);
    const float* from = left_.data() + plain_at_;
    for (const Range& r : plain_) {
      std::copy(from, from + r.size(), gradients + r.begin);
      from += r.size();
    }
  }

 private:
  struct Factorization {
    std::int64_t at;  // in the bucket
    detail::Panels shape;
    std::int64_t left, right;  // where its factors begin
  };

  int rank_ = 0;
  std::uint64_t seed_ = 0, draws_ = 0, kept_draws_ = 0;
  std::vector<Factorization> factored_;
  std::vector<Range> plain_;  // of the bucket: what is sent uncompressed
  std::int64_t plain_at_ = 0;
  Buffer<float> left_, right_, kept_;
};

static_assert(Codec<PowerSgd>);

}  // namespace convoy::comm::codec
