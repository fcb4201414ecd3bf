// WordPiece against Hugging Face's tokenizers and BERT's rules (fixtures/make_tokenizer_fixtures.py).
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include "skip.hpp"
#include "text_fixtures.hpp"
#include <convoy/data/text_file.hpp>
#include <convoy/data/wordpiece.hpp>

using namespace convoy;
using data_files::contains;
using data_files::sentence;

TEST_CASE("wordpiece: the ids of mixed texts are those of BERT's tokenizer") {
  const data::WordPiece tokenizer(data::read_vocabulary(fixtures::folder() + "/wordpiece_vocab.txt"));
  for (const auto& pair : text_fixtures::pairs("wordpiece.txt")) {
    INFO(pair.text);
    CHECK(tokenizer.encode(pair.text) == pair.ids);
  }
}

TEST_CASE("wordpiece: with BERT's own vocabulary, mixed texts and whole files") {
  const char* folder = std::getenv("CONVOY_DATA");
  if (folder == nullptr) SKIP("CONVOY_DATA is not set");
  const std::filesystem::path data(folder);
  const data::Vocabulary vocabulary = data::read_vocabulary(data / "bert" / "vocab.txt");
  CHECK(vocabulary.size() == 30522);
  CHECK(vocabulary.find("[PAD]") == 0);
  CHECK(vocabulary.find("[MASK]") == 103);
  const data::WordPiece tokenizer(vocabulary);
  for (const auto& pair : text_fixtures::pairs("wordpiece_bert.txt")) {
    INFO(pair.text);
    CHECK(tokenizer.encode(pair.text) == pair.ids);
  }
  const auto files = text_fixtures::files("wordpiece");
  CHECK(files.size() == 2);
  for (const auto& [file, expected] : files)
    CHECK(text_fixtures::digest(tokenizer.encode(data::read_text(data / file))) == expected);
}

TEST_CASE("wordpiece: cased text keeps its capitals and accents") {
  const data::Vocabulary vocabulary({"[UNK]", "caf\u00e9", "cafe", "Caf\u00e9", "##s", "."});
  CHECK(data::WordPiece(vocabulary).encode("Caf\u00e9s.") == std::vector<i32>{2, 4, 5});
  CHECK(data::WordPiece(vocabulary, {.uncased = false}).encode("Caf\u00e9s. caf\u00e9 CAF\u00c9") ==
        std::vector<i32>{3, 4, 5, 1, 0});
}

TEST_CASE("wordpiece: bytes that are no UTF-8 are dropped") {
  const data::WordPiece tokenizer(data::Vocabulary({"[UNK]", "ab", "a", "##b"}));
  for (const std::string bad :
       {"\xff", "\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xc1\xbf",
        "\xe0\x9f\xbf", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf5\x80\x80\x80"})
    CHECK(tokenizer.encode("a" + bad + "b") == std::vector<i32>{1});
  // The first and the last characters of each length, and those beside the surrogates, are kept.
  const std::vector<std::string> kept{"[UNK]",  "\u07ff", "\u0800",     "\ud7ff",
                                      "\ue000", "\uffff", "\U00010000", "\U0010ffff"};
  const data::WordPiece edges{data::Vocabulary(kept)};
  for (std::size_t i = 1; i < kept.size(); ++i)
    CHECK(edges.encode(kept[i]) == std::vector<i32>{static_cast<i32>(i)});
  CHECK(tokenizer.encode("ab\xf0\x9f") == std::vector<i32>{1});
}

TEST_CASE("wordpiece: longest pieces first, whole words unknown, words limited") {
  const data::WordPiece tokenizer(data::Vocabulary({"[UNK]", "un", "u", "##n", "##able", "##a", "##ab"}));
  CHECK(tokenizer.encode("unable") == std::vector<i32>{1, 4});
  CHECK(tokenizer.encode("unab") == std::vector<i32>{1, 6});
  CHECK(tokenizer.encode("unabc un") == std::vector<i32>{0, 1});
  CHECK(data::WordPiece(data::Vocabulary({"[UNK]", "a", "##a"}), {.most_characters = 3}).encode("aaa aaaa") ==
        std::vector<i32>{1, 2, 2, 0});
  CHECK(contains(sentence<ConfigError>([] { data::WordPiece(data::Vocabulary({"a"})); }), "no token [UNK]"));
  CHECK_THROWS_AS(data::WordPiece(data::Vocabulary({"[UNK]"}), {.most_characters = 0}), ConfigError);
}
