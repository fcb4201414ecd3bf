// MNIST (LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998) and
// sets in its format, read from a folder.
#pragma once

#include <filesystem>

#include <convoy/core/compiled.hpp>
#include <convoy/data/image_set.hpp>

#if CONVOY_DEFINITIONS
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include <convoy/data/idx.hpp>
#endif

namespace convoy::data {

/// Gray images with labels from two IDX files. Throws DataError as `read_idx` does, and if the counts differ
/// or a label is not below `classes`.
ImageSet idx_images(const std::filesystem::path& image_file, const std::filesystem::path& label_file,
                    int classes, Normalization normalization = {});

/// Whether the four files of MNIST lie in `dir`; does not read them.
bool has_mnist(const std::filesystem::path& dir);

/// MNIST, or a set in its format (Fashion-MNIST), from `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`,
/// `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte` in `dir`, each plain or with `.gz`. Images of 28x28
/// pixels, ten classes. Throws DataError that names the file if it is missing or malformed.
ImageSplit mnist(const std::filesystem::path& dir);

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION ImageSet idx_images(const std::filesystem::path& image_file,
                                    const std::filesystem::path& label_file, int classes,
                                    Normalization normalization) {
  const IdxArray images = read_idx(image_file, 3), labels = read_idx(label_file, 1);
  if (images.extents[0] != labels.extents[0])
    fail<DataError>("data: ", image_file.string(), " holds ", images.extents[0], " images but ",
                    label_file.string(), " holds ", labels.extents[0], " labels");
  for (std::size_t i = 0; i < labels.size; ++i)
    if (const int label = labels.bytes[static_cast<std::ptrdiff_t>(i)]; label >= classes)
      fail<DataError>("data: ", label_file.string(), " has label ", label, " for image ", i, " (byte ", 8 + i,
                      "), expected 0 to ", classes - 1);
  constexpr std::uint32_t largest = 1u << 15;
  if (images.extents[1] > largest || images.extents[2] > largest)
    fail<DataError>("data: ", image_file.string(), " holds images of ", images.extents[1], "x",
                    images.extents[2], " pixels, expected at most ", largest, " a side");
  const Image image{1, static_cast<int>(images.extents[1]), static_cast<int>(images.extents[2])};
  return {images.bytes, labels.bytes, images.extents[0], image, classes, normalization};
}

namespace detail {
/// The file of that name in `dir`, plain or gzip; an empty path if there is neither.
CONVOY_FUNCTION std::filesystem::path find_idx(const std::filesystem::path& dir, const char* name) {
  std::error_code error;
  for (const char* ending : {"", ".gz"})
    if (auto path = dir / (std::string(name) + ending); std::filesystem::exists(path, error)) return path;
  return {};
}
}  // namespace detail

CONVOY_FUNCTION bool has_mnist(const std::filesystem::path& dir) {
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                           "t10k-labels-idx1-ubyte"})
    if (detail::find_idx(dir, name).empty()) return false;
  return true;
}

CONVOY_FUNCTION ImageSplit mnist(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error))
    fail<DataError>("data: there is no folder ", dir.string(), " to read MNIST from");
  const auto read = [&](const char* images, const char* labels) {
    for (const char* name : {images, labels})
      if (detail::find_idx(dir, name).empty())
        fail<DataError>("data: ", (dir / name).string(), " is missing (with and without .gz)");
    const auto image_file = detail::find_idx(dir, images);
    ImageSet set = idx_images(image_file, detail::find_idx(dir, labels), 10);
    if (set.image() != Image{1, 28, 28})
      fail<DataError>("data: ", image_file.string(), " holds images of ", set.image().height, "x",
                      set.image().width, " pixels (bytes 8 and 12), expected 28x28");
    return set;
  };
  ImageSet train = read("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
  return {train, read("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")};
}

#endif

}  // namespace convoy::data
