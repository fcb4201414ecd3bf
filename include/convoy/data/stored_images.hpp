// StoredImages: labeled images as the bytes that a device stores in place of a data set's rows, and how rows
// are made of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include <convoy/core/dtype.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/core/shape.hpp>

namespace convoy::data {

struct CropOptions {
  int padding = 4;   ///< zero pixels added on each side before a random crop of the image's size
  bool flip = true;  ///< mirror half of the crops left to right
};

/// Pixel (y, x) of a crop is (y + down, x + right) of the image, 0 outside, mirrored afterwards.
struct Crop {
  /// The `use` of a row's crop in `random_of`.
  static constexpr std::uint64_t use = 0x63726f70ull;

  int down = 0, right = 0;
  bool mirrored = false;

  constexpr Crop() = default;
  constexpr Crop(const CropOptions& options, Philox random) {
    const auto places = static_cast<std::uint32_t>(2 * options.padding + 1);
    down = static_cast<int>(random.below(places)) - options.padding;
    right = static_cast<int>(random.below(places)) - options.padding;
    mirrored = options.flip && random.below(2) == 1;
  }
};

/// Images and labels of a set of two fields, f32 and i32: byte v of channel c stands for normalized[c][v].
/// Without padding and `flip`, rows are the images themselves. A view: the owner of the bytes must outlive
/// it.
struct StoredImages {
  Image image;
  std::span<const u8> pixels, labels;
  std::span<const std::array<float, 256>> normalized;
  CropOptions crop{.padding = 0, .flip = false};
};

}  // namespace convoy::data
