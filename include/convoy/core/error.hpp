// Errors: every one is a single sentence that names the culprit, and derives from convoy::Error.
#pragma once

#include <initializer_list>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <sstream>
#endif

namespace convoy {

/// Base of everything convoy throws. `what()` is one sentence, fit to be a program's last line.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An option, a policy or a combination of them that cannot work (a batch of zero, an unknown name).
struct ConfigError : Error {
  using Error::Error;
};

/// A model that is not well formed, found at run time; at compile time the same faults are static_asserts.
struct ModelError : Error {
  using Error::Error;
};

/// A compute library that refuses, or a number that is not one (a loss that became NaN).
struct ExecError : Error {
  using Error::Error;
};

namespace detail {

// Something to be streamed, without its type, so that all sentences are joined by one function and cost
// little to compile where they stand.
struct Part {
  const void* value;
  void (*print)(std::ostream& out, const void* value);

  template <class T>
  Part(const T& part)
      : value(std::addressof(part)),
        print([](std::ostream& out, const void* it) { out << *static_cast<const T*>(it); }) {}
  // Literals of all lengths are of one type.
  Part(const char* text)
      : value(text), print([](std::ostream& out, const void* it) { out << static_cast<const char*>(it); }) {}
};

std::string join(std::initializer_list<Part> parts);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::string join(std::initializer_list<Part> parts) {
  std::ostringstream text;
  for (const Part& part : parts) part.print(text, part.value);
  return text.str();
}
#endif

template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void raise(std::initializer_list<Part> parts) {
  throw E(join(parts));
}

}  // namespace detail

/// The arguments, streamed one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  return detail::join({detail::Part(parts)...});
}

/// Throws `E` with the concatenated parts as its sentence.
template <class E = Error, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  detail::raise<E>({detail::Part(parts)...});
}

}  // namespace convoy
