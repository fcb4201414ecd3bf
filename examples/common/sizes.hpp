// The options of every Transformer's sizes.
#pragma once

#include <CLI/CLI.hpp>

namespace examples {

template <class Sizes>
void add_sizes(CLI::App& app, Sizes& sizes) {
  app.add_option("--layers", sizes.layers, "Of the model")->check(CLI::PositiveNumber);
  app.add_option("--width", sizes.width, "Features of a token")->check(CLI::PositiveNumber);
  app.add_option("--heads", sizes.heads, "Of the attention")->check(CLI::PositiveNumber);
  if constexpr (requires { sizes.ffn; })
    app.add_option("--ffn", sizes.ffn, "Features between a layer's linear layers")
        ->check(CLI::PositiveNumber);
  app.add_option("--length", sizes.length, "Tokens of a row; what is longer is cut")
      ->check(CLI::PositiveNumber);
  app.add_option("--dropout", sizes.dropout, "Share of values")->check(CLI::Range(0.0, 0.9));
}

}  // namespace examples
