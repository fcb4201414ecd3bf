// The generated digits: a pure function, balanced, varied, and not distinguished by their mean image alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/data/digits.hpp>
#include <convoy/data/glyphs.hpp>

using namespace convoy;

namespace {
bool same(std::span<const u8> a, std::span<const u8> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}
}  // namespace

TEST_CASE("digits: the same images for any number of threads, others for another seed") {
  const auto one = data::digits({.train = 333, .test = 50, .seed = 5, .threads = 1});
  const auto three = data::digits({.train = 333, .test = 50, .seed = 5, .threads = 3});
  const auto other = data::digits({.train = 333, .test = 50, .seed = 6, .threads = 2});
  REQUIRE(one.train.size() == 333);
  REQUIRE(one.test.size() == 50);
  int equal_to_other = 0, equal_to_test = 0;
  for (std::size_t i = 0; i < 333; ++i) {
    CHECK(same(one.train.pixels(i), three.train.pixels(i)));
    CHECK(one.train.label(i) == static_cast<int>(i % 10));
    equal_to_other += same(one.train.pixels(i), other.train.pixels(i));
    equal_to_test += i < 50 && same(one.train.pixels(i), one.test.pixels(i));
  }
  for (std::size_t i = 0; i < 50; ++i) CHECK(same(one.test.pixels(i), three.test.pixels(i)));
  CHECK(equal_to_other == 0);
  CHECK(equal_to_test == 0);
}

TEST_CASE("digits: every image has ink on an empty border, gray edges, and about MNIST's mean") {
  const auto set = data::digits({.train = 2000, .test = 0, .seed = 9}).train;
  double sum = 0;
  std::size_t gray = 0, border = 0;
  for (std::size_t i = 0; i < set.size(); ++i) {
    const auto image = set.pixels(i);
    CHECK(*std::max_element(image.begin(), image.end()) > 100);
    const auto inked = std::count_if(image.begin(), image.end(), [](u8 p) { return p > 60; });
    CHECK(inked > 12);
    CHECK(inked < 450);
    for (std::size_t p = 0; p < 784; ++p) {
      sum += image[p];
      gray += image[p] > 20 && image[p] < 180;
      if (p < 28 || p >= 756 || p % 28 == 0 || p % 28 == 27) border += image[p] > 60;
    }
  }
  const double mean = sum / (2000.0 * 784 * 255);
  CHECK(mean > 0.09);
  CHECK(mean < 0.16);
  CHECK(gray > 2000 * 20);   // anti-aliased
  CHECK(border < 2000 * 2);  // hardly any stroke is cut off
}

TEST_CASE("digits: harder than the nearest mean image, and varied within a class") {
  const auto [train, test] = data::digits({.train = 3000, .test = 1000, .seed = 2});
  std::array<std::vector<double>, 10> mean;
  for (auto& m : mean) m.assign(784, 0);
  for (std::size_t i = 0; i < train.size(); ++i)
    for (std::size_t p = 0; p < 784; ++p) mean[i % 10][p] += train.pixels(i)[p] / 300.0;
  int right = 0;
  for (std::size_t i = 0; i < test.size(); ++i) {
    std::array<double, 10> distance{};
    for (std::size_t c = 0; c < 10; ++c)
      for (std::size_t p = 0; p < 784; ++p) distance[c] += std::pow(test.pixels(i)[p] - mean[c][p], 2);
    right += std::min_element(distance.begin(), distance.end()) - distance.begin() == test.label(i);
  }
  CHECK(right > 400);  // they are digits (chance: 100)
  CHECK(right < 850);  // but not identical copies
}

TEST_CASE("digits: each digit can be written in several ways, its points within the square") {
  for (int digit = 0; digit < 10; ++digit) {
    CAPTURE(digit);
    const auto ways = data::glyphs_of(digit);
    CHECK(ways.size() >= 3);
    for (const data::Glyph& glyph : ways) {
      CHECK(glyph.digit == digit);
      CHECK(glyph.count >= 1);
      for (int s = 0; s < glyph.count; ++s) {
        CHECK(glyph.stroke[s].count >= 2);
        for (int p = 0; p < glyph.stroke[s].count; ++p) {
          CHECK(std::abs(glyph.stroke[s].point[p].x - 0.5f) <= 0.5f);
          CHECK(std::abs(glyph.stroke[s].point[p].y - 0.5f) <= 0.5f);
        }
      }
    }
  }
}
