// Matrices: tensors as wholes, for rules that look at more than their elements, and what such rules ask of a
// space.
#pragma once

#include <cstdint>
#include <span>

#include <convoy/core/hd.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/working_copy.hpp>
#include <convoy/optim/guard.hpp>

namespace convoy::memory {
class Host;
}

namespace convoy::optim {

/// How a matrix of a row for each output stands in an arena. Its rows go by panels of `panel`, a divisor of
/// `rows`: each panel is stored column after column, so that a panel of 1 is row-major order. Columns stand
/// in any order, the same in all rows.
struct MatrixShape {
  std::int64_t rows = 1, columns = 1, panel = 1;

  CONVOY_HD std::int64_t size() const { return rows * columns; }
  CONVOY_HD std::int64_t low() const { return rows < columns ? rows : columns; }
  CONVOY_HD std::int64_t high() const { return rows < columns ? columns : rows; }
  /// Whether it has more rows than columns.
  CONVOY_HD bool tall() const { return rows > columns; }
};

/// The update of a tensor that is a matrix. All pointers are of the space.
struct MatrixPass {
  MatrixShape shape;
  std::int64_t all_columns = 1;  ///< of the tensor, those without gradients included
  float* parameters = nullptr;
  /// Null: columns that never have any, so that their state is zero; they only decay.
  const float* gradients = nullptr;
  float scale = 1;                ///< of the gradients, before the verdict
  memory::WorkingCopy copy = {};  ///< of the parameters
  float* state = nullptr;         ///< slot s begins at state + s * stride
  std::int64_t stride = 0;
  const void* constants = nullptr;   ///< the rule's
  const Verdict* verdict = nullptr;  ///< null: nothing was decided, so the pass is made as it is
};

/// The sides of a matrix: the number of its rows or that of its columns, whichever is less or more.
enum class Side : unsigned char { low, high };

/// A product that updates of matrices need: out = factor left right + kept from, of matrices whose sides are
/// those of the one that is updated. `from` is shaped like `out`; with `kept` 0 nobody reads it.
struct MatrixProduct {
  Side rows = Side::low, inner = Side::low, columns = Side::low;  ///< [rows, inner] times [inner, columns]
  bool right_transposed = false;                                  ///< right is given as [columns, inner]
  bool symmetric = false;                                         ///< `out` is known to be, and so is `from`
  float factor = 1, kept = 0;
  friend constexpr bool operator==(const MatrixProduct&, const MatrixProduct&) = default;
};

/// What a rule works in and by: so many matrices [low, high], so many [low, low], and these products.
struct MatrixNeeds {
  int wide = 0, square = 0;
  std::span<const MatrixProduct> products = {};

  /// Where the matrices lie, in floats from the beginning of a rule's memory, and where they end.
  std::int64_t wide_at(const MatrixShape& shape, int i) const { return i * slot(shape.size()); }
  std::int64_t square_at(const MatrixShape& shape, int i) const {
    return wide_at(shape, wide) + i * slot(shape.low() * shape.low());
  }
  std::int64_t floats(const MatrixShape& shape) const { return square_at(shape, square); }

 private:
  static std::int64_t slot(std::int64_t n) {
    constexpr std::int64_t grain = alignment / sizeof(float);
    return (n + grain - 1) / grain * grain;
  }
};

/// What the updates of matrices in space S work in and by; a space whose memory nobody multiplies in has
/// none. It is made for the shapes that it will meet, so that nothing is allocated in a step:
///
///   `MatrixWork(space, needs, shapes)`
///
/// A rule names the matrices of its `needs` by numbers. A matrix [low, high] stands there in a way of the
/// space's own: nobody but the space reads it.
///
///   `wide(m, i)`, `square(m, i)`        those matrices, for a pass over one
///   `normalize(m, f, least, x, other)`  x [low, high] = the matrix, or its transpose if it is tall, of
///                                       f(gradient, state, constants) for every element, divided by its
///                                       length (the root of the sum of squares, in f64) or by `least`;
///                                       f may write into the element's `float (&state)[F::slots]`. `other`
///                                       is overwritten
///   `multiply(m, product, left, right, from, out)`   one of the needs' products; `out` is none of the others
///   `update(m, f, x)`                   p = f(p, the element of x, constants) for every parameter; without x
///                                       f is given 0
///
/// F::Constants is the rule's. In a step that is skipped neither state nor parameters change.
template <class S>
class MatrixWork;

}  // namespace convoy::optim
