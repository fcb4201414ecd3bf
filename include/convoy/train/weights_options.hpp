// How a weights file differs from one that a trainer writes by default.
#pragma once

#include <string_view>

namespace convoy::train {

struct WeightsOptions {
  /// A prefix of the model's names that the file's names lack, such as the "transformer." of Hugging Face's
  /// GPT-2.
  std::string_view prefix = {};
  /// Whether the file stores the matrix of this name transposed, such as models::gpt2_is_transposed.
  bool (*transposed)(std::string_view name) = nullptr;
};

}  // namespace convoy::train
