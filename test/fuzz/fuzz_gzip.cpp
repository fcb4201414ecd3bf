// gzip: the input is a byte for the size of the pieces in which the file is read, then the file. The file
// holds no more than its size allows, and the same in pieces as at once. The input itself is the same after
// it was compressed into a file and read back.
#include <vector>

#include <zlib.h>

#include "fuzz.hpp"
#include <convoy/data/byte_source.hpp>

using namespace convoy;

namespace {

constexpr std::size_t most = 1 << 20;

// The contents of a file, read `piece` bytes at a time; empty if they have at least `most` bytes.
std::vector<std::byte> all_of(const std::string& path, std::size_t piece) {
  data::ByteSource source(path);
  std::vector<std::byte> all;
  for (std::size_t got = piece; got == piece && all.size() < most;) {
    all.resize(all.size() + piece);
    got = source.read(std::span(all).last(piece));
    all.resize(all.size() - piece + got);
  }
  if (all.size() >= most) return {};
  source.expect_end();
  fuzz::expect(all.size() <= source.limit(), "more than a file of its size can hold");
  return all;
}

std::vector<std::uint8_t> compressed(const std::uint8_t* bytes, std::size_t size) {
  z_stream stream{};
  fuzz::expect(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "no zlib");
  std::vector<std::uint8_t> out(deflateBound(&stream, size));
  stream.next_in = const_cast<Bytef*>(bytes);
  stream.avail_in = static_cast<uInt>(size);
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  fuzz::expect(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib does not compress");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t piece = 1 + bytes[0];
  {
    const fuzz::File file(bytes + 1, size - 1, ".gz");
    fuzz::attempt([&] {
      fuzz::expect(all_of(file.path(), piece) == all_of(file.path(), most), "other bytes in pieces");
    });
  }
  const auto packed = compressed(bytes, size);
  const fuzz::File file(packed.data(), packed.size(), ".gz");
  const auto back = all_of(file.path(), piece);
  fuzz::expect(back.size() == size && std::memcmp(back.data(), bytes, size) == 0,
               "bytes that do not come back");
  return 0;
}
