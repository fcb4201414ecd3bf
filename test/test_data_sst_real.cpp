// SANITIZE: none
// The published SST-5, if available: in the folder sst5 of the folder that CONVOY_DATA names.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "skip.hpp"
#include <convoy/data/sst.hpp>

using namespace convoy;

TEST_CASE("sst: the real one has its published counts") {
  const char* folder = std::getenv("CONVOY_DATA");
  if (folder == nullptr) SKIP("CONVOY_DATA is not set");
  const auto [train, dev, test, vocabulary] = data::sst5(std::filesystem::path(folder) / "sst5");
  struct Expected {
    const data::SstSet& set;
    std::size_t sentences, nodes, tokens;
    std::uint32_t longest;
    std::array<int, 5> labels;
  };
  for (const Expected& it : {Expected{train, 8544, 318582, 163563, 52, {1092, 2218, 1624, 2322, 1288}},
                             Expected{dev, 1101, 41447, 21274, 49, {139, 289, 229, 279, 165}},
                             Expected{test, 2210, 82600, 42405, 56, {279, 633, 389, 510, 399}}}) {
    const data::SstTrees& trees = it.set.trees();
    REQUIRE(it.set.size() == it.sentences);
    CHECK(trees.phrases().size() == it.nodes);
    CHECK(trees.tokens().size() == it.tokens);
    std::uint32_t longest = 0;
    std::array<int, 5> labels{};
    for (std::size_t i = 0; i < trees.sentences(); ++i) {
      longest = std::max(longest, trees.phrases(i)[0].tokens);
      ++labels[static_cast<std::size_t>(trees.phrases(i)[0].label)];
    }
    CHECK(longest == it.longest);
    CHECK(labels == it.labels);
  }
  const auto spaced = std::count_if(train.trees().tokens().begin(), train.trees().tokens().end(),
                                    [](auto token) { return token.find("\xc2\xa0") != token.npos; });
  CHECK(spaced == 3);
  CHECK(vocabulary.token(2) == ".");
  CHECK(vocabulary.token(4) == "the");
  CHECK(train.trees().text(train.trees().phrases(0)[0]).substr(0, 22) == "The Rock is destined t");
}
