// Fingerprint: what must be the same on all ranks before they exchange anything, field by field, so that a
// difference can be named.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/name.hpp>

namespace convoy::comm {

/// 64 bits of a text (FNV-1a); `seed` chains calls.
constexpr std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0xcbf29ce484222325ull) {
  for (char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return seed;
}

/// Named fields, each with a hash of its full value and a short text for people.
class Fingerprint {
 public:
  struct Field {
    Name name;
    std::uint64_t hash = 0;
    Name value;  ///< at most 63 characters; longer ones are cut
  };

  Fingerprint& add(std::string_view name, std::uint64_t hash, std::string_view value) {
    fields_.push_back({Name(name.substr(0, Name::capacity)), hash, Name(value.substr(0, Name::capacity))});
    return *this;
  }
  /// A field whose value is its text.
  Fingerprint& add(std::string_view name, std::string_view value) { return add(name, hash_of(value), value); }
  /// A field whose value is a number, in as many digits as tell it from all others.
  template <class Number>
  requires std::is_arithmetic_v<Number> Fingerprint& add(std::string_view name, Number value) {
    if constexpr (std::is_floating_point_v<Number>) {
      char text[64];
      return add(name, std::string_view(text, std::to_chars(text, text + sizeof text, value).ptr));
    } else {
      return add(name, concat(value));
    }
  }

  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

}  // namespace convoy::comm
