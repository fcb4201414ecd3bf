// Vocabulary: tokens and their ids.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/data/error.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <numeric>
#include <utility>

#include <convoy/data/text_file.hpp>
#endif

namespace convoy::data {

/// Tokens, numbered from 0 in their order. Copies share them.
class Vocabulary {
 public:
  Vocabulary() : Vocabulary(std::vector<std::string>{}) {}
  /// Throws DataError if a token is empty or repeated.
  explicit Vocabulary(std::vector<std::string> tokens);

  int size() const { return static_cast<int>(tables_->tokens.size()); }
  /// The id of a token; -1 if there is no such token.
  i32 find(std::string_view token) const;
  /// The token of an id. Throws DataError if there is none.
  std::string_view token(i32 id) const;

 private:
  struct Tables {
    std::vector<std::string> tokens;
    std::vector<i32> sorted;  // ids, sorted by their tokens
  };
  std::shared_ptr<const Tables> tables_;
};

/// A vocabulary from a file with one token a line, the first being token 0, as BERT's `vocab.txt`; gzip if
/// its name ends in `.gz`. Throws DataError with file, line and offset for an empty line or a repeated token.
Vocabulary read_vocabulary(const std::filesystem::path& path);

/// The same from a text; error messages call it `name`.
Vocabulary parse_vocabulary(std::string_view text, std::string_view name);

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION Vocabulary::Vocabulary(std::vector<std::string> tokens) {
  auto tables = std::make_shared<Tables>();
  tables->tokens = std::move(tokens);
  const auto& all = tables->tokens;
  auto& sorted = tables->sorted;
  sorted.resize(all.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  const auto text = [&](i32 id) -> const std::string& { return all[static_cast<std::size_t>(id)]; };
  std::stable_sort(sorted.begin(), sorted.end(), [&](i32 a, i32 b) { return text(a) < text(b); });
  if (!sorted.empty() && text(sorted[0]).empty())
    fail<DataError>("data: token ", sorted[0], " of a vocabulary is empty");
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (text(sorted[i - 1]) == text(sorted[i]))
      fail<DataError>("data: tokens ", sorted[i - 1], " and ", sorted[i], " of a vocabulary are both ",
                      excerpt(text(sorted[i])));
  tables_ = std::move(tables);
}

CONVOY_FUNCTION i32 Vocabulary::find(std::string_view token) const {
  const auto& sorted = tables_->sorted;
  const auto text = [&](i32 id) -> std::string_view { return tables_->tokens[static_cast<std::size_t>(id)]; };
  const auto found = std::lower_bound(sorted.begin(), sorted.end(), token,
                                      [&](i32 id, std::string_view wanted) { return text(id) < wanted; });
  return found != sorted.end() && text(*found) == token ? *found : -1;
}

CONVOY_FUNCTION std::string_view Vocabulary::token(i32 id) const {
  if (id < 0 || id >= size()) fail<DataError>("data: a vocabulary of ", size(), " tokens has no token ", id);
  return tables_->tokens[static_cast<std::size_t>(id)];
}

CONVOY_FUNCTION Vocabulary read_vocabulary(const std::filesystem::path& path) {
  return parse_vocabulary(read_text(path), path.string());
}

CONVOY_FUNCTION Vocabulary parse_vocabulary(std::string_view text, std::string_view name) {
  std::vector<std::string> tokens;
  std::vector<std::size_t> offsets;
  for (Lines lines(text); lines.next();) {
    if (lines.line().empty())
      fail<DataError>("data: ", name, " has an empty line where a token is expected, at ",
                      place_in(text, lines.offset()));
    tokens.emplace_back(lines.line());
    offsets.push_back(lines.offset());
  }
  if (tokens.empty()) fail<DataError>("data: ", name, " holds no token");
  std::vector<std::size_t> sorted(tokens.size());
  std::iota(sorted.begin(), sorted.end(), std::size_t{0});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](std::size_t a, std::size_t b) { return tokens[a] < tokens[b]; });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (tokens[sorted[i - 1]] == tokens[sorted[i]])
      fail<DataError>("data: ", name, " has the token ", excerpt(tokens[sorted[i]]), " twice: at ",
                      place_in(text, offsets[sorted[i - 1]]), " and at ", place_in(text, offsets[sorted[i]]));
  return Vocabulary(std::move(tokens));
}

#endif

}  // namespace convoy::data
