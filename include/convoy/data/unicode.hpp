// Unicode as tokenizers need it: UTF-8, the general categories, and the uncased form of code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <array>
#include <iterator>

#include <convoy/data/unicode_tables.hpp>
#endif

namespace convoy::data::unicode {

/// What a code point is, as a set of flags.
enum : unsigned {
  letter = 1,       ///< categories L
  number = 2,       ///< categories N
  mark = 4,         ///< category Mn, nonspacing marks
  punctuation = 8,  ///< categories P
  separator = 16,   ///< categories Z
  control = 32,     ///< categories Cc and Cf
  cased = 64,       ///< property Cased, where not Case_Ignorable
  ignorable = 128,  ///< property Case_Ignorable
};

/// The flags of a code point; 0 if it is unassigned.
unsigned flags(char32_t c);

/// Whether a code point has the property White_Space.
inline bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == ' ' || (c >= 0x80 && (c == 0x85 || (flags(c) & separator) != 0));
}

/// Appends the uncased form of a code point: lower case by the full mapping without context, canonically
/// decomposed (NFD), without nonspacing marks. Spacing marks are not put in canonical order.
void append_uncased(std::vector<char32_t>& to, char32_t c);

/// One code point of a text in UTF-8, or one byte that is not valid UTF-8.
struct Decoded {
  char32_t code_point = 0;
  unsigned bytes = 0;  ///< the length of its encoding
  bool valid = false;
};

/// The code point at `at < text.size()`. Encodings that are truncated, overlong, of surrogates or beyond
/// U+10FFFF are invalid; the result is then the first byte alone.
inline Decoded decode(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const unsigned bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  char32_t c = first & (0x7fu >> bytes);
  bool valid = first >= 0xc2 && first <= 0xf4;
  for (unsigned i = 1; valid && i < bytes; ++i) {
    valid = (byte(i) & 0xc0) == 0x80;
    c = c << 6 | (byte(i) & 0x3f);
  }
  valid = valid && c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff) && (bytes != 3 || c >= 0x800) &&
          (bytes != 4 || c >= 0x10000);
  if (!valid) return {first, 1, false};
  return {c, bytes, true};
}

/// Appends a code point in UTF-8.
inline void append(std::string& to, char32_t c) {
  const auto byte = [&](char32_t b) { to += static_cast<char>(static_cast<unsigned char>(b)); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) {
    byte(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      byte(0xe0 | c >> 12);
    } else {
      byte(0xf0 | c >> 18);
      byte(0x80 | (c >> 12 & 0x3f));
    }
    byte(0x80 | (c >> 6 & 0x3f));
  }
  byte(0x80 | (c & 0x3f));
}

#if CONVOY_DEFINITIONS

namespace detail {
inline unsigned search_flags(char32_t c) {
  const auto& runs = data::detail::unicode_runs;
  const auto behind =
      std::upper_bound(std::begin(runs), std::end(runs), static_cast<std::uint32_t>(c) << 8 | 255u);
  return *(behind - 1) & 255u;
}
}  // namespace detail

CONVOY_FUNCTION unsigned flags(char32_t c) {
  // A table spares the scripts of Europe the search.
  static const std::array<unsigned char, 0x500> near = [] {
    std::array<unsigned char, 0x500> all{};
    for (char32_t i = 0; i < all.size(); ++i) all[i] = static_cast<unsigned char>(detail::search_flags(i));
    return all;
  }();
  return c < near.size() ? near[c] : detail::search_flags(c);
}

CONVOY_FUNCTION void append_uncased(std::vector<char32_t>& to, char32_t c) {
  if (c < 0x80) {
    to.push_back(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    return;
  }
  // Hangul syllables: The Unicode Standard, section 3.12.
  if (c >= 0xac00 && c <= 0xd7a3) {
    const char32_t s = c - 0xac00;
    to.push_back(0x1100 + s / 588);
    to.push_back(0x1161 + s % 588 / 28);
    if (s % 28 != 0) to.push_back(0x11a7 + s % 28);
    return;
  }
  if ((flags(c) & mark) != 0) return;
  const auto& shifts = data::detail::unicode_shifts;
  const auto shift = std::upper_bound(std::begin(shifts), std::end(shifts), c,
                                      [](char32_t x, const auto& run) { return x < run.first; });
  if (shift != std::begin(shifts)) {
    const auto& run = *(shift - 1);
    if (c - run.first <= run.length && (c - run.first) % run.step == 0) {
      to.push_back(static_cast<char32_t>(static_cast<std::int32_t>(c) + run.shift));
      return;
    }
  }
  const auto& longer = data::detail::unicode_longer;
  const auto found = std::lower_bound(std::begin(longer), std::end(longer), c,
                                      [](const auto& text, char32_t x) { return text.code_point < x; });
  if (found == std::end(longer) || found->code_point != c) {
    to.push_back(c);
    return;
  }
  for (unsigned i = 0; i < found->count; ++i) to.push_back(data::detail::unicode_texts[found->first + i]);
}

#endif

}  // namespace convoy::data::unicode
