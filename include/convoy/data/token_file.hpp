// Token files: the ids of a text as little-endian integers of 8, 16 or 32 bits without a header, such as
// nanoGPT's `train.bin` (16 bits) or any text whose bytes are its tokens. They are memory-mapped, so that
// texts can be larger than memory and the ranks of a node share one copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/mapped_file.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <bit>
#include <utility>

#include <convoy/core/file.hpp>
#endif

namespace convoy::data {

/// Bits of an id in a token file.
enum class TokenWidth : int { bits8 = 8, bits16 = 16, bits32 = 32 };

/// The ids of a token file, or of a text that was encoded in memory. Copies share the ids.
class TokenFile {
 public:
  /// Ids are below `vocabulary`. Throws DataError if the file is missing or empty, or its size is not that of
  /// whole ids; ConfigError if the vocabulary is not positive.
  TokenFile(const std::filesystem::path& path, int vocabulary, TokenWidth width = TokenWidth::bits16);

  /// From ids in memory, which error messages call `name`. Throws DataError if there are none.
  TokenFile(std::vector<i32> ids, std::string name, int vocabulary);

  std::size_t size() const { return size_; }
  /// Ids [first, last) as a file of their own. Throws ConfigError if the range is empty or exceeds the file.
  TokenFile part(std::size_t first, std::size_t last) const;
  /// Writes `to.size()` ids from number `first` on. Throws DataError if the file has fewer, or with the
  /// offset of an id that is not below the vocabulary.
  void read(std::size_t first, std::span<i32> to) const;

 private:
  std::string name_;
  std::shared_ptr<const void> owner_;  // of the ids
  const unsigned char* ids_;           // little-endian
  int vocabulary_;
  std::size_t bytes_;  // of one id
  std::size_t first_ = 0, size_ = 0;
};

/// Writes a token file, whole or not at all. Throws DataError if an id is negative or does not fit, and Error
/// if the file cannot be written.
void write_tokens(const std::filesystem::path& path, std::span<const i32> ids,
                  TokenWidth width = TokenWidth::bits16);

/// Where the blocks of an epoch lie in a text.
enum class BlockPlaces {
  aligned,  ///< consecutive from the first token on: every epoch the same, for evaluation
  shifted,  ///< consecutive from a token that is drawn for each epoch: every token once an epoch, except some
            ///< at the ends
  drawn,    ///< anywhere, drawn independently for each (epoch, position), as nanoGPT does
};

struct TokenBlockOptions {
  int length = 1024;
  BlockPlaces places = BlockPlaces::shifted;
};

/// A Dataset of blocks of tokens, labeled with their next tokens. Fields: "input_ids", i32, {length};
/// "labels", i32, {length}: label i is the token after id i.
class TokenBlocks {
 public:
  /// Throws ConfigError if the length is not positive or the file too short for one block.
  TokenBlocks(TokenFile file, const TokenBlockOptions& options);

  std::size_t size() const { return size_; }
  std::span<const Field> fields() const { return fields_; }
  /// Throws DataError if there is no such block, or as `TokenFile::read`.
  void fill(const Rows& rows) const;

 private:
  std::size_t first_token(const Rows& rows, std::size_t row) const;

  TokenFile file_;
  TokenBlockOptions options_;
  std::size_t size_ = 0;
  std::array<Field, 2> fields_;
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION TokenFile::TokenFile(const std::filesystem::path& path, int vocabulary, TokenWidth width)
    : name_(path.string()), vocabulary_(vocabulary), bytes_(static_cast<std::size_t>(width) / 8) {
  const auto file = std::make_shared<const MappedFile>(path);
  if (vocabulary < 1) fail<ConfigError>("data: the vocabulary must have at least 1 token, not ", vocabulary);
  if (file->bytes().size() % bytes_ != 0)
    fail<DataError>("data: ", name_, " is ", file->bytes().size(), " bytes long, expected a multiple of ",
                    bytes_, ", the size of an id");
  ids_ = reinterpret_cast<const unsigned char*>(file->bytes().data());
  size_ = file->bytes().size() / bytes_;
  owner_ = file;
}

CONVOY_FUNCTION TokenFile::TokenFile(std::vector<i32> ids, std::string name, int vocabulary)
    : name_(std::move(name)), vocabulary_(vocabulary), bytes_(sizeof(i32)), size_(ids.size()) {
  static_assert(std::endian::native == std::endian::little);
  if (vocabulary < 1) fail<ConfigError>("data: the vocabulary must have at least 1 token, not ", vocabulary);
  if (ids.empty()) fail<DataError>("data: ", name_, " has no tokens");
  const auto owner = std::make_shared<const std::vector<i32>>(std::move(ids));
  ids_ = reinterpret_cast<const unsigned char*>(owner->data());
  owner_ = owner;
}

CONVOY_FUNCTION TokenFile TokenFile::part(std::size_t first, std::size_t last) const {
  if (first >= last || last > size_)
    fail<ConfigError>("data: ids ", first, " to ", last, " are not a range of ", name_, ", which holds ",
                      size_, " ids");
  TokenFile part = *this;
  part.first_ = first_ + first;
  part.size_ = last - first;
  return part;
}

CONVOY_FUNCTION void TokenFile::read(std::size_t first, std::span<i32> to) const {
  if (first > size_ || to.size() > size_ - first)
    fail<DataError>("data: ids ", first, " to ", first + to.size(), " of ", name_,
                    " were asked for, but the file holds ", size_);
  const unsigned char* from = ids_ + (first_ + first) * bytes_;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint32_t id = 0;
    if (bytes_ == 1)
      id = from[i];
    else if (bytes_ == 2)
      id = std::uint32_t{from[2 * i]} | std::uint32_t{from[2 * i + 1]} << 8;
    else
      for (unsigned b = 0; b < 4; ++b) id |= std::uint32_t{from[4 * i + b]} << (8 * b);
    largest = std::max(largest, id);
    to[i] = static_cast<i32>(id);
  }
  if (largest < static_cast<std::uint32_t>(vocabulary_)) return;
  const auto bad = std::find_if(to.begin(), to.end(), [&](i32 id) { return id < 0 || id >= vocabulary_; });
  const std::size_t at = first_ + first + static_cast<std::size_t>(bad - to.begin());
  fail<DataError>("data: ", name_, " has id ", static_cast<std::uint32_t>(*bad), " at byte ", at * bytes_,
                  ", expected one below ", vocabulary_);
}

CONVOY_FUNCTION void write_tokens(const std::filesystem::path& path, std::span<const i32> ids,
                                  TokenWidth width) {
  const std::size_t bytes = static_cast<std::size_t>(width) / 8;
  std::string text;
  text.reserve(ids.size() * bytes);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || (bytes < 4 && ids[i] >> (8 * bytes) != 0))
      fail<DataError>("data: id ", ids[i], " at position ", i, " does not fit into the ", 8 * bytes,
                      " bits of an id of ", path.string());
    for (std::size_t b = 0; b < bytes; ++b)
      text += static_cast<char>(static_cast<unsigned char>(ids[i] >> (8 * b) & 0xff));
  }
  write_file(path, text);
}

CONVOY_FUNCTION TokenBlocks::TokenBlocks(TokenFile file, const TokenBlockOptions& options)
    : file_(std::move(file)), options_(options) {
  if (options.length < 1)
    fail<ConfigError>("data: the length of a block must be at least 1 token, not ", options.length);
  const auto length = static_cast<std::size_t>(options.length);
  // The last label is the token after the last block. Whatever the shift, all blocks lie within the text.
  const std::size_t room = file_.size() - 1;
  size_ =
      options.places == BlockPlaces::shifted ? (room - std::min(room, length - 1)) / length : room / length;
  if (size_ == 0)
    fail<ConfigError>("data: a text of ", file_.size(), " tokens is too short for a block of ", length,
                      ", which needs at least ",
                      options.places == BlockPlaces::shifted ? 2 * length : length + 1);
  fields_ = {Field{"input_ids", DType::i32, {options.length}}, Field{"labels", DType::i32, {options.length}}};
}

CONVOY_FUNCTION std::size_t TokenBlocks::first_token(const Rows& rows, std::size_t row) const {
  constexpr std::uint64_t use = 0x746f6b656e73ull;
  const auto length = static_cast<std::size_t>(options_.length);
  const std::size_t aligned = rows.index(row) * length;
  switch (options_.places) {
    case BlockPlaces::aligned:
      return aligned;
    case BlockPlaces::shifted:
      return aligned + random_of(rows.draw(), 0, use).below(static_cast<std::uint32_t>(length));
    case BlockPlaces::drawn:
      break;
  }
  Philox random = random_of(rows.draw(), static_cast<std::uint64_t>(rows.position(row)), use);
  const std::uint64_t upper = random.next();
  return (upper << 32 | random.next()) % (file_.size() - length);
}

CONVOY_FUNCTION void TokenBlocks::fill(const Rows& rows) const {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows.index(row) >= size_)
      fail<DataError>("data: block ", rows.index(row), " was asked for, but the text has ", size_);
    const std::size_t first = first_token(rows, row);
    const auto ids = rows[row].as<i32>(0), labels = rows[row].as<i32>(1);
    file_.read(first, ids);
    std::copy(ids.begin() + 1, ids.end(), labels.begin());
    file_.read(first + ids.size(), labels.last(1));
  }
}

#endif

}  // namespace convoy::data
