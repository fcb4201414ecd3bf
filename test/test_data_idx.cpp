// IDX files: what is read, and the error for each kind of damage.
#include <algorithm>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/data/error.hpp>
#include <convoy/data/idx.hpp>

using namespace convoy;
using namespace data_files;

namespace {
std::string refusal(const std::filesystem::path& file, int rank = 3) {
  return sentence<data::DataError>([&] { data::read_idx(file, rank); });
}
}  // namespace

TEST_CASE("idx: plain and gzip files give the same array") {
  const Folder folder;
  const Bytes file = idx({3, 4, 5}, 60);
  for (const auto& path : {folder.write("a", file), folder.write("a.gz", gzip(file))}) {
    const data::IdxArray array = data::read_idx(path, 3);
    CHECK(array.extents == std::vector<std::uint32_t>{3, 4, 5});
    REQUIRE(array.size == 60);
    for (int i = 0; i < 60; ++i) CHECK(array.bytes[i] == i);
  }
}

TEST_CASE("idx: files longer than one piece of input, and gzip in several members") {
  const Folder folder;
  Bytes file = idx({1000, 28, 28}, 784'000);
  std::uint32_t noise = 1;  // hardly compressible, so that the compressed file is long as well
  for (std::size_t i = 16; i < file.size(); ++i)
    file[i] = static_cast<unsigned char>((noise = noise * 1664525u + 1013904223u) >> 24);
  const Bytes front(file.begin(), file.begin() + 300'001), back(file.begin() + 300'001, file.end());
  for (const auto& path : {folder.write("a", file), folder.write("a.gz", gzip(file)),
                           folder.write("b.gz", gzip(front) + gzip(back))}) {
    const data::IdxArray array = data::read_idx(path, 3);
    REQUIRE(array.size == 784'000);
    CHECK(std::equal(file.begin() + 16, file.end(), array.bytes.get()));
  }
}

TEST_CASE("idx: a plain file of the wrong size") {
  const Folder folder;
  const Bytes file = idx({3, 4, 5}, 60);
  for (std::size_t size = 0; size < file.size(); ++size) {
    const auto path =
        folder.write("short", Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
    CAPTURE(size);
    CHECK(contains(refusal(path), path.string()));
  }
  CHECK(contains(refusal(folder.write("empty", {})), "too short"));
  CHECK(contains(refusal(folder.write("header", Bytes(file.begin(), file.begin() + 10))), "extent"));
  CHECK(contains(refusal(folder.write("long", idx({3, 4, 5}, 61))), "61 bytes of elements, expected 60"));
  CHECK(contains(refusal(folder.write("short", idx({3, 4, 5}, 59))), "holds at most 59 elements"));
}

TEST_CASE("idx: a header that is not one, or not the one expected") {
  const Folder folder;
  const std::string magic = refusal(folder.write("text", {'h', 'e', 'l', 'l', 'o', ' ', 'y', 'o', 'u'}));
  CHECK(contains(magic, "not an IDX file"));
  CHECK(contains(magic, "expected 2051"));
  for (const std::size_t zero : {0u, 1u}) {
    Bytes bytes = idx({1, 2, 2}, 4);
    bytes[zero] = 1;
    CHECK(contains(refusal(folder.write("zeros", bytes)), "not an IDX file"));
  }
  CHECK(contains(refusal(folder.write("float", idx({1, 2, 2}, 16, 256, 0x0d))), "holds floats"));
  CHECK(contains(refusal(folder.write("type", idx({1, 2, 2}, 4, 256, 0x77))), "not an IDX file"));
  CHECK(contains(refusal(folder.write("labels", idx({9}, 9))), "1 extents (byte 3), expected 3"));
  CHECK(contains(refusal(folder.write("images", idx({3, 3, 1}, 9)), 1), "does not hold labels"));
  CHECK(contains(refusal(folder.write("zero", idx({0, 28, 28}, 0))), "extent 0 at byte 4"));
}

TEST_CASE(
    "idx: extents whose product overflows, or exceeds what the file can hold, are refused before "
    "allocating") {
  const Folder folder;
  const std::uint32_t huge = 0xffffffffu;
  for (const Bytes& file :
       {idx({huge, huge, huge}, 100), idx({1u << 31, 1u << 31, 4}, 100), idx({60000, 28, 28}, 100),
        // 2^64 + 100 wraps to the right size
        idx({huge, huge, 1}, 100)}) {
    CHECK(contains(refusal(folder.write("a", file)), "truncated or mislabeled"));
    CHECK(contains(refusal(folder.write("a.gz", gzip(file))), "truncated or mislabeled"));
  }
}

TEST_CASE("idx: gzip that inflates to less or more than its header announces") {
  const Folder folder;
  CHECK(contains(refusal(folder.write("short.gz", gzip(idx({3, 4, 5}, 59)))),
                 "holds 59 elements, its header announces 60"));
  const std::string longer = refusal(folder.write("long.gz", gzip(idx({3, 4, 5}, 61))));
  CHECK(contains(longer, "holds more than the 76 bytes"));
  // A decompression bomb: ten million zeros behind a header that announces sixty bytes.
  CHECK(contains(refusal(folder.write("bomb.gz", gzip(idx({3, 4, 5}, 10'000'000, 1)))),
                 "holds more than the 76 bytes"));
  CHECK(
      contains(refusal(folder.write("members.gz", gzip(idx({3, 4, 5}, 60)) + gzip({1}))), "holds more than"));
}

TEST_CASE("idx: damaged gzip") {
  const Folder folder;
  const Bytes good = gzip(idx({3, 4, 5}, 60));
  for (std::size_t size = 2; size < good.size(); ++size) {
    CAPTURE(size);
    const auto path =
        folder.write("cut.gz", Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)));
    CHECK(contains(refusal(path), "is truncated: its gzip stream does not end"));
  }
  Bytes checksum = good;
  checksum[checksum.size() - 8] ^= 1;  // the CRC of the trailer
  CHECK(contains(refusal(folder.write("crc.gz", checksum)), "is damaged near byte"));
  Bytes length = good;
  length[length.size() - 1] ^= 1;  // the length in the trailer
  CHECK(contains(refusal(folder.write("length.gz", length)), "is damaged near byte"));
  const Bytes elements = idx({}, 60);
  for (std::size_t at = 10; at < good.size();
       ++at) {  // every flipped bit is detected unless it has no meaning
    Bytes flipped = good;
    flipped[at] ^= 0x10;
    CAPTURE(at);
    const auto path = folder.write("flip.gz", flipped);
    if (refusal(path).empty())
      CHECK(std::equal(elements.begin() + 4, elements.end(), data::read_idx(path, 3).bytes.get()));
  }
  CHECK(contains(refusal(folder.write("garbage.gz", good + Bytes{'x', 'y', 'z'})),
                 "something that is not gzip after its end"));
  CHECK(contains(refusal(folder.write("plain.gz", idx({3, 4, 5}, 60))),
                 "is not gzip although its name ends in .gz"));
  CHECK(contains(refusal(folder.write("compressed", good)), "is gzip although its name does not end in .gz"));
}

TEST_CASE("idx: a file that is not there, or not a file") {
  const Folder folder;
  CHECK(contains(refusal(folder.path / "nothing"), "does not exist"));
  CHECK(contains(refusal(folder.path), "is not a regular file"));
  CHECK(contains(refusal("/dev/zero"), "is not a regular file"));
}
