// IDX, the format of MNIST and its relatives: a magic number, the extents, then the elements. The claims of
// the header are checked against the size of the file before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>

#if CONVOY_DEFINITIONS
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <convoy/data/byte_source.hpp>
#include <convoy/data/error.hpp>
#endif

namespace convoy::data {

/// An array of unsigned bytes from an IDX file, outermost extent first. Copies share the elements.
struct IdxArray {
  std::vector<std::uint32_t> extents;
  std::shared_ptr<const u8[]> bytes;
  std::size_t size = 0;
};

/// Reads an IDX file of unsigned bytes with `rank` extents, gzip if its name ends in `.gz`.
/// Throws DataError with the file, the field and its offset if the file is missing, is not an IDX file, holds
/// another element type or rank, or holds fewer or more elements than its header claims. Never allocates more
/// than the header claims, nor before the claim has been checked against the size of the file.
IdxArray read_idx(const std::filesystem::path& path, int rank);

#if CONVOY_DEFINITIONS

namespace detail {

inline std::string_view name_of_idx_type(unsigned code) {
  switch (code) {
    case 0x08:
      return "unsigned bytes";
    case 0x09:
      return "signed bytes";
    case 0x0b:
      return "16-bit integers";
    case 0x0c:
      return "32-bit integers";
    case 0x0d:
      return "floats";
    case 0x0e:
      return "doubles";
    default:
      return {};
  }
}

/// Reads the magic number of an IDX file, and checks that it is that of unsigned bytes with `rank` extents.
inline void expect_idx_magic(ByteSource& source, int rank) {
  const std::string& name = source.path();
  unsigned char magic[4];
  if (source.read(std::as_writable_bytes(std::span(magic))) != sizeof(magic))
    fail<DataError>("data: ", name, " is too short for an IDX file: its magic number needs 4 bytes");
  if (magic[0] != 0 || magic[1] != 0 || name_of_idx_type(magic[2]).empty()) {
    const unsigned value =
        unsigned{magic[0]} << 24 | unsigned{magic[1]} << 16 | unsigned{magic[2]} << 8 | magic[3];
    fail<DataError>("data: ", name, " is not an IDX file: the magic number at byte 0 is ", value,
                    ", expected ", 0x800 + rank);
  }
  if (magic[2] != 0x08)
    fail<DataError>("data: ", name, " holds ", name_of_idx_type(magic[2]), " (type code ", int{magic[2]},
                    " at byte 2), expected unsigned bytes (8)");
  if (magic[3] != rank)
    fail<DataError>("data: ", name, " has ", int{magic[3]}, " extents (byte 3), expected ", rank,
                    rank == 3   ? ": it does not hold images"
                    : rank == 1 ? ": it does not hold labels"
                                : "");
}

/// Reads the extents, whose product is at most `limit`, and returns the product.
inline std::uint64_t read_idx_extents(ByteSource& source, int rank, std::uint64_t limit,
                                      std::vector<std::uint32_t>& extents) {
  const std::string& name = source.path();
  std::uint64_t size = 1;
  for (int i = 0; i < rank; ++i) {
    unsigned char b[4];
    if (source.read(std::as_writable_bytes(std::span(b))) != sizeof(b))
      fail<DataError>("data: ", name, " ends inside its header: extent ", i, " at byte ", 4 + 4 * i,
                      " is missing");
    const std::uint32_t extent =
        std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
    if (extent == 0)
      fail<DataError>("data: ", name, " has extent 0 at byte ", 4 + 4 * i, ", expected at least 1");
    // Dividing, because a product of extents of 32 bits can overflow 64 bits.
    if (extent > limit / size)
      fail<DataError>("data: ", name, " is truncated or mislabeled: extent ", i, " at byte ", 4 + 4 * i,
                      " is ", extent, ", but a file of ", source.file_size(), " bytes holds at most ", limit,
                      " elements");
    size *= extent;
    extents.push_back(extent);
  }
  return size;
}

}  // namespace detail

CONVOY_FUNCTION IdxArray read_idx(const std::filesystem::path& path, int rank) {
  ByteSource source(path);
  const std::string& name = source.path();
  detail::expect_idx_magic(source, rank);
  const std::uint64_t header = 4 + 4 * static_cast<std::uint64_t>(rank);
  const std::uint64_t limit = source.limit() > header ? source.limit() - header : 0;
  IdxArray array;
  const std::uint64_t size = detail::read_idx_extents(source, rank, limit, array.extents);
  if (!source.gzip() && size != limit)
    fail<DataError>("data: ", name, " is ", size < limit ? "larger" : "smaller",
                    " than its header announces: ", limit, " bytes of elements, expected ", size);

  array.size = static_cast<std::size_t>(size);
  std::shared_ptr<u8[]> bytes(new u8[array.size]);
  const std::size_t got = source.read(std::as_writable_bytes(std::span(bytes.get(), array.size)));
  if (got != array.size)
    fail<DataError>("data: ", name, " is truncated: it holds ", got, " elements, its header announces ",
                    size);
  source.expect_end();
  array.bytes = std::move(bytes);
  return array;
}

#endif

}  // namespace convoy::data
