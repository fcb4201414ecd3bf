// ALONE
// Masked words and next sentences: the contents of an example, BERT's shares, and that an example is a
// function of (seed, epoch, index) alone.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "data_files.hpp"
#include "near.hpp"
#include "skip.hpp"
#include <convoy/data/loader.hpp>
#include <convoy/data/masked_lm.hpp>
#include <convoy/data/text_file.hpp>

using namespace convoy;
using data_files::contains;
using data_files::sentence;

namespace {

constexpr i32 words_begin = 5;  // ids below are [PAD] [UNK] [CLS] [SEP] [MASK]

/// A text of distinct words, numbered in order, and the document of each word.
struct Text {
  data::Vocabulary vocabulary;
  std::string text;
  std::vector<int> document;  // of each word

  explicit Text(int documents = 40, std::uint64_t seed = 1) {
    std::vector<std::string> tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    Philox random(seed);
    for (int d = 0; d < documents; ++d) {
      for (std::uint32_t left = 1 + random.below(12); left > 0; --left) {
        for (std::uint32_t words = 1 + random.below(15); words > 0; --words) {
          std::string word = "w";
          for (auto n = tokens.size(); n > 0; n /= 10) word += static_cast<char>('a' + n % 10);
          text += word + " ";
          tokens.push_back(word);
          document.push_back(d);
        }
        text += "\n";
      }
      text += d % 3 == 0 ? "\n \t\n\n" : "\n";
    }
    vocabulary = data::Vocabulary(tokens);
  }
  data::MaskedLm set(const data::MaskedLmOptions& options = {}) const {
    return {data::Sentences(text, data::WordPiece(vocabulary)), vocabulary, options};
  }
};

struct Example {
  std::vector<i32> ids, types, positions, labels;
  i32 length = 0, next = 0;
  /// The ids before masking.
  std::vector<i32> original() const {
    std::vector<i32> all = ids;
    for (std::size_t i = 0; i < labels.size(); ++i)
      if (labels[i] != data::MaskedLm::no_masked_label)
        all[static_cast<std::size_t>(positions[i])] = labels[i];
    return all;
  }
  friend bool operator==(const Example&, const Example&) = default;
};

std::vector<Example> examples_of(const data::Batch& batch) {
  std::vector<Example> all(static_cast<std::size_t>(batch.rows));
  const auto part = [&](std::size_t field, std::size_t row) {
    const auto values = batch.as<i32>(field);
    const std::size_t n = values.size() / all.size();
    return std::vector<i32>(values.begin() + static_cast<std::ptrdiff_t>(row * n),
                            values.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
  };
  for (std::size_t r = 0; r < all.size(); ++r)
    all[r] = {part(0, r), part(1, r), part(3, r), part(4, r), part(2, r)[0], part(5, r)[0]};
  return all;
}

std::vector<Example> epoch_of(const data::MaskedLm& set, std::int64_t epoch,
                              data::LoaderOptions options = {.batch = 1, .seed = 3, .shuffle = false}) {
  data::Loader loader(set, options);
  std::vector<Example> all;
  loader.start(epoch);
  while (const data::Batch* batch = loader.next())
    for (Example& example : examples_of(*batch)) all.push_back(std::move(example));
  return all;
}

}  // namespace

TEST_CASE("masked lm: documents and sentences of a text") {
  const data::Vocabulary vocabulary({"[PAD]", "[UNK]", "a", "b", "c"});
  const data::Sentences it("\n\na b\nc\n\x01\n \n\t\n\nb\r\n\r\nc c c", data::WordPiece(vocabulary));
  CHECK(it.size() == 4);
  CHECK(it.documents() == 3);
  CHECK(it.first_of(1) == 2);
  CHECK(it.first_of(3) == 4);
  CHECK(it.tokens().size() == 7);
  CHECK(it.sentence(0).size() == 2);
  CHECK(it.sentences(1, 3)[1] == 3);
  CHECK(it.sentence(3)[2] == 4);
  CHECK(data::Sentences("", data::WordPiece(vocabulary)).documents() == 0);
  CHECK(data::Sentences("\n \n", data::WordPiece(vocabulary)).size() == 0);
}

TEST_CASE("masked lm: [CLS] A [SEP] B [SEP], from one document or from two") {
  const Text text;
  for (const int length : {5, 12, 32, 128}) {
    const auto set = text.set({.length = length, .most_predictions = 7});
    int follows = 0, both = 0, shorter = 0;
    for (std::int64_t epoch = 0; epoch < 6; ++epoch)
      for (const Example& it : epoch_of(set, epoch)) {
        const auto ids = it.original();
        REQUIRE(it.length >= 5);
        REQUIRE(it.length <= length);
        const auto end = ids.begin() + it.length;
        REQUIRE(ids[0] == 2);
        REQUIRE(*(end - 1) == 3);
        const auto middle = std::find(ids.begin(), end, 3);
        REQUIRE(middle > ids.begin() + 1);
        REQUIRE(middle < end - 2);
        for (auto at = ids.begin(); at != ids.end(); ++at) {
          REQUIRE(it.types[static_cast<std::size_t>(at - ids.begin())] == (at > middle && at < end ? 1 : 0));
          if (at >= end) REQUIRE(*at == 0);
        }
        // Words are consecutive within A and within B; each of the two lies in one document.
        const auto document = [&](i32 id) {
          return text.document.at(static_cast<std::size_t>(id - words_begin));
        };
        for (auto at = ids.begin() + 2; at < end - 1; ++at)
          if (at != middle && at != middle + 1) REQUIRE(*at == at[-1] + 1);
        REQUIRE(document(ids[1]) == document(middle[-1]));
        REQUIRE(document(middle[1]) == document(end[-2]));
        REQUIRE((document(ids[1]) == document(middle[1])) == (it.next == 0));
        if (it.next == 0) REQUIRE(middle[1] > middle[-1]);
        follows += it.next == 0;
        ++both;
        shorter += it.length < length;
      }
    CHECK(follows > (length < 32 ? 0 : both / 10));  // short examples rarely have a second sentence
    CHECK(follows < both * 6 / 10);
    CHECK((shorter > 0) == (length > 5));
  }
}

TEST_CASE("masked lm: what does not follow is of any other document") {
  const Text text(4);
  const auto set = text.set({.length = 32});
  std::set<std::pair<int, int>> pairs;  // the documents of A and of B
  for (std::int64_t epoch = 0; epoch < 40; ++epoch)
    for (const Example& it : epoch_of(set, epoch)) {
      const auto ids = it.original();
      const auto middle = std::find(ids.begin(), ids.end(), 3);
      const auto document = [&](i32 id) {
        return text.document.at(static_cast<std::size_t>(id - words_begin));
      };
      if (it.next == 1) pairs.insert({document(ids[1]), document(middle[1])});
    }
  CHECK(pairs.size() == 4 * 3);
}

TEST_CASE("masked lm: half of the pairs follow each other where documents are long") {
  const Text text(60);
  const auto set = text.set({.length = 16, .shorter = 0});
  double follows = 0, all = 0;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch)
    for (const Example& it : epoch_of(set, epoch)) follows += it.next == 0, ++all;
  CHECK(follows / all < 0.5);  // an example of one sentence has no next sentence
  CHECK(follows / all > 0.25);
}

TEST_CASE("masked lm: BERT's shares of what is masked, and by what") {
  const Text text(200);
  const auto set = text.set({.shorter = 0});
  double masked = 0, kept = 0, other = 0, tokens = 0;
  std::vector<double> place(128);
  for (std::int64_t epoch = 0; epoch < 10; ++epoch)
    for (const Example& it : epoch_of(set, epoch)) {
      const auto expected = std::max(1, static_cast<int>(std::nearbyint(0.15 * it.length)));
      int count = 0;
      for (std::size_t i = 0; i < 20; ++i) {
        if (it.labels[i] == data::MaskedLm::no_masked_label) {
          REQUIRE(it.positions[i] == 0);
          continue;
        }
        REQUIRE(count == static_cast<int>(i));
        ++count;
        REQUIRE(it.positions[i] > (i == 0 ? 0 : it.positions[i - 1]));
        REQUIRE(it.positions[i] < it.length - 1);
        REQUIRE(it.labels[i] >= words_begin);
        const i32 now = it.ids[static_cast<std::size_t>(it.positions[i])];
        masked += now == 4;
        kept += now == it.labels[i];
        other += now != 4 && now != it.labels[i];
        if (it.length > 100)
          ++place[static_cast<std::size_t>(it.positions[i]) * 128 / static_cast<std::size_t>(it.length)];
      }
      REQUIRE(count == std::min(expected, 20));
      tokens += count;
    }
  REQUIRE(tokens > 10'000);
  CHECK(masked / tokens == test::near(0.8, 0.02));
  CHECK(kept / tokens == test::near(0.1, 0.1));
  CHECK(other / tokens == test::near(0.1, 0.1));
  double front = 0, back = 0;  // every word is as likely as any other
  for (std::size_t i = 0; i < 64; ++i) front += place[i], back += place[64 + i];
  CHECK(front / back == test::near(1, 0.1));
}

TEST_CASE("masked lm: an example is a function of seed, epoch and index") {
  const auto set = Text().set({.length = 24});
  const auto first = epoch_of(set, 2);
  CHECK(first == epoch_of(set, 2, {.batch = 7, .seed = 3, .shuffle = false, .prefetch = 0}));
  CHECK(first != epoch_of(set, 3));
  CHECK(first != epoch_of(set, 2, {.batch = 1, .seed = 4, .shuffle = false}));
  std::vector<Example> ranks;
  for (int rank = 0; rank < 3; ++rank)
    for (Example& it : epoch_of(set, 2,
                                {.batch = static_cast<std::int64_t>(set.size() / 3 + 1),
                                .shard = {rank, 3},
                                .seed = 3,
                                .shuffle = false,
                                .allow_short = true}))
      ranks.push_back(std::move(it));
  CHECK(ranks == first);
  // Shuffled, an epoch has the same examples in another order.
  auto shuffled = epoch_of(set, 2, {.batch = 4, .seed = 3});
  CHECK(shuffled != first);
  CHECK(std::is_permutation(shuffled.begin(), shuffled.end(), first.begin()));
  // An epoch can be entered anywhere.
  data::Loader loader(set, {.batch = 4, .seed = 3});
  loader.start(2, 5);
  const data::Batch* batch = loader.next();
  REQUIRE(batch != nullptr);
  CHECK(examples_of(*batch)[0] == shuffled[20]);
}

TEST_CASE("masked lm: nothing is allocated for a batch") {
  const auto set = Text().set();
  data::Loader loader(set, {.batch = 8});
  loader.start(0);
  while (loader.next() != nullptr) {
  }
  const long before = allocations;
  loader.start(1);
  while (loader.next() != nullptr) {
  }
  CHECK(allocations == before);
}

TEST_CASE("masked lm: what is refused") {
  const Text text(3);
  const auto refused = [&](const data::MaskedLmOptions& options) {
    return sentence<ConfigError>([&] { text.set(options); });
  };
  CHECK(contains(refused({.length = 4}), "at least 5 tokens, not 4"));
  CHECK(contains(refused({.most_predictions = 0}), "predicts at least one"));
  CHECK(contains(refused({.masked = 0}), "must be above 0 and at most 1"));
  CHECK(contains(refused({.shorter = 2}), "the share shorter from 0 to 1, not 0.15 and 2"));
  CHECK(contains(sentence<ConfigError>([] { Text(1).set(); }), "the text has 1"));
  const data::Vocabulary few({"[PAD]", "[UNK]", "[CLS]", "[SEP]"});
  CHECK(contains(
      sentence<ConfigError>([&] { data::MaskedLm(data::Sentences("a\n\nb", data::WordPiece(few)), few); }),
      "the token [MASK]"));
  const auto set = text.set();
  const data::Samples out(set.fields(), 1);
  CHECK_THROWS_AS(data::read(set, set.size(), out), data::DataError);
}

TEST_CASE("masked lm: tiny Shakespeare by BERT's vocabulary") {
  const char* folder = std::getenv("CONVOY_DATA");
  if (folder == nullptr) SKIP("CONVOY_DATA is not set");
  const std::filesystem::path path(folder);
  const data::Vocabulary vocabulary = data::read_vocabulary(path / "bert" / "vocab.txt");
  const data::Sentences sentences(data::read_text(path / "text" / "tinyshakespeare.txt"),
                                  data::WordPiece(vocabulary));
  CHECK(sentences.tokens().size() == 288'719);
  CHECK(sentences.documents() == 7222);
  const data::MaskedLm set(sentences, vocabulary);
  const data::Samples out(set.fields(), 1);
  data::read(set, 0, out);
  CHECK(out.row(0).as<i32>(0)[0] == 101);
  CHECK(out.row(0).as<i32>(0)[static_cast<std::size_t>(out.row(0).as<i32>(2)[0]) - 1] == 102);
}
