// Files that tests of the data room write: a temporary folder, IDX headers, gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include <zlib.h>

#include "temporary_folder.hpp"

namespace data_files {

using Bytes = std::vector<unsigned char>;

struct Folder : TemporaryFolder {
  std::filesystem::path write(const std::string& name, const Bytes& bytes) const {
    std::ofstream out(path / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path / name;
  }
};

/// An IDX file: 0, 0, type, rank, the extents, then `elements` bytes with values 0, 1, 2, ... modulo
/// `modulus`.
inline Bytes idx(std::initializer_list<std::uint32_t> extents, std::size_t elements, unsigned modulus = 256,
                 unsigned char type = 0x08) {
  Bytes bytes{0, 0, type, static_cast<unsigned char>(extents.size())};
  for (std::uint32_t extent : extents)
    for (int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<unsigned char>(extent >> shift));
  for (std::size_t i = 0; i < elements; ++i) bytes.push_back(static_cast<unsigned char>(i % modulus));
  return bytes;
}

/// `bytes` as one gzip member.
inline Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  Bytes out(deflateBound(&stream, bytes.size()) + 32);
  stream.next_in = const_cast<unsigned char*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The message of the `E` that `action` throws; empty if it throws none.
template <class E, class Action>
std::string sentence(Action action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace data_files
