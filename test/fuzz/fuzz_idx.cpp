// IDX files: the input is a byte for the expected number of extents and whether the file is gzip, then the
// file. The array that is read has the size that its extents say.
#include "fuzz.hpp"
#include <convoy/data/idx.hpp>

using namespace convoy;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size < 1) return 0;
  const fuzz::File file(bytes + 1, size - 1, bytes[0] & 4 ? ".gz" : "");
  const int rank = 1 + bytes[0] % 4;
  fuzz::attempt([&] {
    const data::IdxArray array = data::read_idx(file.path(), rank);
    std::size_t elements = 1, sum = 0;
    for (const std::uint32_t extent : array.extents) elements *= extent;
    fuzz::expect(array.extents.size() == static_cast<std::size_t>(rank) && array.size == elements,
                 "extents that are not the array's");
    for (std::size_t i = 0; i < array.size; ++i) sum += array.bytes[i];
    fuzz::expect(sum <= 255 * elements, "bytes that are none");
  });
  return 0;
}
