// Checks of numbers and paths in options, with error messages. CLI11's own checks print the largest double
// with all of its 309 digits, and CLI11 reads a whole number that begins with 0 as octal.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

#include <convoy/core/error.hpp>

namespace examples {

/// Sets `number` to the whole text's number; false if the text is no number.
inline bool read_number(const std::string& text, double& number) {
  char* end = nullptr;
  number = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && !std::isnan(number);
}

inline constexpr auto least_float = static_cast<double>(std::numeric_limits<float>::denorm_min());
inline constexpr auto largest_float = static_cast<double>(std::numeric_limits<float>::max());

/// A check that the text is a number above 0 or, with `or_zero`, at least 0, and at most `most`. A number so
/// small that a float of it would be 0, which some options take for none, is refused.
inline CLI::Validator number_above_zero(bool or_zero, const char* name, double most) {
  return {[or_zero, most](const std::string& text) {
            double value = 0;
            if (!read_number(text, value) || value < 0 || (!or_zero && value == 0))
              return text + (or_zero ? " is not 0 or a number above 0" : " is not a number above 0");
            if (value > most) return convoy::concat(text, " is above ", most);
            if (value != 0 && value < least_float) return convoy::concat(text, " is below ", least_float);
            return std::string();
          },
          name};
}
inline CLI::Validator positive(double most = largest_float) {
  return number_above_zero(false, "POSITIVE", most);
}
inline CLI::Validator not_negative() { return number_above_zero(true, "NONNEGATIVE", largest_float); }

/// A check that the text is a number from `least` to `most`. CLI::Range takes nan for one.
inline CLI::Validator within(double least, double most) {
  return {[least, most](const std::string& text) {
            double value = 0;
            if (read_number(text, value) && value >= least && value <= most) return std::string();
            return convoy::concat(text, " is not a number from ", least, " to ", most);
          },
          convoy::concat("FLOAT in [", least, " - ", most, "]")};
}

/// A check that a path is not empty, as that of a script's unset variable.
inline CLI::Validator path() {
  return {[](const std::string& text) { return std::string(text.empty() ? "the path is empty" : ""); }, ""};
}

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
