// ImageSet: labeled images, held as shared bytes and normalized as they are read.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/stored_images.hpp>

namespace convoy::data {

/// Mean and standard deviation of pixels scaled to 0..1, by which images are normalized. The defaults are
/// those of MNIST's training set.
struct Normalization {
  float mean = 0.1307f, deviation = 0.3081f;
};

/// A Dataset of gray or planar color images with labels. Fields: "image", f32, {channels, height, width},
/// normalized as (pixel / 255 - mean) / deviation; "label", i32, scalar. A copy shares the pixels.
class ImageSet {
 public:
  /// `pixels` holds `count` images of `image`'s size one after the other, `labels` a label below `classes`
  /// for each.
  ImageSet(std::shared_ptr<const u8[]> pixels, std::shared_ptr<const u8[]> labels, std::size_t count,
           Image image, int classes, Normalization normalization = {})
      : ImageSet(std::move(pixels), std::move(labels), count, image, classes,
                 std::vector(static_cast<std::size_t>(image.channels), normalization)) {}

  /// The same with one normalization per channel. Throws ConfigError if their number is not that of the
  /// channels.
  ImageSet(std::shared_ptr<const u8[]> pixels, std::shared_ptr<const u8[]> labels, std::size_t count,
           Image image, int classes, const std::vector<Normalization>& normalization)
      : pixels_(std::move(pixels)),
        labels_(std::move(labels)),
        count_(count),
        image_(image),
        classes_(classes),
        normalized_(normalization.size()) {
    if (normalization.size() != static_cast<std::size_t>(image.channels))
      fail<ConfigError>("data: there are ", normalization.size(), " normalizations for images of ",
                        image.channels, " channels, expected one per channel");
    fields_ = {Field{"image", DType::f32, image}, Field{"label", DType::i32, {}}};
    for (std::size_t c = 0; c < normalization.size(); ++c)
      for (std::size_t v = 0; v < 256; ++v)
        normalized_[c][v] =
            (static_cast<float>(v) / 255.0f - normalization[c].mean) / normalization[c].deviation;
  }

  std::size_t size() const { return count_; }
  std::span<const Field> fields() const { return fields_; }

  /// Writes image and label `index`. Throws DataError if there is no such sample.
  void read(std::size_t index, Sample out) const {
    if (index >= count_) fail<DataError>("data: image ", index, " was asked for, but the set holds ", count_);
    f32* to = out.as<f32>(0).data();
    const std::size_t plane = fields_[0].elements() / normalized_.size();
    const u8* from = pixels_.get() + index * fields_[0].elements();
    for (const auto& table : normalized_)
      for (std::size_t i = 0; i < plane; ++i) *to++ = table[*from++];
    out.as<i32>(1)[0] = labels_[static_cast<std::ptrdiff_t>(index)];
  }

  Image image() const { return image_; }
  int classes() const { return classes_; }
  /// The bytes of one image, 0 = background, 255 = ink.
  std::span<const u8> pixels(std::size_t index) const {
    const std::size_t size = fields_[0].elements();
    return {pixels_.get() + index * size, size};
  }
  /// The value that `read` writes for each of the 256 byte values of a channel.
  std::span<const float, 256> normalized(int channel) const {
    return normalized_[static_cast<std::size_t>(channel)];
  }
  /// What a device may store in place of the set's rows.
  StoredImages stored_images() const {
    return {image_, {pixels_.get(), count_ * fields_[0].elements()}, {labels_.get(), count_}, normalized_};
  }
  int label(std::size_t index) const { return labels_[static_cast<std::ptrdiff_t>(index)]; }

  /// The first `count` images (all, if there are fewer).
  ImageSet first(std::size_t count) const {
    ImageSet part = *this;
    part.count_ = std::min(count_, count);
    return part;
  }

 private:
  std::shared_ptr<const u8[]> pixels_, labels_;
  std::size_t count_;
  Image image_;
  int classes_;
  std::array<Field, 2> fields_;
  std::vector<std::array<float, 256>> normalized_;  // of each channel
};

/// A training set and a test set from the same source.
struct ImageSplit {
  ImageSet train, test;
};

}  // namespace convoy::data
