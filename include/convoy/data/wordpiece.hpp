// WordPiece, the tokens of BERT (Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional
// Transformers for Language Understanding", 2018): splits text into words, and words into the longest pieces
// of a vocabulary.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/data/vocabulary.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <string>
#include <utility>

#include <convoy/data/unicode.hpp>
#endif

namespace convoy::data {

struct WordPieceOptions {
  bool uncased = true;        ///< lower case, without accents
  int most_characters = 100;  ///< a longer word becomes `[UNK]`
};

/// Text to ids, equal to BERT's: its BasicTokenizer, then its WordpieceTokenizer. Control characters are
/// dropped, words end at white space, every punctuation mark and every ideograph is a word of its own, and a
/// word that cannot be split into pieces becomes `[UNK]`. A special token such as `[MASK]` in the text is
/// split like any other text. Bytes that are not valid UTF-8 are dropped. Copies share the pieces.
class WordPiece {
 public:
  /// Throws ConfigError if the vocabulary has no `[UNK]`, or no character is allowed in a word.
  explicit WordPiece(Vocabulary vocabulary, const WordPieceOptions& options = {});

  /// Appends the ids of a text.
  void encode(std::string_view text, std::vector<i32>& ids) const;
  std::vector<i32> encode(std::string_view text) const {
    std::vector<i32> ids;
    encode(text, ids);
    return ids;
  }

  const Vocabulary& vocabulary() const { return vocabulary_; }
  i32 unknown() const { return unknown_; }

 private:
  struct Pieces {
    std::unordered_map<std::string_view, i32> begin, inside;  // of words; `inside` without `##`
    std::size_t longest = 0;                                  // in bytes
  };
  struct Work;

  void end_of_text_word(Work& work, std::vector<i32>& ids) const;
  void end_of_word(Work& work, std::vector<i32>& ids) const;

  Vocabulary vocabulary_;
  WordPieceOptions options_;
  i32 unknown_ = -1;
  std::shared_ptr<const Pieces> pieces_;
};

#if CONVOY_DEFINITIONS

namespace detail {
// BERT's ranges of ideographs; neither Hangul nor kana is among them.
constexpr bool is_ideograph(char32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
         (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b820 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}
// In ASCII, every visible character but letters and digits, including symbols such as `$`.
inline bool is_word_of_its_own(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7f && (unicode::flags(c) & (unicode::letter | unicode::number)) == 0;
  return (unicode::flags(c) & unicode::punctuation) != 0;
}
}  // namespace detail

// Scratch memory of a call of `encode`.
struct WordPiece::Work {
  std::vector<char32_t> given, folded;  // the text between white space, and its uncased form
  std::string word;
  std::vector<std::size_t> ends;  // where each of the word's characters ends, in bytes
  std::vector<i32> ids;           // of one word
};

CONVOY_FUNCTION WordPiece::WordPiece(Vocabulary vocabulary, const WordPieceOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options), unknown_(vocabulary_.find("[UNK]")) {
  if (unknown_ < 0) fail<ConfigError>("data: the vocabulary of WordPiece has no token [UNK]");
  if (options.most_characters < 1)
    fail<ConfigError>("data: most_characters of WordPiece must be at least 1, not ", options.most_characters);
  auto pieces = std::make_shared<Pieces>();
  pieces->begin.reserve(static_cast<std::size_t>(vocabulary_.size()));
  for (i32 id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view token = vocabulary_.token(id);
    pieces->longest = std::max(pieces->longest, token.size());
    pieces->begin.emplace(token, id);
    if (token.size() > 2 && token.substr(0, 2) == "##") pieces->inside.emplace(token.substr(2), id);
  }
  pieces_ = std::move(pieces);
}

CONVOY_FUNCTION void WordPiece::encode(std::string_view text, std::vector<i32>& ids) const {
  Work work;
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Decoded next = unicode::decode(text, at);
    at += next.bytes;
    const char32_t c = next.code_point;
    if (!next.valid || c == 0 || c == 0xfffd) continue;
    const unsigned is = unicode::flags(c);
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || (is & unicode::separator) != 0) {
      end_of_text_word(work, ids);
    } else if ((is & unicode::control) != 0) {
      continue;
    } else if (detail::is_ideograph(c)) {
      end_of_text_word(work, ids);
      work.given.push_back(c);
      end_of_text_word(work, ids);
    } else {
      work.given.push_back(c);
    }
  }
  end_of_text_word(work, ids);
}

CONVOY_FUNCTION void WordPiece::end_of_text_word(Work& work, std::vector<i32>& ids) const {
  const auto& given = work.given;
  if (given.empty()) return;
  if (options_.uncased) {
    constexpr char32_t sigma = 0x3a3, small_sigma = 0x3c3, final_sigma = 0x3c2;
    // Whether the next character on one side, ignorable ones skipped, is cased.
    const auto cased_beside = [&](std::size_t at, int step) {
      const auto is = [&](std::size_t i) { return unicode::flags(given[i]); };
      const auto count = static_cast<std::ptrdiff_t>(given.size());
      auto i = static_cast<std::ptrdiff_t>(at) + step;
      while (i >= 0 && i < count && (is(static_cast<std::size_t>(i)) & unicode::ignorable) != 0) i += step;
      return i >= 0 && i < count && (is(static_cast<std::size_t>(i)) & unicode::cased) != 0;
    };
    work.folded.clear();
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i] == sigma)
        work.folded.push_back(cased_beside(i, -1) && !cased_beside(i, 1) ? final_sigma : small_sigma);
      else
        unicode::append_uncased(work.folded, given[i]);
    }
  } else {
    work.folded = given;
  }
  work.given.clear();
  for (const char32_t c : work.folded) {
    const bool alone = detail::is_word_of_its_own(c);
    if (alone) end_of_word(work, ids);
    unicode::append(work.word, c);
    work.ends.push_back(work.word.size());
    if (alone) end_of_word(work, ids);
  }
  end_of_word(work, ids);
}

CONVOY_FUNCTION void WordPiece::end_of_word(Work& work, std::vector<i32>& ids) const {
  const std::string_view word = work.word;
  const auto& ends = work.ends;
  work.ids.clear();
  bool known = ends.size() <= static_cast<std::size_t>(options_.most_characters);
  for (std::size_t begin = 0, next = 0; known && begin < word.size();) {
    // The longest piece that begins here.
    const auto& pieces = begin == 0 ? pieces_->begin : pieces_->inside;
    known = false;
    for (std::size_t last = ends.size(); last > next && !known; --last) {
      const std::size_t end = ends[last - 1];
      if (end - begin > pieces_->longest) continue;
      const auto found = pieces.find(word.substr(begin, end - begin));
      if (found == pieces.end()) continue;
      work.ids.push_back(found->second);
      begin = end;
      next = last;
      known = true;
      break;
    }
  }
  if (known)
    ids.insert(ids.end(), work.ids.begin(), work.ids.end());
  else
    ids.push_back(unknown_);
  work.word.clear();
  work.ends.clear();
}

#endif

}  // namespace convoy::data
