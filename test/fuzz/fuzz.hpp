// What the fuzzers share: input that is refused must be refused by a sentence, and nothing else may happen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include <convoy/core/error.hpp>

namespace fuzz {

/// Ends the process, for the fuzzer to report its input, unless `holds`.
inline void expect(bool holds, std::string_view what) {
  if (holds) return;
  std::cerr << "fuzz: " << what << "\n";
  std::abort();
}

/// Does something that may refuse its input.
template <class Action>
void attempt(Action action) {
  try {
    action();
  } catch (const convoy::Error& error) {
    const std::string_view sentence = error.what();
    expect(sentence.substr(0, 6) == "data: " && sentence.find('\n') == sentence.npos, "not one sentence");
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fuzz
