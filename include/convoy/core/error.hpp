// Errors: every exception derives from convoy::Error, and its message is a single sentence that names the
// culprit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <cstdio>
#endif

namespace convoy {

/// Base of everything convoy throws. `what()` is one sentence, suitable as a program's last line of output.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An option, a policy or a combination of them that cannot work (a batch of zero, an unknown name).
struct ConfigError : Error {
  using Error::Error;
};

/// An ill-formed model, found at run time. At compile time the same faults are static_assert failures.
struct ModelError : Error {
  using Error::Error;
};

/// A failure of a compute library, or a value that is not a number (a NaN loss).
struct ExecError : Error {
  using Error::Error;
};

namespace detail {

// One type-erased argument of a message. One function joins the parts of all messages, so a message costs
// little to compile where it is thrown.
class Part {
 public:
  Part(const char* text) : Part(std::string_view(text)) {}
  Part(std::string_view text) : kind_(Kind::text), size_(text.size()), value_{.text = text.data()} {}
  Part(const std::string& text) : Part(std::string_view(text)) {}
  Part(char c) : kind_(Kind::character), value_{.character = c} {}
  Part(bool b) : Part(b ? 1 : 0) {}
  template <class T>
  requires std::is_integral_v<T> Part(T number)
      : kind_(std::is_signed_v<T> ? Kind::whole : Kind::natural),
        value_{.whole = static_cast<std::int64_t>(number)} {}
  template <class T>
  requires std::is_floating_point_v<T> Part(T number)
      : kind_(Kind::real), value_{.real = static_cast<double>(number)} {}
  /// Any other type for which argument-dependent lookup finds `append_to(std::string& text, const T& value)`.
  template <class T>
  requires requires(std::string& text, const T& value) { append_to(text, value); }
  Part(const T& value)
      : kind_(Kind::other),
        append_([](std::string& text, const void* it) { append_to(text, *static_cast<const T*>(it)); }),
        value_{.other = std::addressof(value)} {}

  void append(std::string& text) const;

 private:
  enum class Kind : unsigned char { text, character, whole, natural, real, other };
  Kind kind_;
  std::size_t size_ = 0;
  void (*append_)(std::string& text, const void* value) = nullptr;
  union Value {
    const char* text;
    char character;
    std::int64_t whole;
    double real;
    const void* other;
  } value_;
};

std::string join(std::initializer_list<Part> parts);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void Part::append(std::string& text) const {
  switch (kind_) {
    case Kind::text:
      text.append(value_.text, size_);
      break;
    case Kind::character:
      text += value_.character;
      break;
    case Kind::whole:
      text += std::to_string(value_.whole);
      break;
    case Kind::natural:
      text += std::to_string(static_cast<std::uint64_t>(value_.whole));
      break;
    case Kind::real: {
      char digits[32];
      std::snprintf(digits, sizeof digits, "%g", value_.real);
      text += digits;
      break;
    }
    case Kind::other:
      append_(text, value_.other);
      break;
  }
}

CONVOY_FUNCTION std::string join(std::initializer_list<Part> parts) {
  std::string text;
  for (const Part& part : parts) part.append(text);
  return text;
}
#endif

template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void raise(std::initializer_list<Part> parts) {
  throw E(join(parts));
}

}  // namespace detail

/// The arguments concatenated: strings, numbers, and types with an `append_to`.
template <class... Parts>
std::string concat(const Parts&... parts) {
  return detail::join({detail::Part(parts)...});
}

/// A number with its noun, whose plural ends in s: "1 rank", "2 ranks".
template <class Number>
std::string counted(Number count, std::string_view noun) {
  return concat(count, ' ', noun, count == 1 ? "" : "s");
}

/// Appends an item to a comma-separated list.
inline void append_item(std::string& list, std::string_view item) {
  list.append(list.empty() ? "" : ", ").append(item);
}

/// Throws `E` with the concatenated parts as its message.
template <class E = Error, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  detail::raise<E>({detail::Part(parts)...});
}

}  // namespace convoy
