// Token files: ids of both widths, blocks and their labels, positions of blocks, damaged files.
#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "data_files.hpp"
#include <convoy/data/loader.hpp>
#include <convoy/data/token_file.hpp>

using namespace convoy;
using data::BlockPlaces;
using data::TokenWidth;
using data_files::contains;
using data_files::sentence;

namespace {

/// A file that holds 0, 1, 2, ... modulo 1000.
data::TokenFile counting(const data_files::Folder& folder, std::size_t count,
                         TokenWidth width = TokenWidth::bits16) {
  std::vector<i32> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<i32>(i % 1000);
  data::write_tokens(folder.path / "tokens.bin", ids, width);
  return {folder.path / "tokens.bin", 1000, width};
}

/// The first tokens of an epoch's blocks in order; checks that labels are the ids shifted by one.
std::vector<i32> firsts(const data::TokenBlocks& set, std::int64_t epoch, data::Shard shard = {},
                        std::int64_t batch = 1) {
  data::Loader loader(set, {.batch = batch, .shard = shard, .seed = 6, .shuffle = false});
  std::vector<i32> all;
  loader.start(epoch);
  while (const data::Batch* it = loader.next()) {
    const auto ids = it->as<i32>(0), labels = it->as<i32>(1);
    const std::size_t length = ids.size() / static_cast<std::size_t>(it->rows);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      CHECK(labels[i] == (ids[i] + 1) % 1000);
      if (i % length == 0)
        all.push_back(ids[i]);
      else
        CHECK(ids[i] == labels[i - 1]);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("tokens: ids in memory are those of a file") {
  const data::TokenFile tokens({7, 70'000, 3, 9, 2}, "a text", 80'000);
  CHECK(tokens.size() == 5);
  std::vector<i32> ids(3);
  tokens.part(1, 5).read(1, ids);
  CHECK(ids == std::vector<i32>{3, 9, 2});
  CHECK(sentence<data::DataError>([&] {
          data::TokenFile({1, 9}, "a text", 9).read(0, std::span(ids).first(2));
        }) == "data: a text has id 9 at byte 4, expected one below 9");
  CHECK(sentence<data::DataError>([] { data::TokenFile({}, "a text", 9); }) == "data: a text has no tokens");
}

TEST_CASE("tokens: ids of 16 and of 32 bits come back, little-endian") {
  const data_files::Folder folder;
  const std::vector<i32> ids{0, 1, 255, 256, 65'535, 50'256};
  data::write_tokens(folder.path / "a", ids);
  data::write_tokens(folder.path / "b", ids, TokenWidth::bits32);
  CHECK(std::filesystem::file_size(folder.path / "a") == 12);
  CHECK(std::filesystem::file_size(folder.path / "b") == 24);
  for (const auto& [name, width] : {std::pair{"a", TokenWidth::bits16}, {"b", TokenWidth::bits32}}) {
    const data::TokenFile file(folder.path / name, 65'536, width);
    std::vector<i32> back(6), some(2);
    file.read(0, back);
    CHECK(back == ids);
    file.read(3, some);
    CHECK(some == std::vector<i32>{256, 65'535});
    CHECK_THROWS_AS(file.read(5, some), data::DataError);
    CHECK_THROWS_AS(file.read(~std::size_t{0}, some), data::DataError);
  }
  const data::TokenFile bytes(folder.write("c", {1, 2, 3, 0}), 1000);
  std::vector<i32> two(2);
  bytes.read(0, two);
  CHECK(two == std::vector<i32>{0x201, 3});
  CHECK_THROWS_AS(data::write_tokens(folder.path / "d", std::vector<i32>{65'536}), data::DataError);
  CHECK_THROWS_AS(data::write_tokens(folder.path / "d", std::vector<i32>{-1}, TokenWidth::bits32),
                  data::DataError);
}

TEST_CASE("tokens: aligned blocks cover the text, and the last label is within it") {
  const data_files::Folder folder;
  for (const std::size_t count : {41u, 44u, 45u}) {
    const data::TokenBlocks set(counting(folder, count), {.length = 4, .places = BlockPlaces::aligned});
    CHECK(set.size() == (count - 1) / 4);
    const auto first = firsts(set, 0);
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i] == static_cast<i32>(4 * i));
    CHECK(firsts(set, 1) == first);
  }
}

TEST_CASE("tokens: shifted blocks follow each other from another token in each epoch") {
  const data_files::Folder folder;
  const data::TokenBlocks set(counting(folder, 100, TokenWidth::bits32), {.length = 8});
  CHECK(set.size() == 11);
  std::set<i32> shifts;
  for (std::int64_t epoch = 0; epoch < 100; ++epoch) {
    const auto first = firsts(set, epoch);
    REQUIRE(first.size() == 11);
    CHECK(first[0] < 8);
    for (std::size_t i = 1; i < first.size(); ++i) CHECK(first[i] == first[i - 1] + 8);
    shifts.insert(first[0]);
    CHECK(firsts(set, epoch, {}, 3) == first);
  }
  CHECK(shifts.size() == 8);
}

TEST_CASE("tokens: drawn blocks lie anywhere, the same at any world size") {
  const data_files::Folder folder;
  const data::TokenBlocks set(counting(folder, 500), {.length = 8, .places = BlockPlaces::drawn});
  CHECK(set.size() == 62);
  std::set<i32> seen;
  for (std::int64_t epoch = 0; epoch < 100; ++epoch) {
    const auto first = firsts(set, epoch);
    for (const i32 at : first) seen.insert(at);
    CHECK(first != firsts(set, epoch + 1));
    std::vector<i32> ranks;
    for (int rank = 0; rank < 2; ++rank)
      for (const i32 at : firsts(set, epoch, {rank, 2}, 31)) ranks.push_back(at);
    CHECK(ranks == first);
  }
  CHECK(seen.size() > 480);
  CHECK(*seen.rbegin() <= 491);
}

TEST_CASE("tokens: files that are refused") {
  const data_files::Folder folder;
  const auto refused = [&](const std::filesystem::path& path, TokenWidth width = TokenWidth::bits16) {
    return sentence<data::DataError>([&] { data::TokenFile(path, 10, width); });
  };
  CHECK(contains(refused(folder.path / "nothing"), "nothing cannot be read: No such file"));
  CHECK(contains(refused(folder.path), "is not a regular file"));
  CHECK(contains(refused(folder.write("empty", {})), "empty is empty"));
  CHECK(contains(refused(folder.write("odd", {1, 0, 2})), "odd is 3 bytes long, expected a multiple of 2"));
  CHECK(contains(refused(folder.write("odd", {1, 0, 2, 0, 0, 0}), TokenWidth::bits32),
                 "expected a multiple of 4"));
  CHECK_THROWS_AS(data::TokenFile(folder.write("a", {1, 0}), 0), ConfigError);

  const data::TokenFile file(folder.write("large", {1, 0, 2, 0, 10, 0, 3, 0, 4, 0}), 10);
  std::vector<i32> ids(4);
  CHECK(contains(sentence<data::DataError>([&] { file.read(1, ids); }),
                 "large has id 10 at byte 4, expected one below 10"));
  REQUIRE(mkfifo((folder.path / "pipe").c_str(), 0600) == 0);
  CHECK(contains(sentence<data::DataError>([&] { data::TokenFile(folder.path / "pipe", 10); }),
                 "pipe is not a regular file"));
  const data::TokenFile wide(folder.write("wide", {1, 0, 0, 0, 0, 0, 0, 255}), 10, TokenWidth::bits32);
  CHECK(contains(sentence<data::DataError>([&] { wide.read(0, std::span(ids).first(2)); }),
                 "has id 4278190080 at byte 4"));
  CHECK(contains(
      sentence<ConfigError>([&] { data::TokenBlocks(file, {.length = 5, .places = BlockPlaces::aligned}); }),
      "a text of 5 tokens is too short for a block of 5"));
  CHECK(data::TokenBlocks(file, {.length = 4, .places = BlockPlaces::aligned}).size() == 1);
  CHECK_THROWS_AS(data::TokenBlocks(file, {.length = 4}), ConfigError);
  CHECK_THROWS_AS(data::TokenBlocks(file, {.length = 0}), ConfigError);
  const data::TokenBlocks set(file, {.length = 2, .places = BlockPlaces::aligned});
  const data::Samples out(set.fields(), 1);
  CHECK_THROWS_AS(data::read(set, 2, out), data::DataError);
}
