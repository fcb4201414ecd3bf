// SST-5, the Stanford Sentiment Treebank (Socher et al., "Recursive Deep Models for Semantic Compositionality
// Over a Sentiment Treebank", EMNLP 2013): sentences of film reviews as binary trees in the bracketing of the
// Penn Treebank, each node with a label from 0, very negative, to 4, very positive.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/vocabulary.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <utility>

#include <convoy/data/text_file.hpp>
#endif

namespace convoy::data {

/// The trees of one file. Copies share them.
class SstTrees {
 public:
  /// A node of a tree: its range in the tokens of all trees, and its label. The nodes of a sentence are in
  /// pre-order, the whole sentence first, so that their ranges determine the tree.
  struct Phrase {
    std::uint32_t first = 0, tokens = 0;
    int label = 0;
  };

  std::size_t sentences() const { return forest_->starts.size() - 1; }
  /// All nodes of all trees.
  std::span<const Phrase> phrases() const { return forest_->phrases; }
  /// The nodes of one tree. Throws DataError if there is no such sentence.
  std::span<const Phrase> phrases(std::size_t sentence) const;
  /// The words of all sentences, as written in the file: a bracket is written `-LRB-` or `-RRB-`, a slash
  /// `\/`.
  std::span<const std::string_view> tokens() const { return forest_->tokens; }
  std::span<const std::string_view> tokens(const Phrase& phrase) const {
    return tokens().subspan(phrase.first, phrase.tokens);
  }
  /// The words of a phrase, separated by spaces, with plain brackets and slashes: input for a tokenizer.
  std::string text(const Phrase& phrase) const;

 private:
  friend SstTrees parse_sst(std::string text, std::string_view name);
  SstTrees() = default;  // without trees, which every member needs
  struct Forest {
    std::string text;
    std::vector<std::string_view> tokens;
    std::vector<Phrase> phrases;
    std::vector<std::size_t> starts;  // the first phrase of each sentence, and the end
  };
  std::shared_ptr<const Forest> forest_;
};

/// Reads trees, one per line: `(LABEL (..) (..))` for an inner node, `(LABEL token)` for a leaf, with single
/// ASCII spaces. A token contains no space (a no-break space does not count as one). Empty lines are skipped.
/// Throws DataError with file, line, offset and what was expected for anything else.
SstTrees read_sst(const std::filesystem::path& path);

/// The same from a text; error messages call it `name`.
SstTrees parse_sst(std::string text, std::string_view name);

/// Which words of the sentences become tokens.
struct WordOptions {
  int least = 1;  ///< words that occur less often are left out
  int most = 0;   ///< size of the vocabulary, which keeps the most frequent words; 0: no limit
};

/// The vocabulary of all sentences: `[PAD]` is 0, `[UNK]` is 1, then the other words by decreasing frequency,
/// words of the same frequency by their bytes. Throws ConfigError if `most` is neither 0 nor at least 2.
Vocabulary words_of(const SstTrees& trees, const WordOptions& options = {});

struct SstOptions {
  int length = 64;       ///< tokens of a sample: longer ones are cut, shorter ones padded with `[PAD]`
  bool phrases = false;  ///< every labeled node is a sample, not only the sentences
};

/// A Dataset of labeled sentences, or phrases. Fields: "input_ids", i32, {length}; "lengths", i32, scalar:
/// how many of the ids are not padding; "label", i32, scalar, 0 to 4. Copies share the ids.
class SstSet {
 public:
  /// Throws ConfigError if the length is not positive, or the vocabulary lacks `[PAD]` or `[UNK]`.
  SstSet(SstTrees trees, const Vocabulary& vocabulary, const SstOptions& options = {});

  std::size_t size() const { return options_.phrases ? trees_.phrases().size() : trees_.sentences(); }
  std::span<const Field> fields() const { return fields_; }
  /// Throws DataError if there is no such sample.
  void read(std::size_t index, Sample out) const;

  const SstTrees& trees() const { return trees_; }
  static constexpr int classes = 5;

 private:
  SstTrees trees_;
  SstOptions options_;
  i32 padding_ = 0;
  std::shared_ptr<const std::vector<i32>> ids_;  // of all tokens
  std::array<Field, 3> fields_;
};

/// Training, development and test set, and the vocabulary of the training set.
struct SstSplit {
  SstSet train, dev, test;
  Vocabulary vocabulary;
};

/// SST-5 from `train.txt`, `dev.txt` and `test.txt` in `dir`, with the vocabulary of the training set.
/// `options.phrases` applies to the training set only. Throws DataError as `read_sst` does.
SstSplit sst5(const std::filesystem::path& dir, const SstOptions& options = {},
              const WordOptions& words = {});

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION std::span<const SstTrees::Phrase> SstTrees::phrases(std::size_t sentence) const {
  if (sentence >= sentences())
    fail<DataError>("data: sentence ", sentence, " was asked for, but the set holds ", sentences());
  const std::size_t first = forest_->starts[sentence];
  return phrases().subspan(first, forest_->starts[sentence + 1] - first);
}

CONVOY_FUNCTION std::string SstTrees::text(const Phrase& phrase) const {
  std::string text;
  for (const std::string_view token : tokens(phrase)) {
    if (!text.empty()) text += ' ';
    if (token == "-LRB-" || token == "-RRB-") {
      text += token == "-LRB-" ? '(' : ')';
      continue;
    }
    for (std::size_t i = 0; i < token.size(); ++i)
      if (token.substr(i, 2) != "\\/") text += token[i];
  }
  return text;
}

CONVOY_FUNCTION SstTrees read_sst(const std::filesystem::path& path) {
  return parse_sst(read_text(path), path.string());
}

CONVOY_FUNCTION SstTrees parse_sst(std::string text, std::string_view name) {
  auto forest = std::make_shared<SstTrees::Forest>();
  forest->text = std::move(text);
  const std::string_view all = forest->text;
  auto& phrases = forest->phrases;
  struct Open {  // a node whose bracket is not closed yet
    std::size_t phrase;
    int children;
  };
  std::vector<Open> open;

  for (Lines lines(all); lines.next();) {
    const std::string_view line = lines.line();
    if (line.empty()) continue;
    forest->starts.push_back(phrases.size());
    std::size_t at = 0;
    const auto refuse = [&](std::size_t where, std::string_view what) {
      fail<DataError>("data: ", name, " has ", what, ", found ",
                      where < line.size() ? excerpt(line.substr(where, 12)) : "the end of the line", " at ",
                      place_in(all, lines.offset() + where));
    };
    const auto expect = [&](char c, std::string_view what) {
      if (at >= line.size() || line[at] != c) refuse(at, what);
      ++at;
    };
    do {
      expect('(', "no '(' where a node is expected");
      if (at >= line.size() || line[at] < '0' || line[at] > '4') refuse(at, "no label from 0 to 4");
      phrases.push_back({static_cast<std::uint32_t>(forest->tokens.size()), 0, line[at++] - '0'});
      expect(' ', "no space after a label");
      open.push_back({phrases.size() - 1, 0});
      if (at < line.size() && line[at] == '(') continue;  // an inner node: its first child follows
      const std::size_t end = std::min(line.find_first_of(" ()", at), line.size());
      if (end == at) refuse(at, "no token where one is expected");
      if (end == line.size() || line[end] != ')') refuse(end, "no ')' after a token");
      forest->tokens.push_back(line.substr(at, end - at));
      at = end;
      // The leaf ends here, and with it every node whose second child it completes.
      while (!open.empty()) {
        const auto [phrase, children] = open.back();
        if (children == 1) break;
        expect(')', "no ')' after a node's two children");
        phrases[phrase].tokens = static_cast<std::uint32_t>(forest->tokens.size()) - phrases[phrase].first;
        open.pop_back();
        if (!open.empty()) ++open.back().children;
      }
      if (!open.empty()) expect(' ', "no second child after a node's first");
    } while (!open.empty());
    if (at != line.size()) refuse(at, "something after the end of a tree");
  }
  if (forest->starts.empty()) fail<DataError>("data: ", name, " holds no tree");
  forest->starts.push_back(phrases.size());
  SstTrees trees;
  trees.forest_ = std::move(forest);
  return trees;
}

CONVOY_FUNCTION Vocabulary words_of(const SstTrees& trees, const WordOptions& options) {
  if (options.most != 0 && options.most < 2)
    fail<ConfigError>(
        "data: the size of a vocabulary must be 0 (no limit) or at least 2, for [PAD] and [UNK], not ",
        options.most);
  std::vector<std::string_view> words(trees.tokens().begin(), trees.tokens().end());
  std::sort(words.begin(), words.end());
  std::vector<std::pair<std::ptrdiff_t, std::string_view>> counts;
  for (auto word = words.begin(); word != words.end();) {
    const auto next = std::upper_bound(word, words.end(), *word);
    if (next - word >= options.least && *word != "[PAD]" && *word != "[UNK]")
      counts.emplace_back(next - word, *word);
    word = next;
  }
  std::stable_sort(counts.begin(), counts.end(), [](auto& a, auto& b) { return a.first > b.first; });
  std::vector<std::string> tokens{"[PAD]", "[UNK]"};
  for (const auto& [count, word] : counts)
    if (options.most == 0 || tokens.size() < static_cast<std::size_t>(options.most))
      tokens.emplace_back(word);
  return Vocabulary(std::move(tokens));
}

CONVOY_FUNCTION SstSet::SstSet(SstTrees trees, const Vocabulary& vocabulary, const SstOptions& options)
    : trees_(std::move(trees)), options_(options) {
  if (options.length < 1)
    fail<ConfigError>("data: a sentence needs a length of at least 1, not ", options.length);
  padding_ = vocabulary.find("[PAD]");
  const i32 unknown = vocabulary.find("[UNK]");
  if (padding_ < 0 || unknown < 0)
    fail<ConfigError>("data: the vocabulary of a set of sentences needs the tokens [PAD] and [UNK]");
  std::vector<i32> ids;
  ids.reserve(trees_.tokens().size());
  for (const std::string_view token : trees_.tokens()) {
    const i32 id = vocabulary.find(token);
    ids.push_back(id < 0 ? unknown : id);
  }
  ids_ = std::make_shared<const std::vector<i32>>(std::move(ids));
  fields_ = {Field{"input_ids", DType::i32, {options.length}}, Field{"lengths", DType::i32, {}},
             Field{"label", DType::i32, {}}};
}

CONVOY_FUNCTION void SstSet::read(std::size_t index, Sample out) const {
  if (index >= size()) fail<DataError>("data: sample ", index, " was asked for, but the set holds ", size());
  const SstTrees::Phrase& phrase = options_.phrases ? trees_.phrases()[index] : trees_.phrases(index)[0];
  const auto ids = out.as<i32>(0);
  const auto from = std::span(*ids_).subspan(phrase.first, std::min<std::size_t>(phrase.tokens, ids.size()));
  std::fill(std::copy(from.begin(), from.end(), ids.begin()), ids.end(), padding_);
  out.as<i32>(1)[0] = static_cast<i32>(from.size());
  out.as<i32>(2)[0] = phrase.label;
}

CONVOY_FUNCTION SstSplit sst5(const std::filesystem::path& dir, const SstOptions& options,
                              const WordOptions& words) {
  const SstTrees train = read_sst(dir / "train.txt"), dev = read_sst(dir / "dev.txt"),
                 test = read_sst(dir / "test.txt");
  const Vocabulary vocabulary = words_of(train, words);
  SstOptions sentences = options;
  sentences.phrases = false;
  return {SstSet(train, vocabulary, options), SstSet(dev, vocabulary, sentences),
          SstSet(test, vocabulary, sentences), vocabulary};
}

#endif

}  // namespace convoy::data
