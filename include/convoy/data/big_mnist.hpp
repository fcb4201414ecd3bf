// bigMNIST: every MNIST image and deformed copies of it, many times over. Nothing is stored; an image is
// drawn when it is read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <convoy/core/compiled.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/image_set.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/vector_philox.hpp>
#endif

namespace convoy::data {

/// How bigMNIST deforms images; the defaults are those of its published runs.
struct BigMnistOptions {
  int copies = 5;            ///< deformed copies of each image, in addition to the image itself
  int repeats = 200;         ///< how many times the images and their copies are repeated
  float rotation = 20;       ///< largest angle in degrees, to either side
  float translation = 0.2f;  ///< largest shift in each direction, as a fraction of the side
  float smallest = 0.8f;     ///< the scale is drawn from [smallest, largest]
  float largest = 1.2f;
  bool flip = true;      ///< mirror half of the copies left to right
  float elastic = 30;    ///< strength alpha of the elastic deformation
  float smoothness = 5;  ///< sigma of its smoothing, in pixels
};

/// A Dataset of `images.size() * (copies + 1) * repeats` images of 28x28: 72,000,000 from MNIST's training
/// set. Index i is made from image i % n of the n given images. Its copy number is i / n % (copies + 1); copy
/// 0 is the unchanged image. The fields are those of the given set.
///
/// A copy is rotated about its center, scaled, translated, mirrored, and deformed elastically (Simard,
/// Steinkraus, Platt, 2003) as in torchvision: displacements are uniform in [-1, 1], smoothed by a Gaussian
/// of 8 sigma + 1 taps over reflected borders, and multiplied by alpha / 2 pixels. One bilinear sampling of
/// the given image, zero outside, does all of this. The random numbers are a function of (seed, epoch, i).
class BigMnist {
 public:
  static constexpr int side = 28;

  /// Throws ConfigError if the images are not 1x28x28, or an option is out of range.
  explicit BigMnist(ImageSet images, const BigMnistOptions& options = {});

  std::size_t size() const { return size_; }
  std::span<const Field> fields() const { return images_.fields(); }
  /// Throws DataError if there is no such image.
  void fill(const Rows& rows) const;

 private:
  static constexpr int pixels = side * side;
  static constexpr int width = 32;  // padded row length, a multiple of every vector's width

  // Constants of all images.
  struct Tables {
    explicit Tables(float smoothness);

    alignas(64) float across[side][width] = {};  // the smoothing matrix, transposed, rows padded with 0
    alignas(64) float down[side][side] = {};     // the smoothing matrix
    alignas(64) float x[pixels] = {}, y[pixels] = {};
  };
  // One image. Pixel (x, y) is sampled at (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]).
  struct Job {
    const Tables* tables;
    const u8* from;
    float* to;
    std::array<float, 6> m;
    float amplitude;  // of displacements, in pixels
    std::uint64_t key;
    std::uint64_t index;
    float scale, offset;  // a pixel v becomes scale * v + offset
  };
  struct Deform;

  Job draw(Rows::Draw draw, std::size_t index) const;

  ImageSet images_;
  BigMnistOptions options_;
  std::size_t size_ = 0;
  std::shared_ptr<const Tables> tables_;
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION BigMnist::BigMnist(ImageSet images, const BigMnistOptions& options)
    : images_(std::move(images)), options_(options) {
  const auto& o = options;
  if (images_.image() != Image{1, side, side})
    fail<ConfigError>("data: bigMNIST is made of images of [1x28x28], not of ", Shape(images_.image()));
  if (o.copies < 0 || o.repeats < 1)
    fail<ConfigError>("data: bigMNIST needs copies of at least 0 and repeats of at least 1, not ", o.copies,
                      " and ", o.repeats);
  // Beyond these limits, points of the inverse map could be infinite or not a number.
  constexpr float most = 1e6f;
  if (!(o.rotation >= 0 && o.rotation <= most && o.translation >= 0 && o.translation <= most &&
        o.smallest >= 1 / most && o.largest >= o.smallest && o.largest <= most && o.elastic >= 0 &&
        o.elastic <= most && o.smoothness >= 1 / most && o.smoothness <= 6))
    fail<ConfigError>("data: bigMNIST cannot rotate by ", o.rotation, " degrees (0 to 1e6), move by ",
                      o.translation, " (0 to 1e6), scale by ", o.smallest, " to ", o.largest,
                      " (1e-6 to 1e6, in ascending order) or deform by alpha ", o.elastic,
                      " (0 to 1e6) with a sigma of ", o.smoothness, " (1e-6 to 6)");
  const std::size_t copies = static_cast<std::size_t>(o.copies) + 1;
  const auto repeats = static_cast<std::size_t>(o.repeats);
  constexpr std::size_t limit = std::size_t{1} << 62;
  if (images_.size() > limit / copies / repeats)
    fail<ConfigError>("data: bigMNIST of ", images_.size(), " images with ", o.copies, " copies each, ",
                      o.repeats, " times over, has more than 2^62 images");
  size_ = images_.size() * copies * repeats;

  tables_ = std::make_shared<Tables>(o.smoothness);
}

CONVOY_FUNCTION BigMnist::Tables::Tables(float smoothness) {
  // Taps beyond a border are reflected into the image.
  const int reach = static_cast<int>(4 * smoothness);
  double sum = 0;
  const auto tap = [&](int distance) {
    return std::exp(-0.5 * distance * distance / static_cast<double>(smoothness * smoothness));
  };
  for (int d = -reach; d <= reach; ++d) sum += tap(d);
  for (int to = 0; to < side; ++to)
    for (int d = -reach; d <= reach; ++d) {
      int at = std::abs(to + d);
      if (at >= side) at = 2 * (side - 1) - at;
      down[to][at] += static_cast<float>(tap(d) / sum);
    }
  for (int from = 0; from < side; ++from)
    for (int to = 0; to < side; ++to) across[from][to] = down[to][from];
  for (int i = 0; i < pixels; ++i) {
    x[i] = static_cast<float>(i % side);
    y[i] = static_cast<float>(i / side);
  }
}

// The deformation of one image in vectors of W floats.
struct BigMnist::Deform {
  static constexpr int counters = pixels / 4;  // of Philox, each giving 8 numbers of 16 bits, for two fields
  static constexpr int counters_filled = (counters + 15) / 16 * 16;
  static constexpr int bordered = 32;  // row length of the zero-padded image

  struct Work {
    alignas(64) float noise[2][pixels];
    alignas(64) float half[side][width];
    alignas(64) float moved[2][pixels + width];  // a row is stored `width` wide; the next overwrites the rest
    alignas(64) float image[(side + 3) * bordered];
  };

  template <int W>
  CONVOY_INLINE static void run(const Job* job) {
    Work work;
    // The image with a border of zeros: pixel (x, y) is element (y + 1) * 32 + x + 1.
    std::memset(work.image, 0, sizeof work.image);
    for (int y = 0; y < side; ++y)
      for (int x = 0; x < side; ++x)
        work.image[(y + 1) * bordered + x + 1] = static_cast<float>(job->from[y * side + x]);
    if (job->amplitude > 0) {
      draw_noise<W>(*job, work);
      smooth<W>(*job, work, 0);
      smooth<W>(*job, work, 1);
    } else {
      std::memset(work.moved, 0, sizeof work.moved);
    }
    sample<W>(*job, work);
  }

  // Noise uniform in [-1, 1]. Half h of Philox word w of counter c becomes element (2 w + h) * 196 + c of the
  // two fields.
  template <int W>
  CONVOY_INLINE static void draw_noise(const Job& job, Work& work) {
    typedef simd::Vec<std::uint32_t, W> Words;
    typedef simd::Vec<std::int32_t, W> Ints;
    typedef simd::Vec<float, W> Floats;
    alignas(64) float numbers[8][counters_filled];
    for (int first = 0; first < counters_filled; first += W) {
      Words words[4];
      simd::philox<W>({static_cast<std::uint32_t>(first), 0, static_cast<std::uint32_t>(job.index),
                       static_cast<std::uint32_t>(job.index >> 32)},
                      {static_cast<std::uint32_t>(job.key), static_cast<std::uint32_t>(job.key >> 32)},
                      words);
      for (int w = 0; w < 4; ++w)
        for (int half = 0; half < 2; ++half) {
          const Words part = half == 0 ? words[w] & 0xffffu : words[w] >> 16;
          Ints whole;
          Floats number;
          simd::convert(whole, part);
          simd::convert(number, whole);
          number = number * 0x1p-15f - (1 - 0x1p-16f);
          simd::store(&numbers[2 * w + half][first], number);
        }
    }
    for (int i = 0; i < 8; ++i)
      std::memcpy(&work.noise[i / 4][i % 4 * counters], numbers[i], counters * sizeof(float));
  }

  // moved = down * noise * across, where `down` is the smoothing matrix and `across` its transpose.
  template <int W>
  CONVOY_INLINE static void smooth(const Job& job, Work& work, int field) {
    for (int y = 0; y < side; y += 4)
      product<W>(work.noise[field] + y * side, &job.tables->across[0][0], 1.0f, work.half[y], width);
    for (int y = 0; y < side; y += 4)
      product<W>(job.tables->down[y], &work.half[0][0], job.amplitude, work.moved[field] + y * side, side);
  }

  // Four rows of left * right * factor. The row strides are 28 (left), 32 (right) and `stride` (to).
  template <int W>
  CONVOY_INLINE static void product(const float* left, const float* right, float factor, float* to,
                                    int stride) {
    typedef simd::Vec<float, W> Floats;
    constexpr int vectors = width / W;
    Floats sums[4][vectors] = {};
    for (int k = 0; k < side; ++k) {
      CONVOY_UNROLL
      for (int v = 0; v < vectors; ++v) {
        Floats row;
        simd::load(row, right + k * width + v * W);
        CONVOY_UNROLL
        for (int r = 0; r < 4; ++r) sums[r][v] += row * left[r * side + k];
      }
    }
    CONVOY_UNROLL
    for (int r = 0; r < 4; ++r) CONVOY_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const Floats scaled = sums[r][v] * factor;
      simd::store(to + r * stride + v * W, scaled);
    }
  }

  // Interpolates each pixel from the four that surround its sampling point.
  template <int W>
  CONVOY_INLINE static void sample(const Job& job, const Work& work) {
    typedef simd::Vec<float, W> Floats;
    typedef simd::Vec<std::int32_t, W> Ints;
    const auto& m = job.m;
    for (int i = 0; i < pixels; i += W) {
      Floats x, y, by;
      simd::load(x, job.tables->x + i);
      simd::load(by, work.moved[0] + i);
      x += by;
      simd::load(y, job.tables->y + i);
      simd::load(by, work.moved[1] + i);
      y += by;
      // In coordinates of the zero-padded image. Points farther out are clamped to the border, which is zero,
      // too.
      Floats u = x * m[0] + y * m[1] + (m[2] + 1), v = x * m[3] + y * m[4] + (m[5] + 1);
      const Floats zero = {}, last = zero + static_cast<float>(side + 1);
      u = u < zero ? zero : u;
      v = v < zero ? zero : v;
      u = u > last ? last : u;
      v = v > last ? last : v;
      Ints left, above;
      simd::convert(left, u);
      simd::convert(above, v);
      Floats whole;
      simd::convert(whole, left);
      u -= whole;
      simd::convert(whole, above);
      v -= whole;
      const Ints at = above * bordered + left;
      alignas(64) float corners[4][W];
      for (int lane = 0; lane < W; ++lane) {
        const float* p = work.image + at[lane];
        corners[0][lane] = p[0];
        corners[1][lane] = p[1];
        corners[2][lane] = p[bordered];
        corners[3][lane] = p[bordered + 1];
      }
      Floats corner[4];
      for (int c = 0; c < 4; ++c) simd::load(corner[c], corners[c]);
      const Floats upper = corner[0] + u * (corner[1] - corner[0]),
                   lower = corner[2] + u * (corner[3] - corner[2]);
      const Floats value = (upper + v * (lower - upper)) * job.scale + job.offset;
      simd::store(job.to + i, value);
    }
  }
};

CONVOY_FUNCTION BigMnist::Job BigMnist::draw(Rows::Draw draw, std::size_t index) const {
  const auto& o = options_;
  Philox random = random_of(draw, index, 0x6269676d6e697374ull);
  constexpr float degree = 3.14159265358979f / 180, center = (side - 1) / 2.0f;
  const float angle = random.uniform(-o.rotation, o.rotation) * degree;
  const float right = random.uniform(-o.translation, o.translation) * side;
  const float down = random.uniform(-o.translation, o.translation) * side;
  const float scale = random.uniform(o.smallest, o.largest);
  const bool mirrored = random.uniform() < 0.5f && o.flip;
  // The inverse map, from a pixel of the copy to a point of the image.
  const float c = std::cos(angle) / scale, s = std::sin(angle) / scale;
  std::array<float, 6> m{c,  s, center - c * (center + right) - s * (center + down),
                         -s, c, center + s * (center + right) - c * (center + down)};
  if (mirrored)
    for (std::size_t row = 0; row < 6; row += 3) {
      m[row + 2] += m[row] * (side - 1);
      m[row] = -m[row];
    }
  Job job{};
  job.tables = tables_.get();
  job.m = m;
  job.amplitude = o.elastic / 2;
  job.key = hash_of(static_cast<std::uint64_t>(draw.epoch), hash_of(0x656c6173746963ull, hash_of(draw.seed)));
  job.index = index;
  const auto table = images_.normalized(0);
  job.scale = (table[255] - table[0]) / 255;
  job.offset = table[0];
  return job;
}

CONVOY_FUNCTION void BigMnist::fill(const Rows& rows) const {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::size_t index = rows.index(r);
    if (index >= size_) fail<DataError>("data: image ", index, " was asked for, but bigMNIST holds ", size_);
    const std::size_t image = index % images_.size();
    if (index / images_.size() % (static_cast<std::size_t>(options_.copies) + 1) == 0) {
      images_.read(image, rows[r]);
      continue;
    }
    Job job = draw(rows.draw(), index);
    job.from = images_.pixels(image).data();
    job.to = rows[r].as<f32>(0).data();
    simd::run<Deform>(&std::as_const(job));
    rows[r].as<i32>(1)[0] = images_.label(image);
  }
}

#endif

}  // namespace convoy::data
