// Cropped: images shifted and mirrored at random, the augmentation of CIFAR (Lee et al., "Deeply-Supervised
// Nets", 2015; He et al., "Deep Residual Learning for Image Recognition", 2016).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <convoy/data/image_set.hpp>
#include <convoy/data/stored_images.hpp>

namespace convoy::data {

/// A Dataset of random crops of a set's images, drawn from (seed, epoch, position). The fields are those of
/// the set.
class Cropped {
 public:
  /// Throws ConfigError if the padding is negative or as large as the image.
  explicit Cropped(ImageSet set, const CropOptions& options = {}) : set_(std::move(set)), options_(options) {
    const Image image = set_.image();
    if (options.padding < 0 || options.padding >= std::min(image.height, image.width))
      fail<ConfigError>("data: images of ", image.height, "x", image.width,
                        " cannot be cropped with a padding of ", options.padding, ", expected 0 to ",
                        std::min(image.height, image.width) - 1);
  }

  std::size_t size() const { return set_.size(); }
  std::span<const Field> fields() const { return set_.fields(); }

  /// Throws DataError if there is no such sample.
  void fill(const Rows& rows) const {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::size_t index = rows.index(r);
      if (index >= size())
        fail<DataError>("data: image ", index, " was asked for, but the set holds ", size());
      crop(index,
           Crop(options_, random_of(rows.draw(), static_cast<std::uint64_t>(rows.position(r)), Crop::use)),
           rows[r].as<f32>(0).data());
      rows[r].as<i32>(1)[0] = set_.label(index);
    }
  }

  StoredImages stored_images() const {
    StoredImages stored = set_.stored_images();
    stored.crop = options_;
    return stored;
  }

 private:
  void crop(std::size_t index, const Crop& crop, float* to) const {
    const auto& [down, right, mirrored] = crop;
    const auto [channels, height, width] = set_.image();
    const u8* from = set_.pixels(index).data();
    const int first = std::max(0, -right), last = std::min(width, width - right);
    for (int c = 0; c < channels; ++c, from += height * width) {
      const auto table = set_.normalized(c);
      for (int y = 0; y < height; ++y, to += width) {
        std::fill(to, to + width, table[0]);
        if (y + down < 0 || y + down >= height) continue;
        const u8* line = from + (y + down) * width + right;
        for (int x = first; x < last; ++x) to[mirrored ? width - 1 - x : x] = table[line[x]];
      }
    }
  }

  ImageSet set_;
  CropOptions options_;
};
static_assert(Dataset<Cropped>);

}  // namespace convoy::data
