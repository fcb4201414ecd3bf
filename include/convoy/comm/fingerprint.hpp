// Fingerprint: the values that must agree on all ranks before they exchange anything, as named fields, so
// that an error can name the field that differs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/core/name.hpp>

namespace convoy::comm {

/// Named fields, each with a hash of its full value and a short text for people.
class Fingerprint {
 public:
  struct Field {
    Name name;
    std::uint64_t hash = 0;
    Name value;  ///< at most 63 characters; longer ones are cut
  };

  Fingerprint& add(std::string_view name, std::uint64_t hash, std::string_view value);
  /// A field whose value is its text.
  Fingerprint& add(std::string_view name, std::string_view value);
  /// A field whose value is a number, with enough digits to tell it from all other numbers.
  template <class Number>
  requires std::is_arithmetic_v<Number> Fingerprint& add(std::string_view name, Number value) {
    return add(name, std::string_view(fields::text_of(value)));
  }
  /// Each field of an options type that must agree on all ranks, as "prefix.field".
  template <fields::Listed Options>
  Fingerprint& add(std::string_view prefix, const Options& options) {
    fields::for_each_text(prefix, options, [&](std::string_view name, const std::string& text, bool agreed) {
      if (agreed) add(name, std::string_view(text));
    });
    return *this;
  }

  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Fingerprint& Fingerprint::add(std::string_view name, std::uint64_t hash,
                                              std::string_view value) {
  fields_.push_back({Name(name.substr(0, Name::capacity)), hash, Name(value.substr(0, Name::capacity))});
  return *this;
}

CONVOY_FUNCTION Fingerprint& Fingerprint::add(std::string_view name, std::string_view value) {
  return add(name, hash_of(value), value);
}
#endif

}  // namespace convoy::comm
