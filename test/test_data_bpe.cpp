// Byte-pair encoding against Hugging Face's tokenizers (fixtures/make_tokenizer_fixtures.py); merge files
// that are refused.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include "skip.hpp"
#include "text_fixtures.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/data/bpe.hpp>
#include <convoy/data/text_file.hpp>

using namespace convoy;
using data_files::contains;
using data_files::sentence;

// A Bpe without merges could do nothing.
static_assert(!std::is_default_constructible_v<data::Bpe> && std::is_copy_constructible_v<data::Bpe>);

namespace {

data::Bpe small() { return data::read_bpe(fixtures::folder() + "/bpe_merges.txt"); }

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = data::end_of_gpt2_word(text, at);
    REQUIRE(end > at);
    all.push_back(text.substr(at, end - at));
    at = end;
  }
  return all;
}

}  // namespace

TEST_CASE("bpe: the ids of mixed texts are those of tokenizers, and lead back") {
  const data::Bpe bpe = small();
  CHECK(bpe.size() == 256 + 300 + 1);
  for (const auto& pair : text_fixtures::pairs("bpe.txt")) {
    INFO(pair.text);
    CHECK(bpe.encode(pair.text) == pair.ids);
    CHECK(bpe.decode(pair.ids) == pair.text);
  }
}

TEST_CASE("bpe: whole files") {
  const char* folder = std::getenv("CONVOY_DATA");
  if (folder == nullptr) SKIP("CONVOY_DATA is not set");
  const data::Bpe bpe = small();
  const auto files = text_fixtures::files("bpe");
  CHECK(files.size() == 2);
  for (const auto& [file, expected] : files) {
    const std::string text = data::read_text(std::filesystem::path(folder) / file);
    const auto ids = bpe.encode(text);
    CHECK(text_fixtures::digest(ids) == expected);
    CHECK(bpe.decode(ids) == text);
  }
}

TEST_CASE("bpe: GPT-2's words") {
  using Words = std::vector<std::string>;
  CHECK(words("I'll say 'twas we've'd") == Words{"I", "'ll", " say", " '", "twas", " we", "'ve", "'d"});
  CHECK(words("a  b   \n\n c \n") == Words{"a", " ", " b", "   \n\n", " c", " \n"});
  CHECK(words("\n\nx\ty") == Words{"\n", "\n", "x", "\t", "y"});
  CHECK(words("x1 23,.! 4th") == Words{"x", "1", " 23", ",.!", " 4", "th"});
  CHECK(words(" \u00e9t\u00e9 \u00bd\u00b2 \u00a0\u3000z") ==
        Words{" \u00e9t\u00e9", " \u00bd\u00b2", " \u00a0", "\u3000", "z"});
  CHECK(words("a\xff\xfe b") == Words{"a", "\xff\xfe", " b"});
}

TEST_CASE("bpe: every string of bytes leads back") {
  const data::Bpe bpe = small();
  Philox random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::string bytes(random.below(200), ' ');
    for (char& c : bytes) c = static_cast<char>(random.below(trial % 2 == 0 ? 256 : 128));
    const auto ids = bpe.encode(bytes);
    CHECK(bpe.decode(ids) == bytes);
  }
  CHECK(bpe.decode(std::vector<i32>{bpe.end_of_text()}).empty());
  CHECK(contains(sentence<data::DataError>([&] {
                   bpe.decode(std::vector<i32>{5, bpe.size()});
                 }),
                 "id 557 at position 1 is not in a vocabulary of 557 ids"));
  CHECK_THROWS_AS(bpe.decode(std::vector<i32>{-1}), data::DataError);
}

TEST_CASE("bpe: long words merge as short ones do") {
  // Runs of one letter: the list merges pairs, fours, ... and the rest in order of rank.
  const data::Bpe bpe = data::parse_bpe("a a\naa a\naa aa\nb a\naaaa a\naaaa b\n", "merges");
  const auto by_hand = [](std::string text) {  // the definition, on strings
    const std::pair<std::string, std::string> merges[] = {{"a", "a"}, {"aa", "a"},   {"aa", "aa"},
                                                          {"b", "a"}, {"aaaa", "a"}, {"aaaa", "b"}};
    std::vector<std::string> word;
    for (char c : text) word.emplace_back(1, c);
    for (const auto& [left, right] : merges)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] += right;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
    return word;
  };
  Philox random(8);
  for (int trial = 0; trial < 200; ++trial) {
    std::string text(1 + random.below(150), 'a');
    for (char& c : text)
      if (random.below(7) == 0) c = 'b';
    const auto ids = bpe.encode(text);
    std::vector<std::string> pieces;
    for (const i32 id : ids) pieces.push_back(bpe.decode({&id, 1}));
    CHECK(pieces == by_hand(text));
  }
  const std::string megabyte(1 << 20, 'a');
  CHECK(bpe.encode(megabyte).size() == megabyte.size() / 4);
}

TEST_CASE("bpe: files of merges that are refused") {
  const auto refused = [](const std::string& text) {
    return sentence<data::DataError>([&] { data::parse_bpe(text, "merges"); });
  };
  CHECK(data::parse_bpe("", "merges").size() == 257);
  CHECK(data::parse_bpe("#version: 0.2\r\na b\r\n", "merges").size() == 258);
  for (const std::string line : {"", "ab", " ab", "ab ", "a b c", "a  b", " "})
    CHECK(contains(refused("a b\n" + line + "\n"),
                   "where two pieces with a space between them are expected, at line 2 (byte 4)"));
  CHECK(
      contains(refused("a b\nc \u00ad\n"),
               "has '\\xc2\\xad' where a character that stands for a byte is expected, at line 2 (byte 6)"));
  CHECK(contains(refused("a b\nc \xff\n"), "stands for a byte is expected, at line 2 (byte 6)"));
  CHECK(contains(refused("a b\nc \u0144\n"), "stands for a byte is expected"));
  CHECK(contains(refused("a b\nab cd\n"),
                 "the piece 'cd', which is neither a byte nor an earlier merge, at line 2 (byte 7)"));
  CHECK(contains(refused("a b\nc d\na b\n"), "the merge 'a b' twice, again at line 3 (byte 8)"));
  CHECK(contains(refused("a b\n#version: 0.2 x\n"), "two pieces"));
  const data_files::Folder folder;
  const auto path = folder.write("merges.txt", {'a'});
  CHECK(contains(sentence<data::DataError>([&] { data::read_bpe(path); }), path.string() + " has 'a' where"));
  // A piece that two merges make has one id.
  const data::Bpe twice = data::parse_bpe("a b\nb c\nab c\na bc\n", "merges");
  CHECK(twice.size() == 260);
  CHECK(twice.encode("abc") == std::vector<i32>{258});
}
