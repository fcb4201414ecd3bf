// The subset of JSON (RFC 8259) that headers of weight files and profiles use: objects, arrays, strings and
// numbers, read strictly and in order, without building a tree of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/io/error.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#endif

namespace convoy::io {

/// Reads untrusted text. Anything that the caller does not expect throws CheckpointError, which names the
/// file and the byte in it.
class JsonReader {
 public:
  /// `file` names the text in errors, `offset` is where in the file the text begins.
  JsonReader(std::string_view text, std::string_view file, std::uint64_t offset)
      : text_(text), file_(file), offset_(offset) {}

  std::string text();
  std::uint64_t natural();
  /// Any number that fits a double; never an infinity.
  double real();

  /// Calls `member(key)`, which must read the value, for each member of an object.
  template <class Member>
  void object(Member&& member) {
    list('{', '}', [&] {
      const std::string key = text();
      expect(':');
      member(key);
    });
  }
  /// Calls `element()`, which must read the element, for each element of an array.
  template <class Element>
  void array(Element&& element) {
    list('[', ']', element);
  }
  /// Throws CheckpointError unless only white space is left.
  void end();

  /// Throws CheckpointError for a problem at this byte.
  [[noreturn]] void fail_here(std::string_view problem) const;

 private:
  template <class Entry>
  void list(char open, char close, Entry&& entry) {
    expect(open);
    if (accept(close)) return;
    do entry();
    while (accept(','));
    expect(close);
  }
  void skip_space();
  bool accept(char c);
  void expect(char c);
  unsigned hexadecimal();
  void append_escaped(std::string& out);

  std::string_view text_, file_;
  std::uint64_t offset_;
  std::size_t at_ = 0;
};

/// The members of one object read so far; each must be there exactly once.
class JsonMembers {
 public:
  explicit JsonMembers(const JsonReader& json) : json_(&json) {}
  /// Throws CheckpointError if there was a member of that name already.
  void take(const std::string& name);
  /// Throws CheckpointError unless all these members were there; `object` names the object in the error.
  void expect(std::string_view object, std::initializer_list<std::string_view> names) const;

 private:
  const JsonReader* json_;
  std::vector<std::string> taken_;
};

/// Appends a text as a quoted JSON string.
void append_quoted(std::string& out, std::string_view text);
/// Appends a finite number in the fewest digits that read back as the same number.
void append_real(std::string& out, double value);

/// An untrusted text in single quotes, for errors, which stay on one line whatever the text is.
std::string cited(std::string_view text);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void JsonReader::fail_here(std::string_view problem) const {
  fail<CheckpointError>(file_, ": at byte ", offset_ + at_, ' ', problem);
}

CONVOY_FUNCTION void JsonReader::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
    ++at_;
}

CONVOY_FUNCTION bool JsonReader::accept(char c) {
  skip_space();
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

CONVOY_FUNCTION void JsonReader::expect(char c) {
  if (accept(c)) return;
  const char wanted[] = {'\'', c, '\'', 0};
  fail_here(concat("there is no ", wanted));
}

CONVOY_FUNCTION void JsonReader::end() {
  skip_space();
  if (at_ < text_.size()) fail_here("more follows than one JSON object");
}

CONVOY_FUNCTION std::uint64_t JsonReader::natural() {
  skip_space();
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  const std::size_t begin = at_;
  std::uint64_t value = 0;
  for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
    const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
    if (value > (most - digit) / 10) fail_here("a number does not fit 64 bits");
    value = 10 * value + digit;
  }
  if (at_ == begin) fail_here("there is no whole number");
  if (text_[begin] == '0' && at_ - begin > 1) fail_here("a number begins with a zero");
  return value;
}

CONVOY_FUNCTION double JsonReader::real() {
  skip_space();
  const std::size_t begin = at_;
  const auto at_digit = [&] { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; };
  const auto skip = [&](std::string_view any_of) {
    const bool there = at_ < text_.size() && any_of.find(text_[at_]) != std::string_view::npos;
    at_ += there;
    return there;
  };
  const auto digits = [&] {
    if (!at_digit()) fail_here("there is no digit of a number");
    while (at_digit()) ++at_;
  };
  skip("-");
  if (const std::size_t first = at_; digits(), text_[first] == '0' && at_ - first > 1)
    fail_here("a number begins with a zero");
  if (skip(".")) digits();
  if (skip("eE")) {
    skip("+-");
    digits();
  }
  double value = 0;
  if (std::from_chars(text_.data() + begin, text_.data() + at_, value).ec != std::errc())
    fail_here("a number does not fit a double");
  return value;
}

CONVOY_FUNCTION unsigned JsonReader::hexadecimal() {
  unsigned value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : ' ';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail_here("there is no hexadecimal digit");
    value = 16 * value + static_cast<unsigned>(digit);
  }
  return value;
}

CONVOY_FUNCTION void JsonReader::append_escaped(std::string& out) {
  const char c = at_ < text_.size() ? text_[at_++] : ' ';
  switch (c) {
    case '"':
    case '\\':
    case '/':
      out += c;
      return;
    case 'b':
      out += '\b';
      return;
    case 'f':
      out += '\f';
      return;
    case 'n':
      out += '\n';
      return;
    case 'r':
      out += '\r';
      return;
    case 't':
      out += '\t';
      return;
    case 'u':
      break;
    default:
      fail_here("there is an escape that JSON does not have");
  }
  std::uint32_t code = hexadecimal();
  if (code >= 0xdc00 && code < 0xe000) fail_here("ends half a pair of UTF-16");
  if (code >= 0xd800 && code < 0xdc00) {
    if (text_.substr(at_, 2) != "\\u") fail_here("half a pair of UTF-16 is missing");
    at_ += 2;
    const std::uint32_t low = hexadecimal();
    if (low < 0xdc00 || low >= 0xe000) fail_here("half a pair of UTF-16 is missing");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

CONVOY_FUNCTION std::string JsonReader::text() {
  expect('"');
  std::string out;
  while (true) {
    if (at_ == text_.size()) fail_here("a text does not end");
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) fail_here("there is a control character in a text");
    ++at_;
    if (c == '"') return out;
    if (c == '\\')
      append_escaped(out);
    else
      out += c;
  }
}

CONVOY_FUNCTION void JsonMembers::take(const std::string& name) {
  if (std::find(taken_.begin(), taken_.end(), name) != taken_.end())
    json_->fail_here(concat("the member ", cited(name), " is there twice"));
  taken_.push_back(name);
}

CONVOY_FUNCTION void JsonMembers::expect(std::string_view object,
                                         std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names)
    if (std::find(taken_.begin(), taken_.end(), name) == taken_.end())
      json_->fail_here(concat("ends ", object, " without a member ", cited(name)));
}

CONVOY_FUNCTION void append_quoted(std::string& out, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

CONVOY_FUNCTION void append_real(std::string& out, double value) {
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

CONVOY_FUNCTION std::string cited(std::string_view text) {
  std::string quoted;
  append_quoted(quoted, text);
  quoted.front() = quoted.back() = '\'';
  return quoted;
}
#endif

}  // namespace convoy::io
