// Resized: bilinear images; other fields unchanged.
#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/resized.hpp>

using namespace convoy;
using data_files::contains;
using data_files::sentence;

namespace {

/// Two planes, the second ten times the first, between an id and a label.
struct Planes {
  Shape image;
  std::array<data::Field, 3> all{data::Field{"id", DType::i32, {}}, data::Field{"image", DType::f32, image},
                                 data::Field{"label", DType::u8, {2}}};
  std::size_t size() const { return 5; }
  std::span<const data::Field> fields() const { return all; }
  void read(std::size_t index, data::Sample out) const {
    out.as<i32>(0)[0] = static_cast<i32>(index);
    const auto pixels = out.as<f32>(1);
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      const std::size_t plane = pixels.size() / 2;
      pixels[i] = static_cast<float>(i % plane + index) * (i < plane ? 1.0f : 10.0f);
    }
    out.as<u8>(2)[0] = out.as<u8>(2)[1] = static_cast<u8>(index + 7);
  }
};
static_assert(data::Dataset<data::Resized<Planes>> && data::Dataset<data::Resized<data::DatasetRef>>);

std::vector<float> resized(Shape from, int height, int width, std::size_t index = 0) {
  const Planes planes{from};
  const data::Resized set(data::DatasetRef(&planes), "image", height, width);
  REQUIRE(set.size() == 5);
  REQUIRE(set.fields()[1].shape == Shape{2, height, width});
  const data::Samples out(set.fields(), 2);
  data::read(set, index, out, 1);
  CHECK(out.row(1).as<i32>(0)[0] == static_cast<i32>(index));
  CHECK(out.row(1).as<u8>(2)[1] == index + 7);
  const auto pixels = out.row(1).as<f32>(1);
  const std::size_t plane = pixels.size() / 2;
  for (std::size_t i = 0; i < plane; ++i) CHECK(pixels[plane + i] == doctest::Approx(10 * pixels[i]));
  return {pixels.begin(), pixels.begin() + static_cast<std::ptrdiff_t>(plane)};
}

}  // namespace

TEST_CASE("resized: the values of PyTorch's bilinear interpolation") {
  CHECK(resized({2, 1, 4}, 1, 8) == std::vector<float>{0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3});
  CHECK(resized({2, 2, 2}, 3, 3, 1) == std::vector<float>{1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4});
  CHECK(resized({2, 4, 1}, 2, 1) == std::vector<float>{0.5, 2.5});
  CHECK(resized({2, 2, 3}, 2, 3, 4) == std::vector<float>{4, 5, 6, 7, 8, 9});
  CHECK(resized({2, 1, 1}, 2, 2, 3) == std::vector<float>{3, 3, 3, 3});
}

TEST_CASE("resized: what cannot be resized is refused") {
  const auto refused = [](std::string_view field, int height, int width) {
    return sentence<ConfigError>([&] { data::Resized(Planes{{2, 4, 4}}, field, height, width); });
  };
  CHECK(contains(refused("picture", 8, 8), "there is no field 'picture'"));
  CHECK(contains(refused("label", 8, 8), "field 'label' is u8"));
  CHECK(contains(refused("image", 8, 0), "field 'image' cannot be resized to 8x0"));
}
