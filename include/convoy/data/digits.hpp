// Digits: images like MNIST's that need no download. Pen strokes vary as in handwriting: one of several ways
// to write the digit, jittered points, size, slant, rotation and position, an elastic deformation (Simard,
// Steinkraus, Platt, "Best Practices for Convolutional Neural Networks", 2003), a pen of varying width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <convoy/core/compiled.hpp>
#include <convoy/data/image_set.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include <convoy/core/philox.hpp>
#include <convoy/data/glyphs.hpp>
#include <convoy/parallel/team.hpp>
#endif

namespace convoy::data {

/// Draws digit image `index` of `seed` into 28x28 bytes, 0 = background, 255 = ink, and returns its label,
/// index % 10. A pure function of its arguments.
int draw_digit(std::uint64_t seed, std::uint64_t index, std::span<u8, 784> image);

/// What `digits` draws.
struct DigitsOptions {
  std::size_t train = 12'000, test = 2'000;
  std::uint64_t seed = 1;
  /// Threads that draw the images, at most 64; 0: the hardware concurrency.
  int threads = 0;
};

/// Generated handwritten-style digits, 28x28, ten equally frequent classes: a substitute where MNIST is
/// missing. Takes about 35 us an image on one core. Training and test images share no random numbers. For
/// scale: a linear model reaches 78% on the test images, a perceptron of 256 units 95% after eight epochs, a
/// ResNet-18 99% after two.
ImageSplit digits(const DigitsOptions& options = {});

#if CONVOY_DEFINITIONS

namespace detail {

constexpr int digit_side = 28;

// Not inlined: a digit draws random numbers in many places, and inlined generators would be most of the code.
[[gnu::noinline]] inline float uniform(Philox& random, float low, float high) {
  return random.uniform(low, high);
}
[[gnu::noinline]] inline float normal(Philox& random) { return random.normal(); }

/// A smooth field of displacements: random vectors on a coarse grid, uniform cubic B-splines between them.
class ElasticField {
 public:
  ElasticField(Philox& random, float strength) {
    for (Point& v : grid_) v = {strength * normal(random), strength * normal(random)};
  }
  Point operator()(Point p) const {
    const auto cell = [](float at) { return std::clamp(static_cast<int>(std::floor(at)), 0, cells - 4); };
    const float gx = p.x / spacing + 1, gy = p.y / spacing + 1;
    const int cx = cell(gx - 1), cy = cell(gy - 1);
    const auto wx = weights(gx - 1 - static_cast<float>(cx)), wy = weights(gy - 1 - static_cast<float>(cy));
    Point sum = p;
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t j = 0; j < 4; ++j) {
        const Point& v = grid_[(static_cast<std::size_t>(cy) + i) * cells + static_cast<std::size_t>(cx) + j];
        sum.x += wy[i] * wx[j] * v.x;
        sum.y += wy[i] * wx[j] * v.y;
      }
    return sum;
  }

 private:
  static constexpr int cells = 8;
  static constexpr float spacing = 6;
  static std::array<float, 4> weights(float t) {
    t = std::clamp(t, 0.0f, 1.0f);
    const float u = 1 - t;
    return {u * u * u / 6, (3 * t * t * t - 6 * t * t + 4) / 6, (3 * u * u * u - 6 * u * u + 4) / 6,
            t * t * t / 6};
  }
  std::array<Point, cells * cells> grid_;
};

/// One stroke as a polyline.
struct Path {
  static constexpr int steps = 7;
  int count = 0;
  std::array<Point, Stroke::capacity * steps + 1> point;

  explicit Path(const Stroke& stroke) {
    for (int span = 0; span + 1 < stroke.count; ++span) {
      const Point b = stroke.point[span], c = stroke.point[span + 1];
      const Point a = span > 0 ? stroke.point[span - 1] : b;
      const Point d = span + 2 < stroke.count ? stroke.point[span + 2] : c;
      const auto at = [&](float t, float Point::*axis) {
        if (!stroke.curved) return b.*axis + t * (c.*axis - b.*axis);
        return b.*axis + 0.5f * t *
                             (c.*axis - a.*axis +
                              t * (2 * a.*axis - 5 * b.*axis + 4 * c.*axis - d.*axis +
                                   t * (3 * (b.*axis - c.*axis) + d.*axis - a.*axis)));
      };
      for (int i = span == 0 ? 0 : 1; i <= steps; ++i) {
        const float t = static_cast<float>(i) / steps;
        point[static_cast<std::size_t>(count++)] = {at(t, &Point::x), at(t, &Point::y)};
      }
    }
  }
};

/// Lays ink along a segment whose pen radius goes from `ra` to `rb`; the edge fades over `soft` pixels.
inline void ink(std::span<float> canvas, Point a, Point b, float ra, float rb, float soft) {
  const float reach = std::max(ra, rb) + soft;
  const auto low = [&](float v) {
    return std::clamp(static_cast<int>(std::floor(v - reach)), 0, digit_side);
  };
  const auto high = [&](float v) {
    return std::clamp(static_cast<int>(std::ceil(v + reach)) + 1, 0, digit_side);
  };
  const float dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
  const float inverse = length2 > 0 ? 1 / length2 : 0;
  for (int y = low(std::min(a.y, b.y)); y < high(std::max(a.y, b.y)); ++y)
    for (int x = low(std::min(a.x, b.x)); x < high(std::max(a.x, b.x)); ++x) {
      const float px = static_cast<float>(x) - a.x, py = static_cast<float>(y) - a.y;
      const float t = std::clamp((px * dx + py * dy) * inverse, 0.0f, 1.0f);
      const float ox = px - t * dx, oy = py - t * dy;
      const float edge = ra + t * (rb - ra) - std::sqrt(ox * ox + oy * oy);
      const float cover = std::clamp(0.5f + edge / soft, 0.0f, 1.0f);
      float& pixel = canvas[static_cast<std::size_t>(y * digit_side + x)];
      pixel = std::max(pixel, cover);
    }
}

}  // namespace detail

CONVOY_FUNCTION int draw_digit(std::uint64_t seed, std::uint64_t index, std::span<u8, 784> image) {
  using namespace detail;
  const int label = static_cast<int>(index % 10);
  Philox random(seed ^ 0x646967697473ull, index);
  const auto ways = glyphs_of(label);
  Glyph glyph = ways[random.below(static_cast<std::uint32_t>(ways.size()))];

  for (Stroke& stroke : std::span(glyph.stroke).first(static_cast<std::size_t>(glyph.count)))
    for (Point& p : std::span(stroke.point).first(static_cast<std::size_t>(stroke.count))) {
      p.x += 0.025f * normal(random);
      p.y += 0.025f * normal(random);
    }

  const float turn = std::clamp(0.15f * normal(random), -0.4f, 0.4f), slant = uniform(random, -0.15f, 0.45f);
  const float height = uniform(random, 15.0f, 23.0f), width = height * uniform(random, 0.75f, 1.35f);
  const float cosine = std::cos(turn), sine = std::sin(turn);
  const Point place{13.5f + uniform(random, -2.5f, 2.5f), 13.5f + uniform(random, -2.5f, 2.5f)};
  const ElasticField elastic(random, uniform(random, 0.5f, 2.0f));
  const float pen = uniform(random, 0.65f, 1.9f), soft = uniform(random, 0.8f, 1.6f);
  const float pressure = uniform(random, 0.0f, 0.3f), rhythm = uniform(random, 0.05f, 0.3f);
  const float darkness = uniform(random, 200.0f, 255.0f);

  std::array<float, 784> canvas{};
  for (const Stroke& stroke : std::span(glyph.stroke).first(static_cast<std::size_t>(glyph.count))) {
    Path path(stroke);
    const float phase = uniform(random, 0.0f, 6.2831853f);
    // A hand starts a little late and stops a little early.
    const int first = static_cast<int>(random.below(3)),
              last = path.count - static_cast<int>(random.below(3));
    const auto radius = [&](int i) {
      return pen * (1 + pressure * std::sin(phase + rhythm * static_cast<float>(i)));
    };
    Point before{};
    for (int i = first; i < last; ++i) {
      const Point p = path.point[static_cast<std::size_t>(i)];
      const float y = (p.y - 0.5f) * height, x = (p.x - 0.5f) * width - slant * y;
      const Point now = elastic({place.x + cosine * x - sine * y, place.y + sine * x + cosine * y});
      if (i > first) ink(canvas, before, now, radius(i - 1), radius(i), soft);
      before = now;
    }
  }
  for (std::size_t i = 0; i < canvas.size(); ++i) image[i] = static_cast<u8>(canvas[i] * darkness + 0.5f);
  return label;
}

CONVOY_FUNCTION ImageSplit digits(const DigitsOptions& options) {
  const auto draw = [&](std::size_t count, std::uint64_t start) {
    std::shared_ptr<u8[]> pixels(new u8[count * 784]), labels(new u8[count]);
    const int wanted =
        options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
    const int threads = std::clamp(wanted, 1, 64);
    const auto work = [&, pixels, labels](int thread) {
      const Range part = share(static_cast<std::int64_t>(count), thread, threads);
      for (auto i = part.begin; i < part.end; ++i)
        labels[i] = static_cast<u8>(draw_digit(options.seed, start + static_cast<std::uint64_t>(i),
                                               std::span<u8, 784>(pixels.get() + i * 784, 784)));
    };
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    work(0);
    others.clear();
    return ImageSet(pixels, labels, count, Image{1, 28, 28}, 10);
  };
  constexpr std::uint64_t apart = std::uint64_t{1} << 40;
  ImageSet train = draw(options.train, 0);
  return {train, draw(options.test, apart * 10)};
}

#endif

}  // namespace convoy::data
