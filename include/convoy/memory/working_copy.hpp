// WorkingCopy: a 16-bit copy of the parameters, which 16-bit matrix products read.
#pragma once

#include <convoy/core/dtype.hpp>

namespace convoy::memory {

/// Destination to which an optimizer also writes the parameters it updates, elementwise, rounded to `type`.
struct WorkingCopy {
  void* at = nullptr;  ///< null: no copy
  DType type = DType::f32;
};

}  // namespace convoy::memory
