// CIFAR-10 (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009) in its binary version.
#pragma once

#include <filesystem>
#include <span>

#include <convoy/core/compiled.hpp>
#include <convoy/data/image_set.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <convoy/data/byte_source.hpp>
#endif

namespace convoy::data {

/// Images of 3x32x32 in ten classes from files of records: a label byte, then 1024 bytes each of red, green
/// and blue, row by row. Normalized by the means and standard deviations of the training set's channels.
/// Throws DataError with the file and the offset if a file is missing, is not made of whole records, or has a
/// label above 9.
ImageSet cifar10_images(std::span<const std::filesystem::path> files);

/// CIFAR-10 from `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` in `dir`, or in its subfolder
/// `cifar-10-batches-bin`, as the archive unpacks. Throws DataError as `cifar10_images` does.
ImageSplit cifar10(const std::filesystem::path& dir);

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION ImageSet cifar10_images(std::span<const std::filesystem::path> files) {
  constexpr std::size_t image = 3 * 32 * 32, record = 1 + image;
  std::vector<std::uint64_t> counts;
  std::uint64_t count = 0;
  for (const auto& path : files) {
    const ByteSource source(path);
    if (source.gzip()) fail<DataError>("data: ", source.path(), " is compressed; unpack it first");
    if (source.file_size() == 0 || source.file_size() % record != 0)
      fail<DataError>("data: ", source.path(), " is ", source.file_size(),
                      " bytes long, expected a multiple of ", record,
                      ", the size of a record: it is truncated or not CIFAR-10");
    counts.push_back(source.file_size() / record);
    count += counts.back();
  }
  const std::shared_ptr<u8[]> pixels(new u8[count * image]), labels(new u8[count]);
  std::size_t at = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    ByteSource source(files[f]);
    for (std::uint64_t i = 0; i < counts[f]; ++i, ++at) {
      const std::span<u8> label(labels.get() + at, 1), bytes(pixels.get() + at * image, image);
      const std::size_t label_bytes = source.read(std::as_writable_bytes(label));
      if (label_bytes + source.read(std::as_writable_bytes(bytes)) != record)
        fail<DataError>("data: ", source.path(), " ended while it was read, within the record at byte ",
                        i * record);
      if (label[0] > 9)
        fail<DataError>("data: ", source.path(), " has label ", int{label[0]}, " at byte ", i * record,
                        ", expected 0 to 9");
    }
    source.expect_end();
  }
  return {pixels, labels,
          count,  Image{3, 32, 32},
          10,     std::vector<Normalization>{{0.4914f, 0.2470f}, {0.4822f, 0.2435f}, {0.4465f, 0.2616f}}};
}

CONVOY_FUNCTION ImageSplit cifar10(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error))
    fail<DataError>("data: there is no folder ", dir.string(), " to read CIFAR-10 from");
  const auto unpacked = dir / "cifar-10-batches-bin";
  const auto folder = std::filesystem::is_directory(unpacked, error) ? unpacked : dir;
  std::vector<std::filesystem::path> train;
  for (int i = 1; i <= 5; ++i) train.push_back(folder / ("data_batch_" + std::to_string(i) + ".bin"));
  const std::filesystem::path test[] = {folder / "test_batch.bin"};
  return {cifar10_images(train), cifar10_images(test)};
}

#endif

}  // namespace convoy::data
