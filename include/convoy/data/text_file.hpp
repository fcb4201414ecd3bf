// Text files: a whole file as one string, and how error messages name a place in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/data/error.hpp>

#if CONVOY_DEFINITIONS
#include <span>

#include <convoy/data/byte_source.hpp>
#endif

namespace convoy::data {

/// The default limit of `read_text`, in bytes.
inline constexpr std::uint64_t most_text = std::uint64_t{1} << 30;

/// The bytes of a file, inflated if its name ends in `.gz`. Throws DataError as ByteSource does, and if there
/// are more than `most` bytes; the text of a gzip file is inflated in steps that at most double it, whatever
/// the file claims.
std::string read_text(const std::filesystem::path& path, std::uint64_t most = most_text);

/// A place in a text, for error messages: "line 3 (byte 127)", lines counted from 1 and bytes from 0.
std::string place_in(std::string_view text, std::size_t offset);

/// A quoted piece of a text, for error messages: at most 40 bytes, with control and non-ASCII characters as
/// `\xhh`.
std::string excerpt(std::string_view piece);

/// The lines of a text, without their terminators: LF, or CR LF.
class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {}

  /// Goes to the next line; false when there is none. There is no line after a terminator at the end of the
  /// text.
  bool next() {
    if (after_ >= text_.size()) return false;
    offset_ = after_;
    const std::size_t end = std::min(text_.find('\n', offset_), text_.size());
    after_ = end + 1;
    line_ = text_.substr(offset_, end - offset_);
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
    return true;
  }
  std::string_view line() const { return line_; }
  /// Where the line begins, in bytes.
  std::size_t offset() const { return offset_; }

 private:
  std::string_view text_, line_;
  std::size_t offset_ = 0, after_ = 0;
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION std::string read_text(const std::filesystem::path& path, std::uint64_t most) {
  ByteSource source(path);
  std::string text;
  // A plain file is read at once. A gzip file is read in pieces, each as long as all before it.
  std::uint64_t piece = source.gzip() ? std::uint64_t{1} << 16 : source.file_size() + 1;
  if (!source.gzip() && source.file_size() > most)
    fail<DataError>("data: ", source.path(), " is ", source.file_size(), " bytes long, expected at most ",
                    most);
  for (std::size_t got = 0;; piece = std::min(text.size() + 1, most + 1 - text.size())) {
    const std::size_t had = text.size();
    text.resize(had + piece);
    got = source.read(std::as_writable_bytes(std::span(text).subspan(had)));
    text.resize(had + got);
    if (text.size() > most)
      fail<DataError>("data: ", source.path(), " holds more than ", most, " bytes of text");
    if (got < piece) return text;
  }
}

CONVOY_FUNCTION std::string place_in(std::string_view text, std::size_t offset) {
  const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
  return concat("line ", lines + 1, " (byte ", offset, ")");
}

CONVOY_FUNCTION std::string excerpt(std::string_view piece) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : piece.substr(0, 40)) {
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      text += "\\x";
      text += digits[static_cast<unsigned char>(c) >> 4];
      text += digits[static_cast<unsigned char>(c) & 15];
    }
  }
  return text + (piece.size() > 40 ? "...'" : "'");
}

#endif

}  // namespace convoy::data
