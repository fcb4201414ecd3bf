// Matrices: tensors that a rule updates as a whole instead of elementwise, and the operations of a space that
// such rules need.
#pragma once

#include <cstddef>
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

/// The storage layout in an arena of a matrix with one row per output. The rows are split into panels of
/// `panel` rows, a divisor of `rows`. Each panel is stored column after column, so `panel` = 1 is row-major
/// order. The columns may be in any order, which is the same in all rows.
struct MatrixShape {
  std::int64_t rows = 1, columns = 1, panel = 1;

  friend constexpr bool operator==(const MatrixShape&, const MatrixShape&) = default;
  CONVOY_HD std::int64_t size() const { return rows * columns; }
  CONVOY_HD std::int64_t low() const { return rows < columns ? rows : columns; }
  CONVOY_HD std::int64_t high() const { return rows < columns ? columns : rows; }
  /// Whether the matrix has more rows than columns.
  CONVOY_HD bool tall() const { return rows > columns; }
};

/// Where one of several matrices of a pass lies.
struct MatrixPlace {
  std::int64_t element = 0;    ///< index in the arena of its first element
  std::int64_t state = 0;      ///< offset of its state in a slot
  std::int64_t constants = 0;  ///< offset of its constants, in bytes
};

/// The update of a matrix, or of several matrices of one shape together. All pointers are to memory of the
/// space.
struct MatrixPass {
  MatrixShape shape;
  std::int64_t all_columns = 1;  ///< columns of the tensor, including those without gradients
  float* parameters = nullptr;
  /// Null for columns that never have gradients: their state is zero, and they only decay.
  const float* gradients = nullptr;
  float scale = 1;                ///< of the gradients, without the verdict's factor
  memory::WorkingCopy copy = {};  ///< of the parameters; null if there is none
  float* state = nullptr;         ///< slot s begins at state + s * stride
  std::int64_t stride = 0;
  const void* constants = nullptr;   ///< the rule's Constants
  const Verdict* verdict = nullptr;  ///< null: no decision, the pass is applied as it is
  int count = 1;                     ///< how many matrices there are
  /// Null for one matrix. Otherwise the pointers to elements are to element `first` of the arena, those to
  /// the state and the constants are to the beginning of both, and these are the places of the matrices.
  const MatrixPlace* places = nullptr;
  std::int64_t first = 0;

  /// The pass of the i-th matrix alone.
  CONVOY_HD MatrixPass of(int i) const {
    MatrixPass one = *this;
    if (places == nullptr) return one;
    const MatrixPlace place = places[i];
    const std::int64_t at = place.element - first;
    one.parameters += at;
    one.gradients += at;
    if (copy.at != nullptr) one.copy.at = static_cast<std::uint16_t*>(copy.at) + at;
    one.state += place.state;
    one.constants = static_cast<const std::byte*>(constants) + place.constants;
    return one;
  }
};

/// The shorter and the longer side of a matrix: the smaller and the larger of its numbers of rows and
/// columns.
enum class Side : unsigned char { low, high };

/// A matrix product needed by an update: out = factor * left * right + kept * from. The sides of the operands
/// are sides of the updated matrix. `from` has the shape of `out` and is not read if `kept` is 0.
struct MatrixProduct {
  Side rows = Side::low, inner = Side::low, columns = Side::low;  ///< [rows, inner] times [inner, columns]
  bool right_transposed = false;                                  ///< `right` is passed as [columns, inner]
  bool symmetric = false;  ///< `out` and `from` are known to be symmetric
  float factor = 1, kept = 0;
  friend constexpr bool operator==(const MatrixProduct&, const MatrixProduct&) = default;
};

/// The scratch memory and the products that a rule needs: `wide` matrices [low, high], `square` matrices
/// [low, low].
struct MatrixNeeds {
  int wide = 0, square = 0;
  std::span<const MatrixProduct> products = {};

  /// The offsets of the matrices in the scratch memory, and its size, in floats.
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

/// The scratch memory and operations for matrix updates in space S. Not defined for a space that cannot
/// multiply matrices. Constructed for all shapes that occur, so that a step allocates no memory:
///
///   `MatrixWork(space, needs, shapes)`
///
/// `shapes` has the shape of every matrix. A rule refers to the matrices of its `needs` by index. The layout
/// of a matrix [low, high] in scratch memory is up to the space; nothing else reads it.
///
///   `most(shape)`                       how many matrices of a shape a pass may have
///   `wide(m, i)`, `square(m, i)`        scratch matrix i for pass m, of each of its matrices
///   `normalize(m, f, least, x, other)`  x [low, high] = the matrix (transposed if it is tall) of
///                                       f(gradient, state, constants) for every element, divided by its
///                                       Frobenius norm (computed in f64) or by `least` if that is larger.
///                                       f may write to the element's `float (&state)[F::slots]`. `other`
///                                       is overwritten
///   `multiply(m, product, left, right, from, out)`   one of the needs' products; `out` must not alias others
///   `update(m, f, x)`                   p = f(p, the element of x, constants) for every parameter; if x is
///                                       null, f gets 0
///
/// F::Constants is the rule's. In a skipped step, neither state nor parameters change.
template <class S>
class MatrixWork;

}  // namespace convoy::optim
