// Shape: the extents of one sample of a tensor and their meaning. The batch dimension is not included.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/core/dtype.hpp>
#include <convoy/core/hd.hpp>

namespace convoy {

/// At most four extents, outermost first: {channels, height, width} for an image, {features} for a row, {}
/// for a number. A structural type, so that it can be a template argument. Device code may read a Shape.
struct Shape {
  static constexpr int max_rank = 4;
  int extent[max_rank] = {};
  int rank = 0;

  constexpr Shape() = default;
  constexpr Shape(int a) : extent{a}, rank(1) {}
  constexpr Shape(int a, int b) : extent{a, b}, rank(2) {}
  constexpr Shape(int a, int b, int c) : extent{a, b, c}, rank(3) {}
  constexpr Shape(int a, int b, int c, int d) : extent{a, b, c, d}, rank(4) {}

  CONVOY_HD constexpr int operator[](int i) const { return extent[i]; }
  /// The innermost extent; 1 for a number.
  CONVOY_HD constexpr int last() const { return rank == 0 ? 1 : extent[rank - 1]; }

  /// The number of elements; 1 for a number.
  CONVOY_HD constexpr std::int64_t size() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= extent[i];
    return n;
  }

  /// Not defaulted: g++ 14 makes `a == a && b != c` false in constant expressions if a member is an array.
  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    for (int i = 0; i < max_rank; ++i)
      if (a.extent[i] != b.extent[i]) return false;
    return a.rank == b.rank;
  }

  friend void append_to(std::string& text, const Shape& shape) {
    text += '[';
    for (int i = 0; i < shape.rank; ++i)
      text.append(i > 0 ? "x" : "").append(std::to_string(shape.extent[i]));
    text += ']';
  }
  template <class Out>
  friend auto operator<<(Out& out, const Shape& shape) -> decltype(out.write("", 0), out) {
    std::string text;
    append_to(text, shape);
    return out << text;
  }
};

/// The kind of a value. The meaning of the extents and the permitted memory layouts follow from the kind,
/// never from the number of extents: only an image may be stored in blocks of channels.
enum class Kind : unsigned char {
  number,    ///< {}
  row,       ///< {features}
  sequence,  ///< {positions, features}
  image,     ///< {channels, height, width}
};

constexpr std::string_view name_of(Kind kind) {
  constexpr std::string_view names[] = {"number", "row", "sequence", "image"};
  return names[static_cast<int>(kind)];
}

/// The default kind for a shape, by its number of extents.
constexpr Kind kind_of(const Shape& shape) {
  return shape.rank == 0   ? Kind::number
         : shape.rank == 1 ? Kind::row
         : shape.rank == 2 ? Kind::sequence
                           : Kind::image;
}

/// The shape of an image, as a template argument of a model: `ResNet18<Image{1, 28, 28}, 10>`.
struct Image {
  int channels = 0, height = 0, width = 0;
  constexpr operator Shape() const { return {channels, height, width}; }
  friend constexpr bool operator==(const Image&, const Image&) = default;
};

/// The shape of a sequence, as a template argument of a model.
struct Sequence {
  int positions = 0, features = 0;
  constexpr operator Shape() const { return {positions, features}; }
  friend constexpr bool operator==(const Sequence&, const Sequence&) = default;
};

}  // namespace convoy
