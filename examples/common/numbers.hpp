// Checks of numbers in options, with error messages. CLI11's own checks print the largest double with all of
// its 309 digits, and CLI11 reads a whole number that begins with 0 as octal.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

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

/// Rewrites a decimal whole number so that CLI11 does not read it as octal. Returns what is wrong with the
/// text, if it is no such number.
template <class Whole>
std::string make_decimal(std::string& text) {
  Whole number = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result read = std::from_chars(text.data(), end, number);
  if (read.ec == std::errc::result_out_of_range) return text + " is beyond the numbers of 64 bits";
  if (read.ec != std::errc() || read.ptr != end) return text + " is not a whole number";
  text = std::to_string(number);
  return {};
}

/// Makes every option of whole numbers that `app` has by now take decimal numbers of 64 bits alone.
inline void take_decimal_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (const std::string type = option->get_type_name(); type.starts_with("INT"))
      option->transform(CLI::Validator(make_decimal<std::int64_t>, ""));
    else if (type.starts_with("UINT"))
      option->transform(CLI::Validator(make_decimal<std::uint64_t>, ""));
}

}  // namespace examples
