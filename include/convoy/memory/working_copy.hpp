// WorkingCopy: parameters once more, as products of 16 bits read them.
#pragma once

#include <convoy/core/dtype.hpp>

namespace convoy::memory {

/// Where whoever updates parameters is to write them once more, element for element, rounded to `type`.
struct WorkingCopy {
  void* at = nullptr;  ///< null: nowhere
  DType type = DType::f32;
};

}  // namespace convoy::memory
