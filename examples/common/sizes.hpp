// The options for the sizes of every Transformer.
#pragma once

#include <vector>

#include "own_option.hpp"

namespace examples {

/// The options of `sizes`, then `more`.
template <class Sizes>
std::vector<OwnOption> with_sizes(Sizes& sizes, const std::vector<OwnOption>& more) {
  std::vector<OwnOption> all = {{"--layers", &sizes.layers, "Number of layers", Accepts::positive},
                                {"--width", &sizes.width, "Features per token", Accepts::positive},
                                {"--heads", &sizes.heads, "Number of attention heads", Accepts::positive}};
  if constexpr (requires { sizes.ffn; })
    all.push_back({"--ffn", &sizes.ffn, "Hidden features of the feed-forward layers", Accepts::positive});
  all.push_back({"--length", &sizes.length, "Tokens per row; longer text is cut", Accepts::positive});
  all.push_back({"--dropout", &sizes.dropout, "Dropout rate", Between{0, 0.9}});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace examples
