// Parsing of a command line.
#pragma once

#include <optional>

#include <CLI/CLI.hpp>

#include "numbers.hpp"

namespace examples {

/// Parses the command line, in which whole numbers are decimal. Returns an exit code if the program is to end
/// now: 0 after --help, 1 after an error that has been printed, for which CLI11 has a code of its own for
/// each kind.
inline std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  take_decimal_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }
  return std::nullopt;
}

}  // namespace examples
