// How a file of weights differs from what a trainer's own would be.
#pragma once

#include <string_view>

namespace convoy::train {

struct WeightsOptions {
  /// Names that the file has without this in front: the "transformer." of Hugging Face's GPT-2, say.
  std::string_view prefix = {};
  /// Whether the file holds the matrix of this name as its transpose: models::gpt2_is_transposed.
  bool (*transposed)(std::string_view name) = nullptr;
};

}  // namespace convoy::train
