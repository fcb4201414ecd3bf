// Text files as one string, their lines, and the positions that errors name.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/data/text_file.hpp>

using namespace convoy;
using data_files::contains;
using data_files::sentence;

namespace {

data_files::Bytes bytes_of(std::size_t count) {
  data_files::Bytes bytes(count);
  std::uint32_t noise = 1;
  for (auto& byte : bytes) byte = static_cast<unsigned char>((noise = noise * 1664525u + 1013904223u) >> 24);
  return bytes;
}

}  // namespace

TEST_CASE("text: whole files of any length, plain and gzip") {
  const data_files::Folder folder;
  for (const std::size_t size : {0u, 1u, 65'535u, 65'536u, 65'537u, 200'000u}) {
    CAPTURE(size);
    const auto bytes = bytes_of(size);
    const std::string expected(bytes.begin(), bytes.end());
    CHECK(data::read_text(folder.write("a", bytes)) == expected);
    CHECK(data::read_text(folder.write("a.gz", data_files::gzip(bytes))) == expected);
    CHECK(data::read_text(folder.path / "a", size) == expected);
    CHECK(data::read_text(folder.path / "a.gz", size) == expected);
    CHECK(data::read_text(folder.path / "a.gz").capacity() < 1'000'000);  // not the limit's size
    if (size == 0) continue;
    for (const char* name : {"a", "a.gz"})
      CHECK(contains(sentence<data::DataError>([&] { data::read_text(folder.path / name, size - 1); }),
                     std::to_string(size - 1)));
  }
  // Inflating stops early if the contents exceed the limit.
  const auto bomb = folder.write("bomb.gz", data_files::gzip(data_files::Bytes(10'000'000)));
  CHECK(contains(sentence<data::DataError>([&] { data::read_text(bomb, 100'000); }),
                 "holds more than 100000 bytes of text"));
  CHECK_THROWS_AS(data::read_text(folder.path / "nothing"), data::DataError);
}

TEST_CASE("text: lines, with and without carriage returns and a last end") {
  const auto lines = [](std::string_view text) {
    std::string all;
    for (data::Lines it(text); it.next();)
      all += std::to_string(it.offset()) + ":" + std::string(it.line()) + "|";
    return all;
  };
  CHECK(lines("") == "");
  CHECK(lines("\n") == "0:|");
  CHECK(lines("a\nbc") == "0:a|2:bc|");
  CHECK(lines("a\r\n\r\nb\n") == "0:a|3:|5:b|");
  CHECK(lines("a\r\r\n\rb") == "0:a\r|4:\rb|");
}

TEST_CASE("text: places and excerpts") {
  CHECK(data::place_in("ab\ncd\n", 0) == "line 1 (byte 0)");
  CHECK(data::place_in("ab\ncd\n", 2) == "line 1 (byte 2)");
  CHECK(data::place_in("ab\ncd\n", 6) == "line 3 (byte 6)");
  CHECK(data::excerpt("it's\t\x7f\xc3\xa9") == "'it's\\x09\\x7f\\xc3\\xa9'");
  CHECK(data::excerpt(std::string(41, 'a')) == "'" + std::string(40, 'a') + "...'");
}
