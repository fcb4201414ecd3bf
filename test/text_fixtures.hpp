// Texts and ids as make_tokenizer_fixtures.py writes them.
#pragma once

#include <charconv>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fixtures/fixtures.hpp"
#include <convoy/core/dtype.hpp>
#include <convoy/data/unicode.hpp>

namespace text_fixtures {

struct Pair {
  std::string text;
  std::vector<convoy::i32> ids;
};

/// Replaces `\u{HEX}` by the character in UTF-8.
inline std::string unescape(const std::string& line) {
  std::string text;
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] != '\\') {
      text += line[at++];
      continue;
    }
    std::uint32_t c = 0;
    const char* end = std::from_chars(line.data() + at + 3, line.data() + line.size(), c, 16).ptr;
    convoy::data::unicode::append(text, c);
    at = static_cast<std::size_t>(end - line.data()) + 1;
  }
  return text;
}

/// The pairs of a fixture file.
inline std::vector<Pair> pairs(const std::string& name) {
  std::ifstream in(fixtures::folder() + "/" + name);
  std::vector<Pair> all;
  std::string text, numbers;
  std::getline(in, text);  // the file's description
  while (std::getline(in, text) && std::getline(in, numbers)) {
    Pair pair{unescape(text), {}};
    std::istringstream ids(numbers);
    for (convoy::i32 id; ids >> id;) pair.ids.push_back(id);
    all.push_back(std::move(pair));
  }
  if (all.empty()) throw std::runtime_error("fixture " + name + ": no texts");
  return all;
}

/// What tokenizer_files.txt has for a whole file.
struct Digest {
  std::size_t count = 0;
  std::uint64_t hash = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

inline Digest digest(const std::vector<convoy::i32>& ids) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const convoy::i32 id : ids)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<std::uint32_t>(id) >> shift & 0xffu)) * 0x100000001b3ull;
  return {ids.size(), hash};
}

/// Files and their digests for one tokenizer.
inline std::vector<std::pair<std::string, Digest>> files(const std::string& tokenizer) {
  std::ifstream in(fixtures::folder() + "/tokenizer_files.txt");
  std::vector<std::pair<std::string, Digest>> all;
  std::string line, name, file;
  std::getline(in, line);
  for (Digest it; in >> name >> file >> it.count >> it.hash;)
    if (name == tokenizer) all.emplace_back(file, it);
  return all;
}

}  // namespace text_fixtures
