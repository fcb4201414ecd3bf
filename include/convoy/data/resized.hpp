// Resized: a data set's images, resized as they are read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/data/dataset.hpp>

namespace convoy::data {

/// The Dataset `D` with one field, an image of f32 planes, resized: bilinear interpolation between pixel
/// centers, as PyTorch's `interpolate(mode="bilinear")` and OpenCV's `resize` do without antialiasing. All
/// other fields are copied. Holds a `D`, which may be a DatasetRef.
template <class D, bool valid = require_dataset<D>()>
class Resized {
 public:
  /// Throws ConfigError if there is no such field, it is not an image of f32, or a size is not positive.
  Resized(D set, std::string_view field, int height, int width) : set_(std::move(set)) {
    const auto inner = set_.fields();
    fields_.assign(inner.begin(), inner.end());
    const auto found =
        std::find_if(fields_.begin(), fields_.end(), [&](const Field& f) { return f.name.view() == field; });
    if (found == fields_.end()) fail<ConfigError>("data: there is no field '", field, "' to resize");
    if (found->dtype != DType::f32 || found->shape.rank != 3)
      fail<ConfigError>("data: only an image of f32, [channels x height x width], can be resized; field '",
                        field, "' is ", name_of(found->dtype), " ", found->shape);
    if (height < 1 || width < 1)
      fail<ConfigError>("data: field '", field, "' cannot be resized to ", height, "x", width);
    resized_ = static_cast<std::size_t>(found - fields_.begin());
    from_ = found->shape;
    rows_ = taps(from_[1], height);
    columns_ = taps(from_[2], width);
    found->shape = Shape{from_[0], height, width};
  }

  std::size_t size() const { return set_.size(); }
  std::span<const Field> fields() const { return fields_; }

  void fill(const Rows& rows) const {
    const Samples inner(set_.fields(), 1);
    const Sample from = inner.row(0);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::uint64_t index[] = {rows.index(r)};
      data::fill(set_, Rows(inner.fields(), inner.columns().data(), 0, index, rows.position(r), rows.draw()));
      const Sample out = rows[r];
      for (std::size_t i = 0; i < fields_.size(); ++i)
        if (i != resized_) std::memcpy(out.bytes(i).data(), from.bytes(i).data(), fields_[i].bytes());
      resize(from.as<f32>(resized_).data(), out.as<f32>(resized_).data());
    }
  }

 private:
  // An element of the result is interpolated from two of the source: low + (high - low) * weight.
  struct Tap {
    std::size_t low = 0, high = 0;
    float weight = 0;
  };

  static std::vector<Tap> taps(int from, int to) {
    std::vector<Tap> all(static_cast<std::size_t>(to));
    for (int i = 0; i < to; ++i) {
      const double center = (i + 0.5) * from / to - 0.5;
      const double inside = std::clamp(center, 0.0, from - 1.0);
      const int low = static_cast<int>(inside);
      all[static_cast<std::size_t>(i)] = {static_cast<std::size_t>(low),
                                          static_cast<std::size_t>(std::min(low + 1, from - 1)),
                                          static_cast<float>(inside - low)};
    }
    return all;
  }

  void resize(const float* from, float* to) const {
    const auto height = static_cast<std::size_t>(from_[1]), width = static_cast<std::size_t>(from_[2]);
    std::vector<float> line(width);
    for (int c = 0; c < from_[0]; ++c, from += height * width)
      for (const Tap& row : rows_) {
        const float *low = from + row.low * width, *high = from + row.high * width;
        for (std::size_t x = 0; x < width; ++x) line[x] = low[x] + (high[x] - low[x]) * row.weight;
        for (const Tap& column : columns_)
          *to++ = line[column.low] + (line[column.high] - line[column.low]) * column.weight;
      }
  }

  D set_;
  std::vector<Field> fields_;
  std::size_t resized_ = 0;
  Shape from_;
  std::vector<Tap> rows_, columns_;
};

/// The Resized of a type that is not a Dataset: accepts everything, so that the error of `require_dataset` is
/// the only one.
template <class D>
class Resized<D, false> {
 public:
  Resized(D, std::string_view, int, int) {}
  std::size_t size() const { return 0; }
  std::span<const Field> fields() const { return {}; }
  void fill(const Rows&) const {}
};

}  // namespace convoy::data
