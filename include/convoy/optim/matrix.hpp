// MatrixPass: one tensor as a whole, for rules that look at more than its elements.
#pragma once

#include <cstdint>

namespace convoy::optim {

/// The update of a tensor that is a matrix of a row for each output, in host memory. Its rows go by panels of
/// `panel`, a divisor of `rows`: each panel is stored column after column, so that a panel of 1 is row-major
/// order. Columns stand in any order, the same in all rows.
struct MatrixPass {
  float* parameters = nullptr;
  /// Null: columns that never have any, so that their state is zero; they only decay.
  const float* gradients = nullptr;
  float scale = 1;         ///< of the gradients
  float* state = nullptr;  ///< slot s begins at state + s * stride
  std::int64_t stride = 0;
  std::int64_t rows = 1, columns = 1, panel = 1;
  std::int64_t all_columns = 1;  ///< of the tensor, those without gradients included
  float* work = nullptr;         ///< as much as the rule asked for
};

}  // namespace convoy::optim
