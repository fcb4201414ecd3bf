// Checks of numbers in options, with error messages. CLI11's own checks print the largest double with all of
// its 309 digits.
#pragma once

#include <cstdlib>
#include <string>

#include <CLI/CLI.hpp>

namespace examples {

/// A check that the text is a number above 0 or, with `zero`, at least 0.
inline CLI::Validator number_above_zero(bool or_zero, const char* name) {
  return {[or_zero](const std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            if (end != text.c_str() && *end == '\0' && (value > 0 || (or_zero && value == 0)))
              return std::string();
            return text + (or_zero ? " is not 0 or a number above 0" : " is not a number above 0");
          },
          name};
}
inline CLI::Validator positive() { return number_above_zero(false, "POSITIVE"); }
inline CLI::Validator not_negative() { return number_above_zero(true, "NONNEGATIVE"); }

}  // namespace examples
