// The two tasks of BERT's pre-training, masked words and next sentences (Devlin, Chang, Lee, Toutanova,
// "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018). Examples are
// made from plain text while training, and every epoch masks different tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/wordpiece.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cmath>
#include <utility>

#include <convoy/data/text_file.hpp>
#endif

namespace convoy::data {

/// The ids of documents of sentences. The text has the format of BERT's input: one sentence per line, an
/// empty line between documents. Lines without a token are skipped. Copies share the ids.
class Sentences {
 public:
  Sentences(std::string_view text, const WordPiece& tokenizer);

  std::size_t size() const { return corpus_->starts.size() - 1; }
  std::size_t documents() const { return corpus_->documents.size() - 1; }
  std::span<const i32> tokens() const { return corpus_->ids; }
  std::span<const i32> sentence(std::size_t i) const { return sentences(i, i + 1); }
  /// The tokens of sentences [first, last), which are contiguous.
  std::span<const i32> sentences(std::size_t first, std::size_t last) const {
    return tokens().subspan(corpus_->starts[first], corpus_->starts[last] - corpus_->starts[first]);
  }
  /// The first sentence of document `i`; `size()` for `i == documents()`.
  std::size_t first_of(std::size_t i) const { return corpus_->documents[i]; }

 private:
  struct Corpus {
    std::vector<i32> ids;
    // The first id of each sentence and the first sentence of each document; each ends with the total.
    std::vector<std::size_t> starts, documents;
  };
  std::shared_ptr<const Corpus> corpus_;
};

struct MaskedLmOptions {
  int length = 128;           ///< tokens of an example, [CLS] and two [SEP] included
  int most_predictions = 20;  ///< masked tokens of an example
  double masked = 0.15;       ///< the share of an example's tokens that is masked
  double shorter = 0.1;       ///< the share of examples that are cut to a length drawn from 2 to the full one
};

/// A Dataset of examples [CLS] A [SEP] B [SEP] by BERT's rules. An example is made of consecutive sentences
/// of a document that together reach the length. A is a random number of the first of them. B is the rest or,
/// half of the time and where there is no rest, sentences from a random place in another document. A pair
/// that is too long loses tokens from the longer part, one by one, at either end. The share `masked` of the
/// tokens, at least one, is to be predicted: 8 of 10 become [MASK], 1 a random token of the vocabulary, 1
/// stays.
///
/// Fields, all i32: "input_ids", {length}; "token_type_ids", {length}, 0 for [CLS] A [SEP] and 1 for B [SEP];
/// "lengths", scalar, how many of them are not padding; "masked_positions", {most_predictions}, ascending,
/// then 0; "masked_labels", {most_predictions}, the ids that were there, then `no_masked_label`;
/// "next_sentence_label", scalar, 0 if B follows A and 1 if it does not.
///
/// An example is a function of (seed, epoch, index) alone.
class MaskedLm {
 public:
  /// PyTorch's convention for a label that is ignored.
  static constexpr i32 no_masked_label = -100;

  /// Throws ConfigError if the vocabulary lacks [PAD], [CLS], [SEP] or [MASK], the text has fewer than two
  /// documents, or an option is out of range.
  MaskedLm(Sentences sentences, const Vocabulary& vocabulary, const MaskedLmOptions& options = {});

  std::size_t size() const { return chunks_->size(); }
  std::span<const Field> fields() const { return fields_; }
  /// Throws DataError if there is no such example.
  void fill(const Rows& rows) const;

 private:
  // Sentences of one document that make an example.
  struct Chunk {
    std::size_t first, last, document;
  };
  struct Pair {
    std::span<const i32> a, b;
    bool follows;
  };

  Pair draw_pair(const Chunk& chunk, std::size_t room, Philox& random) const;
  std::span<const i32> from_elsewhere(std::size_t document, std::size_t wanted, Philox& random) const;
  void write(const Pair& pair, Sample out, Philox& random) const;

  Sentences sentences_;
  MaskedLmOptions options_;
  i32 padding_, first_, separator_, mask_, vocabulary_;
  std::shared_ptr<const std::vector<Chunk>> chunks_;
  std::array<Field, 6> fields_;
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION Sentences::Sentences(std::string_view text, const WordPiece& tokenizer) {
  auto corpus = std::make_shared<Corpus>();
  for (Lines lines(text); lines.next();) {
    const std::size_t begin = corpus->ids.size();
    if (corpus->documents.empty()) corpus->documents.push_back(0);
    tokenizer.encode(lines.line(), corpus->ids);
    if (corpus->ids.size() > begin)
      corpus->starts.push_back(begin);
    else if (corpus->starts.size() > corpus->documents.back() &&
             lines.line().find_first_not_of(" \t") == std::string_view::npos)
      corpus->documents.push_back(corpus->starts.size());
  }
  if (corpus->documents.empty() || corpus->starts.size() > corpus->documents.back())
    corpus->documents.push_back(corpus->starts.size());
  corpus->starts.push_back(corpus->ids.size());
  corpus_ = std::move(corpus);
}

CONVOY_FUNCTION MaskedLm::MaskedLm(Sentences sentences, const Vocabulary& vocabulary,
                                   const MaskedLmOptions& options)
    : sentences_(std::move(sentences)), options_(options), vocabulary_(vocabulary.size()) {
  const auto id_of = [&](std::string_view token) {
    const i32 id = vocabulary.find(token);
    if (id < 0) fail<ConfigError>("data: masked words need the token ", token, " in the vocabulary");
    return id;
  };
  padding_ = id_of("[PAD]"), first_ = id_of("[CLS]"), separator_ = id_of("[SEP]"), mask_ = id_of("[MASK]");
  if (options.length < 5)
    fail<ConfigError>("data: an example of two sentences has at least 5 tokens, not ", options.length);
  if (options.most_predictions < 1)
    fail<ConfigError>("data: an example predicts at least one token, not ", options.most_predictions);
  if (!(options.masked > 0 && options.masked <= 1 && options.shorter >= 0 && options.shorter <= 1))
    fail<ConfigError>(
        "data: the share masked must be above 0 and at most 1, and the share shorter from 0 to 1, not ",
        options.masked, " and ", options.shorter);
  if (sentences_.documents() < 2)
    fail<ConfigError>(
        "data: next sentences need two documents, with an empty line between them; the text has ",
        sentences_.documents());
  auto chunks = std::make_shared<std::vector<Chunk>>();
  const auto room = static_cast<std::size_t>(options.length - 3);
  for (std::size_t d = 0; d < sentences_.documents(); ++d) {
    const std::size_t end = sentences_.first_of(d + 1);
    std::size_t first = sentences_.first_of(d);
    for (std::size_t last = first + 1; last <= end; ++last) {
      if (last < end && sentences_.sentences(first, last).size() < room) continue;
      chunks->push_back({first, last, d});
      first = last;
    }
  }
  chunks_ = std::move(chunks);
  const Shape row{options.length}, predictions{options.most_predictions};
  fields_ = {Field{"input_ids", DType::i32, row},
             Field{"token_type_ids", DType::i32, row},
             Field{"lengths", DType::i32, {}},
             Field{"masked_positions", DType::i32, predictions},
             Field{"masked_labels", DType::i32, predictions},
             Field{"next_sentence_label", DType::i32, {}}};
}

CONVOY_FUNCTION void MaskedLm::fill(const Rows& rows) const {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::size_t index = rows.index(r);
    if (index >= size())
      fail<DataError>("data: example ", index, " was asked for, but the text has ", size());
    Philox random = random_of(rows.draw(), index, 0x6d61736b6564ull);
    auto room = static_cast<std::uint32_t>(options_.length - 3);
    if (static_cast<double>(random.uniform()) < options_.shorter) room = 2 + random.below(room - 1);
    write(draw_pair((*chunks_)[index], room, random), rows[r], random);
  }
}

CONVOY_FUNCTION MaskedLm::Pair MaskedLm::draw_pair(const Chunk& chunk, std::size_t room,
                                                   Philox& random) const {
  const auto below = [&](std::size_t n) { return std::size_t{random.below(static_cast<std::uint32_t>(n))}; };
  const std::size_t count = chunk.last - chunk.first;
  const std::size_t middle = chunk.first + (count > 1 ? 1 + below(count - 1) : 1);
  Pair pair{sentences_.sentences(chunk.first, middle), {}, count > 1 && random.uniform() < 0.5f};
  if (pair.follows)
    pair.b = sentences_.sentences(middle, chunk.last);
  else
    pair.b = from_elsewhere(chunk.document, room - std::min(room - 1, pair.a.size()), random);
  while (pair.a.size() + pair.b.size() > room) {
    auto& longer = pair.a.size() > pair.b.size() ? pair.a : pair.b;
    longer = random.uniform() < 0.5f ? longer.subspan(1) : longer.first(longer.size() - 1);
  }
  return pair;
}

// Consecutive sentences from a random place in another document, up to `wanted` tokens or the document's end.
CONVOY_FUNCTION std::span<const i32> MaskedLm::from_elsewhere(std::size_t document, std::size_t wanted,
                                                              Philox& random) const {
  auto other = std::size_t{random.below(static_cast<std::uint32_t>(sentences_.documents() - 1))};
  if (other >= document) ++other;
  const std::size_t begin = sentences_.first_of(other), end = sentences_.first_of(other + 1);
  const std::size_t first = begin + random.below(static_cast<std::uint32_t>(end - begin));
  std::size_t last = first + 1;
  while (last < end && sentences_.sentences(first, last).size() < wanted) ++last;
  return sentences_.sentences(first, last);
}

CONVOY_FUNCTION void MaskedLm::write(const Pair& pair, Sample out, Philox& random) const {
  const auto ids = out.as<i32>(0), types = out.as<i32>(1);
  auto at = ids.begin();
  *at++ = first_;
  at = std::copy(pair.a.begin(), pair.a.end(), at);
  *at++ = separator_;
  const auto second = at - ids.begin();
  at = std::copy(pair.b.begin(), pair.b.end(), at);
  *at++ = separator_;
  const auto length = at - ids.begin();
  std::fill(at, ids.end(), padding_);
  std::fill(types.begin(), types.end(), 0);
  std::fill(types.begin() + second, types.begin() + length, 1);
  out.as<i32>(2)[0] = static_cast<i32>(length);
  out.as<i32>(5)[0] = pair.follows ? 0 : 1;

  // Every token except [CLS] and the two [SEP] may be masked. Selection sampling chooses the masked ones in
  // order (Knuth, "The Art of Computer Programming", volume 2, algorithm 3.4.2 S).
  const auto words = static_cast<std::uint32_t>(pair.a.size() + pair.b.size());
  const auto share =
      static_cast<std::uint32_t>(std::nearbyint(options_.masked * static_cast<double>(length)));
  const std::uint32_t count =
      std::min({std::max(share, 1u), static_cast<std::uint32_t>(options_.most_predictions), words});
  const auto positions = out.as<i32>(3), labels = out.as<i32>(4);
  std::fill(positions.begin(), positions.end(), 0);
  std::fill(labels.begin(), labels.end(), no_masked_label);
  std::uint32_t chosen = 0;
  for (std::uint32_t word = 0; chosen < count; ++word) {
    if (random.below(words - word) >= count - chosen) continue;
    const std::size_t position = word + (word < pair.a.size() ? 1u : 2u);
    positions[chosen] = static_cast<i32>(position);
    labels[chosen++] = ids[position];
    const float what = random.uniform();
    if (what < 0.8f)
      ids[position] = mask_;
    else if (what < 0.9f)
      ids[position] = static_cast<i32>(random.below(static_cast<std::uint32_t>(vocabulary_)));
  }
}

#endif

}  // namespace convoy::data
