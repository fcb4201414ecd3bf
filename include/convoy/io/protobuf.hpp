// The wire format of protocol buffers (protobuf.dev/programming-guides/encoding): fields of a number and a
// value each, written in order, and read strictly without a schema.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/io/error.hpp>

#if CONVOY_DEFINITIONS
#include <bit>
#endif

namespace convoy::io {

/// How a field's value is encoded.
enum class WireType : unsigned char { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// Appends fields to a text.
class ProtobufWriter {
 public:
  void varint(int field, std::uint64_t value);
  void real(int field, double value);
  void real32(int field, float value);
  void bytes(int field, std::string_view value);
  /// A field of so many bytes, which the caller appends to the text.
  void begin_bytes(int field, std::size_t bytes);
  /// Several numbers in one field, packed as in proto3; writes no field if there are none.
  template <class Numbers>
  void packed(int field, const Numbers& values) {
    ProtobufWriter inner;
    for (const std::uint64_t value : values) inner.number(value);
    if (!inner.text_.empty()) bytes(field, inner.text_);
  }
  /// Appends a message preceded by its length, as in a file of several messages.
  void delimited(std::string_view message) {
    number(message.size());
    text_ += message;
  }
  const std::string& text() const { return text_; }

 private:
  void number(std::uint64_t value);
  void key(int field, WireType type) {
    number(static_cast<std::uint64_t>(field) << 3 | static_cast<unsigned>(type));
  }
  // The least significant byte first.
  template <class Bits>
  void fixed(Bits bits) {
    for (std::size_t i = 0; i < sizeof bits; ++i) text_ += static_cast<char>(bits >> (8 * i));
  }
  std::string text_;
};

/// Reads the fields of an untrusted text. A malformed text throws CheckpointError, which names the file and
/// the byte in it.
class ProtobufReader {
 public:
  /// `file` names the text in errors, `offset` is where in the file the text begins.
  ProtobufReader(std::string_view text, std::string_view file, std::uint64_t offset = 0)
      : text_(text), file_(file), offset_(offset) {}

  bool at_end() const { return at_ == text_.size(); }
  /// Goes to the next field, whose value must then be read or skipped.
  void next();
  int field() const { return field_; }
  WireType type() const { return type_; }

  /// The value of the current field, which must be of that wire type.
  std::uint64_t varint();
  double real();
  float real32();
  std::string_view bytes();
  /// A nested message.
  ProtobufReader message();
  void skip();
  /// Calls `take(number)` for each number of a repeated field, packed or not.
  template <class Take>
  void repeated(Take&& take) {
    if (type_ != WireType::bytes) return take(varint());
    for (ProtobufReader inner = message(); !inner.at_end();) take(inner.number());
  }
  /// A message preceded by its length.
  ProtobufReader delimited();

  /// Throws CheckpointError for a problem at this byte.
  [[noreturn]] void fail_here(std::string_view problem) const;

 private:
  std::uint64_t number();
  std::string_view take(std::uint64_t count);
  // The least significant byte first.
  template <class Bits>
  Bits fixed() {
    Bits bits = 0;
    const std::string_view bytes = take(sizeof bits);
    for (std::size_t i = 0; i < sizeof bits; ++i)
      bits |= static_cast<Bits>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    return bits;
  }
  void expect(WireType type) const;

  std::string_view text_, file_;
  std::uint64_t offset_;
  std::size_t at_ = 0;
  int field_ = 0;
  WireType type_{};
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void ProtobufWriter::number(std::uint64_t value) {
  for (; value >= 128; value >>= 7) text_ += static_cast<char>(value | 128);
  text_ += static_cast<char>(value);
}

CONVOY_FUNCTION void ProtobufWriter::varint(int field, std::uint64_t value) {
  key(field, WireType::varint);
  number(value);
}

CONVOY_FUNCTION void ProtobufWriter::real(int field, double value) {
  key(field, WireType::fixed64);
  fixed(std::bit_cast<std::uint64_t>(value));
}

CONVOY_FUNCTION void ProtobufWriter::real32(int field, float value) {
  key(field, WireType::fixed32);
  fixed(std::bit_cast<std::uint32_t>(value));
}

CONVOY_FUNCTION void ProtobufWriter::begin_bytes(int field, std::size_t bytes) {
  key(field, WireType::bytes);
  number(bytes);
}

CONVOY_FUNCTION void ProtobufWriter::bytes(int field, std::string_view value) {
  begin_bytes(field, value.size());
  text_ += value;
}

CONVOY_FUNCTION void ProtobufReader::fail_here(std::string_view problem) const {
  fail<CheckpointError>(file_, ": at byte ", offset_ + at_, ' ', problem);
}

CONVOY_FUNCTION std::uint64_t ProtobufReader::number() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_end()) fail_here("a number does not end");
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (shift == 63 && byte > 1) fail_here("a number does not fit 64 bits");
    ++at_;
    value |= static_cast<std::uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  fail_here("a number does not fit 64 bits");
}

CONVOY_FUNCTION std::string_view ProtobufReader::take(std::uint64_t count) {
  if (count > text_.size() - at_)
    fail_here(concat("there are ", text_.size() - at_, " bytes where ", count, " should follow"));
  const std::string_view bytes = text_.substr(at_, static_cast<std::size_t>(count));
  at_ += bytes.size();
  return bytes;
}

CONVOY_FUNCTION void ProtobufReader::next() {
  const std::uint64_t key = number(), type = key & 7;
  if (key >> 3 == 0 || key >> 3 >= std::uint64_t{1} << 29)
    fail_here(concat("there is a field of the number ", key >> 3, ", which is not valid"));
  if (type != 0 && type != 1 && type != 2 && type != 5)
    fail_here(concat("there is a field of the wire type ", type, ", which proto3 does not have"));
  field_ = static_cast<int>(key >> 3);
  type_ = static_cast<WireType>(type);
}

CONVOY_FUNCTION void ProtobufReader::expect(WireType type) const {
  if (type_ != type)
    fail_here(concat("field ", field_, " is of the wire type ", static_cast<int>(type_), ", not ",
                     static_cast<int>(type)));
}

CONVOY_FUNCTION std::uint64_t ProtobufReader::varint() {
  expect(WireType::varint);
  return number();
}

CONVOY_FUNCTION double ProtobufReader::real() {
  expect(WireType::fixed64);
  return std::bit_cast<double>(fixed<std::uint64_t>());
}

CONVOY_FUNCTION float ProtobufReader::real32() {
  expect(WireType::fixed32);
  return std::bit_cast<float>(fixed<std::uint32_t>());
}

CONVOY_FUNCTION std::string_view ProtobufReader::bytes() {
  expect(WireType::bytes);
  return take(number());
}

CONVOY_FUNCTION ProtobufReader ProtobufReader::message() {
  const std::string_view inner = bytes();
  return {inner, file_, offset_ + at_ - inner.size()};
}

CONVOY_FUNCTION ProtobufReader ProtobufReader::delimited() {
  const std::string_view inner = take(number());
  return {inner, file_, offset_ + at_ - inner.size()};
}

CONVOY_FUNCTION void ProtobufReader::skip() {
  if (type_ == WireType::varint)
    number();
  else if (type_ == WireType::bytes)
    take(number());
  else
    take(type_ == WireType::fixed64 ? 8 : 4);
}
#endif

}  // namespace convoy::io
