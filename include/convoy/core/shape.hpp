// Shape: the extents of one sample of a tensor; the batch is not part of it.
#pragma once

#include <cstdint>
#include <ostream>

namespace convoy {

/// At most four extents, outermost first: {channels, height, width} for an image, {features} for a vector, {}
/// for a scalar. A structural type, so that it can be a template argument.
struct Shape {
  static constexpr int max_rank = 4;
  int extent[max_rank] = {};
  int rank = 0;

  constexpr Shape() = default;
  constexpr Shape(int a) : extent{a}, rank(1) {}
  constexpr Shape(int a, int b) : extent{a, b}, rank(2) {}
  constexpr Shape(int a, int b, int c) : extent{a, b, c}, rank(3) {}
  constexpr Shape(int a, int b, int c, int d) : extent{a, b, c, d}, rank(4) {}

  constexpr int operator[](int i) const { return extent[i]; }

  /// The number of elements; 1 for a scalar.
  constexpr std::int64_t size() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= extent[i];
    return n;
  }

  friend constexpr bool operator==(const Shape&, const Shape&) = default;

  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '[';
    for (int i = 0; i < shape.rank; ++i) out << (i ? "x" : "") << shape.extent[i];
    return out << ']';
  }
};

/// The shape of an image, as a template argument of a model: `ResNet18<Image{1, 28, 28}, 10>`.
struct Image {
  int channels = 0, height = 0, width = 0;
  constexpr operator Shape() const { return {channels, height, width}; }
  friend constexpr bool operator==(const Image&, const Image&) = default;
};

}  // namespace convoy
