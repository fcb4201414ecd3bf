// Name: a string of at most 63 characters. It is a structural type, so that it can be stored in a constexpr
// table and used as a template argument of a diagnostic.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace convoy {

/// A fixed-capacity string. Appending past the capacity sets `overflow` and keeps what fits.
struct Name {
  static constexpr int capacity = 63;
  char text[capacity + 1] = {};
  unsigned char length = 0;
  bool overflow = false;

  constexpr Name() = default;
  constexpr Name(std::string_view s) { append(s); }
  constexpr Name(const char* s) { append(std::string_view(s)); }

  constexpr Name& append(std::string_view s) {
    for (const char c : s) {
      if (length == capacity) {
        overflow = true;
        break;
      }
      text[length++] = c;
    }
    return *this;
  }

  /// Appends a non-negative number in decimal.
  constexpr Name& append(int number) {
    char digits[12] = {};
    int n = 0;
    do {
      digits[n++] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    char forward[12] = {};
    for (int i = 0; i < n; ++i) forward[i] = digits[n - 1 - i];
    return append(std::string_view(forward, static_cast<std::size_t>(n)));
  }

  constexpr std::string_view view() const { return {text, length}; }
  constexpr operator std::string_view() const { return view(); }
  constexpr bool empty() const { return length == 0; }

  friend constexpr bool operator==(const Name& a, std::string_view b) { return a.view() == b; }
  friend constexpr bool operator==(const Name& a, const Name& b) { return a.view() == b.view(); }
  friend constexpr bool operator==(const Name& a, const char* b) { return a.view() == std::string_view(b); }
  friend void append_to(std::string& to, const Name& name) { to += name.view(); }
  template <class Out>
  friend auto operator<<(Out& out, const Name& name) -> decltype(out.write("", 0), out) {
    return out << name.view();
  }
};

}  // namespace convoy
