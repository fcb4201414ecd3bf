// The options for the sizes of every Transformer.
#pragma once

#include <vector>

#include "own_option.hpp"

namespace examples {

/// The options of `sizes`, then `more`.
template <class Sizes>
std::vector<OwnOption> with_sizes(Sizes& sizes, const std::vector<OwnOption>& more) {
  std::vector<OwnOption> all = {{"--layers", &sizes.layers, "Of the model", Accepts::positive},
                                {"--width", &sizes.width, "Features of a token", Accepts::positive},
                                {"--heads", &sizes.heads, "Of the attention", Accepts::positive}};
  if constexpr (requires { sizes.ffn; })
    all.push_back({"--ffn", &sizes.ffn, "Features between a layer's linear layers", Accepts::positive});
  all.push_back({"--length", &sizes.length, "Tokens of a row; what is longer is cut", Accepts::positive});
  all.push_back({"--dropout", &sizes.dropout, "Share of values", Between{0, 0.9}});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace examples
