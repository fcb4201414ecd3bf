// Byte-pair encoding as in GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners",
// 2019; Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016). A
// pattern splits text into words, and a list of merges joins the bytes of a word into pieces.
#pragma once

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

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <bit>
#include <functional>
#include <unordered_map>
#include <utility>

#include <convoy/data/text_file.hpp>
#include <convoy/data/unicode.hpp>
#endif

namespace convoy::data {

/// Encodes text as ids and decodes ids as text. Every byte string has an encoding, which `decode` turns back
/// into the string. Copies share the merges.
///
/// The merges alone determine the ids, as in GPT-2's `vocab.json`: first the 256 bytes, in the order of the
/// characters that stand for them in `merges.txt`, then the result of each merge, then the end-of-text id. So
/// no second file can contradict the merges.
class Bpe {
 public:
  /// Appends the ids of a text. `<|endoftext|>` is encoded like any other text.
  void encode(std::string_view text, std::vector<i32>& ids) const;
  std::vector<i32> encode(std::string_view text) const {
    std::vector<i32> ids;
    encode(text, ids);
    return ids;
  }

  /// The bytes that the ids stand for; `end_of_text()` stands for none. Throws DataError for an id out of
  /// range.
  std::string decode(std::span<const i32> ids) const;

  /// The number of ids; 50257 for GPT-2.
  int size() const { return end_of_text() + 1; }
  /// The id that separates texts, which is the last one.
  i32 end_of_text() const { return static_cast<i32>(merges_->tokens.size()); }

 private:
  friend Bpe parse_bpe(std::string_view text, std::string_view name);
  Bpe() = default;  // without merges, which every member needs

  // Two adjacent ids and the id they merge into: a slot of a hash table with linear probing.
  struct Merge {
    std::uint64_t pair = 0;
    i32 rank = -1, id = 0;  // a negative rank marks an empty slot
  };
  struct Merges {
    std::vector<std::string> tokens;  // the bytes of each id
    std::vector<Merge> slots;
    int shift = 0;  // 64 - log2(number of slots)
    i32 id_of_byte[256];

    const Merge* find(i32 left, i32 right) const {
      const std::uint64_t pair = std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
      for (std::size_t at = slot_of(pair);; at = (at + 1) & (slots.size() - 1)) {
        if (slots[at].rank < 0) return nullptr;
        if (slots[at].pair == pair) return &slots[at];
      }
    }
    // Gives the bytes their ids. Returns the byte for which each character of a file stands, or -1.
    std::vector<int> number_bytes();
    void insert(const Merge& merge) {
      std::size_t at = slot_of(merge.pair);
      while (slots[at].rank >= 0) at = (at + 1) & (slots.size() - 1);
      slots[at] = merge;
    }
    // The upper bits of the product depend on all bits of both ids.
    std::size_t slot_of(std::uint64_t pair) const {
      return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15ull) >> shift);
    }
  };
  struct Work;

  void merge_short(Work& work) const;
  void merge_long(Work& work) const;

  std::shared_ptr<const Merges> merges_;
};

/// Reads merges from a file in the format of GPT-2's `merges.txt` (also called `vocab.bpe`): two pieces a
/// line, in order of rank. A first line `#version: ...` is skipped. The file is gzip if its name ends in
/// `.gz`. Throws DataError with file, line and offset for a line that is not two pieces, a piece that is
/// neither a byte nor the result of an earlier merge, and a repeated merge.
Bpe read_bpe(const std::filesystem::path& path);

/// The same from a text; error messages call it `name`.
Bpe parse_bpe(std::string_view text, std::string_view name);

/// The end of the word that begins at `at`, by GPT-2's pattern
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. A byte that is not valid
/// UTF-8 counts as neither letter, number nor space.
std::size_t end_of_gpt2_word(std::string_view text, std::size_t at);

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION std::size_t end_of_gpt2_word(std::string_view text, std::size_t at) {
  enum class Kind { letter, number, space, other, end };
  std::size_t bytes = 0;  // length of the character that `kind` classified last
  const auto kind = [&](std::size_t i) {
    bytes = 0;
    if (i >= text.size()) return Kind::end;
    const unicode::Decoded next = unicode::decode(text, i);
    bytes = next.bytes;
    if (!next.valid) return Kind::other;
    const unsigned is = unicode::flags(next.code_point);
    if ((is & unicode::letter) != 0) return Kind::letter;
    if ((is & unicode::number) != 0) return Kind::number;
    return unicode::is_space(next.code_point) ? Kind::space : Kind::other;
  };
  const std::string_view rest = text.substr(at);
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (rest.substr(0, ending.size()) == ending) return at + ending.size();

  std::size_t end = at;
  Kind first = kind(at);
  if (text[at] == ' ') {
    const Kind second = kind(at + 1);
    if (second != Kind::space && second != Kind::end) {
      first = second;
      ++end;
    }
  }
  std::size_t last = end;
  while (kind(end) == first) {
    last = end;
    end += bytes;
  }
  // The last of several spaces before other text is left for the next word.
  return first == Kind::space && end < text.size() && last > at ? last : end;
}

// A word's ids, and the scratch memory of merging.
struct Bpe::Work {
  struct Candidate {
    i32 rank;
    std::size_t at;
    i32 left, right, id;  // the ids at `at` and after it when queued, and their merge
    bool operator>(const Candidate& other) const {
      return std::pair(rank, at) > std::pair(other.rank, other.at);
    }
  };
  std::vector<i32> ids;
  std::vector<std::size_t> before, behind;  // the linked list of a long word's ids
  std::vector<Candidate> queue, same;
};

CONVOY_FUNCTION void Bpe::encode(std::string_view text, std::vector<i32>& ids) const {
  constexpr std::size_t is_long = 48;
  Work work;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_gpt2_word(text, at);
    work.ids.clear();
    for (; at < end; ++at) work.ids.push_back(merges_->id_of_byte[static_cast<unsigned char>(text[at])]);
    if (work.ids.size() < is_long)
      merge_short(work);
    else
      merge_long(work);
    ids.insert(ids.end(), work.ids.begin(), work.ids.end());
  }
}

// Applies the merge of lowest rank everywhere in the word, until no neighbors merge.
CONVOY_FUNCTION void Bpe::merge_short(Work& work) const {
  auto& word = work.ids;
  while (word.size() > 1) {
    const Merge* best = nullptr;
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      const Merge* here = merges_->find(word[i], word[i + 1]);
      if (here != nullptr && (best == nullptr || here->rank < best->rank)) best = here;
    }
    if (best == nullptr) return;
    const i32 left = static_cast<i32>(best->pair >> 32), right = static_cast<i32>(best->pair & 0xffffffffu);
    std::size_t to = 0;
    for (std::size_t i = 0; i < word.size(); ++i) {
      if (i + 1 < word.size() && word[i] == left && word[i + 1] == right) {
        word[to++] = best->id;
        ++i;
      } else {
        word[to++] = word[i];
      }
    }
    word.resize(to);
  }
}

// The same with a priority queue of candidates: `merge_short` is quadratic, and words of megabytes exist.
CONVOY_FUNCTION void Bpe::merge_long(Work& work) const {
  auto& word = work.ids;
  constexpr i32 gone = -1;
  const std::size_t none = word.size();
  work.before.resize(word.size());
  work.behind.resize(word.size());
  for (std::size_t i = 0; i < word.size(); ++i) {
    work.before[i] = i == 0 ? none : i - 1;
    work.behind[i] = i + 1;
  }
  auto& queue = work.queue;
  queue.clear();
  const auto offer = [&](std::size_t at) {
    const std::size_t next = work.behind[at];
    if (next == none) return;
    if (const Merge* merge = merges_->find(word[at], word[next])) {
      queue.push_back({merge->rank, at, word[at], word[next], merge->id});
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
  };
  for (std::size_t i = 0; i + 1 < word.size(); ++i) offer(i);
  while (!queue.empty()) {
    // All merges of one rank, from left to right, before any candidate that they create.
    work.same.clear();
    const i32 rank = queue.front().rank;
    while (!queue.empty() && queue.front().rank == rank) {
      std::pop_heap(queue.begin(), queue.end(), std::greater<>());
      work.same.push_back(queue.back());
      queue.pop_back();
    }
    for (auto& it : work.same) {
      const std::size_t next = work.behind[it.at];
      if (word[it.at] != it.left || next == none || word[next] != it.right) {
        it.rank = -1;
        continue;
      }
      word[it.at] = it.id;
      word[next] = gone;
      work.behind[it.at] = work.behind[next];
      if (work.behind[next] != none) work.before[work.behind[next]] = it.at;
    }
    for (const auto& it : work.same) {
      if (it.rank < 0) continue;
      if (work.before[it.at] != none) offer(work.before[it.at]);
      offer(it.at);
    }
  }
  std::erase(word, gone);
}

CONVOY_FUNCTION std::string Bpe::decode(std::span<const i32> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= size())
      fail<DataError>("data: id ", ids[i], " at position ", i, " is not in a vocabulary of ", size(), " ids");
    if (ids[i] != end_of_text()) text += merges_->tokens[static_cast<std::size_t>(ids[i])];
  }
  return text;
}

CONVOY_FUNCTION Bpe read_bpe(const std::filesystem::path& path) {
  return parse_bpe(read_text(path), path.string());
}

CONVOY_FUNCTION std::vector<int> Bpe::Merges::number_bytes() {
  // A byte that is a printable Latin-1 character is written as that character, the others as the characters
  // from U+0100 on. Ids number the bytes in the order of these characters.
  std::vector<int> byte_of(256 + 68, -1);
  char32_t unprintable = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    byte_of[printable ? static_cast<std::size_t>(byte) : unprintable++] = byte;
  }
  for (const int byte : byte_of) {
    if (byte < 0) continue;
    id_of_byte[byte] = static_cast<i32>(tokens.size());
    tokens.emplace_back(1, static_cast<char>(static_cast<unsigned char>(byte)));
  }
  return byte_of;
}

CONVOY_FUNCTION Bpe parse_bpe(std::string_view text, std::string_view name) {
  auto merges = std::make_shared<Bpe::Merges>();
  const std::vector<int> byte_of = merges->number_bytes();
  std::unordered_map<std::string, i32> ids;
  for (const std::string& token : merges->tokens) ids.emplace(token, static_cast<i32>(ids.size()));

  // At most one merge a line; at least half of the slots stay empty.
  const auto lines_at_most = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  merges->slots.resize(std::bit_ceil(2 * lines_at_most + 2));
  merges->shift = std::countl_zero(std::uint64_t{merges->slots.size()}) + 1;
  i32 rank = 0;
  for (Lines lines(text); lines.next();) {
    const std::string_view line = lines.line();
    if (lines.offset() == 0 && line.substr(0, 9) == "#version:") continue;
    const auto place = [&](std::size_t in_line) { return place_in(text, lines.offset() + in_line); };
    const std::size_t space = line.find(' ');
    if (space == 0 || space == line.npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != line.npos)
      fail<DataError>("data: ", name, " has ", excerpt(line),
                      " where two pieces with a space between them are expected, at ", place(0));
    const auto piece = [&](std::size_t begin, std::size_t end) {
      std::string bytes;
      for (std::size_t at = begin; at < end;) {
        const unicode::Decoded next = unicode::decode(line, at);
        if (!next.valid || next.code_point >= byte_of.size() || byte_of[next.code_point] < 0)
          fail<DataError>("data: ", name, " has ", excerpt(line.substr(at, next.bytes)),
                          " where a character that stands for a byte is expected, at ", place(at));
        bytes += static_cast<char>(static_cast<unsigned char>(byte_of[next.code_point]));
        at += next.bytes;
      }
      return bytes;
    };
    const auto known = [&](const std::string& bytes, std::size_t at, std::size_t end) {
      const auto found = ids.find(bytes);
      if (found == ids.end())
        fail<DataError>("data: ", name, " has the piece ", excerpt(line.substr(at, end - at)),
                        ", which is neither a byte nor an earlier merge, at ", place(at));
      return found->second;
    };
    std::string left = piece(0, space);
    const std::string right = piece(space + 1, line.size());
    const i32 a = known(left, 0, space), b = known(right, space + 1, line.size());
    const std::uint64_t pair = std::uint64_t(std::uint32_t(a)) << 32 | std::uint32_t(b);
    if (merges->find(a, b) != nullptr)
      fail<DataError>("data: ", name, " has the merge ", excerpt(line), " twice, again at ", place(0));
    left += right;
    // Two merges may make the same piece, which then has one id.
    const auto [made, added] = ids.emplace(std::move(left), static_cast<i32>(merges->tokens.size()));
    if (added) merges->tokens.push_back(made->first);
    merges->insert({pair, rank++, made->second});
  }
  Bpe bpe;
  bpe.merges_ = std::move(merges);
  return bpe;
}

#endif

}  // namespace convoy::data
