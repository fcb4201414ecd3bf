// Errors: every one is a single sentence that names the culprit, and derives from convoy::Error.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

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

/// The arguments, streamed one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// Throws `E` with the concatenated parts as its sentence.
template <class E = Error, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw E(concat(parts...));
}

}  // namespace convoy
