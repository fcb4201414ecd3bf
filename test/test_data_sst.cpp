// SST trees: what is read, the error for each kind of damage, words, ids and padding.
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/data/loader.hpp>
#include <convoy/data/sst.hpp>

using namespace convoy;
using data_files::contains;
using data_files::sentence;

// Trees without a file could answer nothing.
static_assert(!std::is_default_constructible_v<data::SstTrees> &&
              std::is_copy_constructible_v<data::SstTrees>);

namespace {

const std::string film = "(3 (2 (2 The) (2 film)) (4 (3 (2 is) (4 great)) (2 .)))";
const std::string slash = "(1 (2 -LRB-) (1 (0 bad\\/worse) (2 -RRB-)))";

data::SstTrees trees_of(const std::string& text) { return data::parse_sst(text, "trees"); }
std::string refusal(const std::string& text) {
  return sentence<data::DataError>([&] { trees_of(text); });
}

}  // namespace

TEST_CASE("sst: trees, their phrases in pre-order, and their words") {
  const auto trees = trees_of(film + "\n\n" + slash + "\r\n(0 alone)");
  REQUIRE(trees.sentences() == 3);
  CHECK(trees.phrases().size() == 9 + 5 + 1);
  CHECK(trees.tokens().size() == 5 + 3 + 1);
  const auto phrases = trees.phrases(0);
  REQUIRE(phrases.size() == 9);
  const int labels[] = {3, 2, 2, 2, 4, 3, 2, 4, 2};
  const std::string texts[] = {
      "The film is great .", "The film", "The", "film", "is great .", "is great", "is", "great", "."};
  for (std::size_t i = 0; i < 9; ++i) {
    CHECK(phrases[i].label == labels[i]);
    CHECK(trees.text(phrases[i]) == texts[i]);
  }
  CHECK(trees.text(trees.phrases(1)[0]) == "( bad/worse )");
  CHECK(trees.tokens(trees.phrases(1)[0])[1] == "bad\\/worse");
  CHECK(trees.phrases(2)[0].label == 0);
  CHECK_THROWS_AS(trees.phrases(3), data::DataError);
}

TEST_CASE("sst: a no-break space is part of its token") {
  const auto trees = trees_of(
      "(2 (2 8\xc2\xa0"
      "1\\/2) (3 stars))");
  REQUIRE(trees.tokens().size() == 2);
  CHECK(trees.tokens()[0] ==
        "8\xc2\xa0"
        "1\\/2");
}

TEST_CASE("sst: every cut and every kind of damage is named with its place") {
  for (std::size_t size = 1; size < film.size(); ++size) {
    CAPTURE(size);
    const std::string said = refusal(film.substr(0, size));
    CHECK(contains(said, "trees has "));
    CHECK(contains(said, "found the end of the line at line 1 (byte " + std::to_string(size) + ")"));
  }
  CHECK(contains(refusal(""), "trees holds no tree"));
  CHECK(contains(refusal("\n\n"), "trees holds no tree"));
  const std::string before = film + "\n";
  const auto second = [&](const std::string& line) { return refusal(before + line); };
  const auto at = [&](int offset) {
    return "at line 2 (byte " + std::to_string(before.size() + static_cast<std::size_t>(offset)) + ")";
  };
  struct Damage {
    std::string line, reason;
    int offset;
  };
  for (const Damage& damage :
       std::vector<Damage>{{"film", "no '(' where a node is expected, found 'film'", 0},
                           {" (2 a)", "no '(' where a node is expected", 0},
                           {"(5 a)", "no label from 0 to 4, found '5 a)'", 1},
                           {"(a b)", "no label from 0 to 4", 1},
                           {"(22 a)", "no space after a label", 2},
                           {"(2\ta)", "no space after a label, found '\\x09a)'", 2},
                           {"(2  a)", "no token where one is expected", 3},
                           {"(2 )", "no token where one is expected", 3},
                           {"(2 a b)", "no ')' after a token", 4},
                           {"(2 a(b)", "no ')' after a token", 4},
                           {"(2 (2 a))", "no second child after a node's first, found ')'", 8},
                           {"(2 (2 a)(2 b))", "no second child after a node's first", 8},
                           {"(2 (2 a) b)", "no '(' where a node is expected", 9},
                           {"(2 (2 a) (2 b) (2 c))", "no ')' after a node's two children", 14},
                           {"(2 a) ", "something after the end of a tree", 5},
                           {"(2 a) (2 b)", "something after the end of a tree", 5},
                           {"(2 a))", "something after the end of a tree", 5}}) {
    CAPTURE(damage.line);
    const std::string said = second(damage.line);
    CHECK(contains(said, damage.reason));
    CHECK(contains(said, at(damage.offset)));
  }
}

TEST_CASE("sst: a tree of any depth is read without recursion") {
  const int depth = 200'000;
  std::string deep;
  for (int i = 0; i < depth; ++i) deep += "(2 ";
  deep += "(2 a)";
  for (int i = 0; i < depth; ++i) deep += " (2 b))";
  const auto trees = trees_of(deep);
  CHECK(trees.phrases().size() == 2 * depth + 1);
  CHECK(trees.phrases()[0].tokens == depth + 1);
}

TEST_CASE("sst: files, plain and gzip, and one that is missing") {
  const data_files::Folder folder;
  const data_files::Bytes bytes(film.begin(), film.end());
  CHECK(data::read_sst(folder.write("a.txt", bytes)).sentences() == 1);
  CHECK(data::read_sst(folder.write("a.txt.gz", data_files::gzip(bytes))).sentences() == 1);
  folder.write("train.txt", bytes);
  CHECK(contains(sentence<data::DataError>([&] { data::sst5(folder.path); }), "dev.txt does not exist"));
  const auto damaged = folder.write("b.txt", {'(', '7'});
  CHECK(contains(sentence<data::DataError>([&] { data::read_sst(damaged); }),
                 damaged.string() + " has no label"));
}

TEST_CASE("sst: words by frequency, then by their bytes") {
  const auto trees = trees_of("(2 (2 b) (2 a))\n(2 (2 c) (2 (2 c) (2 d)))\n(2 (2 d) (2 c))");
  const auto tokens = [&](data::WordOptions options) {
    const auto vocabulary = data::words_of(trees, options);
    std::string all;
    for (i32 id = 0; id < vocabulary.size(); ++id) {
      CHECK(vocabulary.find(vocabulary.token(id)) == id);
      all += std::string(vocabulary.token(id)) + " ";
    }
    return all;
  };
  CHECK(tokens({}) == "[PAD] [UNK] c d a b ");
  CHECK(tokens({.least = 2}) == "[PAD] [UNK] c d ");
  CHECK(tokens({.most = 5}) == "[PAD] [UNK] c d a ");
  // Trees whose rare words were replaced already.
  const auto replaced = data::words_of(data::parse_sst("(3 (2 [UNK]) (2 (2 [PAD]) (2 b)))", "here"));
  CHECK(replaced.size() == 3);
  CHECK((replaced.find("[PAD]") == 0 && replaced.find("[UNK]") == 1 && replaced.find("b") == 2));
  CHECK_THROWS_AS(data::words_of(trees, {.most = 1}), ConfigError);
}

TEST_CASE("sst: ids, lengths and labels of sentences and of phrases") {
  const auto trees = trees_of(film + "\n" + slash);
  const data::Vocabulary vocabulary({"[PAD]", "[UNK]", "The", "is", "great", "."});
  const data::SstSet sentences(trees, vocabulary, {.length = 4}),
      phrases(trees, vocabulary, {.length = 4, .phrases = true});
  CHECK(sentences.size() == 2);
  CHECK(phrases.size() == 14);
  const auto row = [](const data::SstSet& set, std::size_t index) {
    const data::Samples samples(set.fields(), 1);
    set.read(index, samples.row(0));
    std::vector<i32> all;
    for (std::size_t f = 0; f < 3; ++f)
      for (i32 x : samples.row(0).as<i32>(f)) all.push_back(x);
    return all;
  };
  CHECK(row(sentences, 0) == std::vector<i32>{2, 1, 3, 4, 4, 3});  // cut before the full stop
  CHECK(row(sentences, 1) == std::vector<i32>{1, 1, 1, 0, 3, 1});
  CHECK(row(phrases, 5) == std::vector<i32>{3, 4, 0, 0, 2, 3});
  CHECK(row(phrases, 13) == std::vector<i32>{1, 0, 0, 0, 1, 2});
  CHECK_THROWS_AS(row(sentences, 2), data::DataError);
  CHECK_THROWS_AS(data::SstSet(trees, vocabulary, {.length = 0}), ConfigError);
  CHECK_THROWS_AS(data::SstSet(trees, data::Vocabulary({"a"})), ConfigError);
}

TEST_CASE("sst: three inputs reach a loader, each rank its part") {
  const auto trees = trees_of(film + "\n" + slash);
  const data::SstSet set(trees, data::words_of(trees), {.phrases = true});
  int rows = 0, labels = 0;
  for (int rank = 0; rank < 2; ++rank) {
    data::Loader loader(set, {.batch = 4, .shard = {rank, 2}});
    loader.start(0);
    while (const data::Batch* batch = loader.next()) {
      rows += static_cast<int>(batch->rows);
      CHECK(batch->as<i32>(0).size() == 64u * batch->as<i32>(1).size());
      for (i32 label : batch->as<i32>(2)) labels += label;
    }
  }
  CHECK(rows == 14);
  CHECK(labels == 24 + 6);
}

TEST_CASE("vocabulary: a token a line, nothing empty and nothing twice") {
  const auto refused = [](const std::string& text) {
    return sentence<data::DataError>([&] { data::parse_vocabulary(text, "words"); });
  };
  const auto vocabulary = data::parse_vocabulary("[PAD]\r\nb\na\n##b\n", "words");
  CHECK(vocabulary.size() == 4);
  CHECK(vocabulary.find("a") == 2);
  CHECK(vocabulary.find("##b") == 3);
  CHECK(vocabulary.find("c") == -1);
  CHECK(vocabulary.token(1) == "b");
  CHECK_THROWS_AS(vocabulary.token(4), data::DataError);
  CHECK_THROWS_AS(vocabulary.token(-1), data::DataError);
  CHECK(contains(refused(""), "words holds no token"));
  CHECK(
      contains(refused("a\n\nb\n"), "words has an empty line where a token is expected, at line 2 (byte 2)"));
  CHECK(contains(refused("a\nb\nc\nb\n"),
                 "words has the token 'b' twice: at line 2 (byte 2) and at line 4 (byte 6)"));
  CHECK_THROWS_AS(data::Vocabulary({"a", "b", "a"}), data::DataError);
  CHECK_THROWS_AS(data::Vocabulary({"a", ""}), data::DataError);
}
