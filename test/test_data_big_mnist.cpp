// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// ALONE
// bigMNIST: how many images and which, each deformation separately, and all of them against a slow
// computation in double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "data_files.hpp"
#include <convoy/data/big_mnist.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/data/loader.hpp>

using namespace convoy;
using data::BigMnist;
using data_files::contains;
using data_files::sentence;

namespace {

constexpr int side = 28;
constexpr data::BigMnistOptions still{
    .rotation = 0, .translation = 0, .smallest = 1, .largest = 1, .flip = false, .elastic = 0};

const data::ImageSet& images() {
  static const data::ImageSet set = data::digits({.train = 20, .test = 0, .threads = 1}).train;
  return set;
}

std::vector<float> read(const BigMnist& set, std::size_t index, data::Rows::Draw draw) {
  const data::Samples out(set.fields(), 1);
  const std::uint64_t indices[] = {index};
  set.fill(data::Rows(out.fields(), out.columns().data(), 0, indices, 77, draw));
  CHECK(out.row(0).as<i32>(1)[0] == images().label(index % 20));
  const auto image = out.row(0).as<f32>(0);
  return {image.begin(), image.end()};
}

double pixel(std::size_t image, int x, int y) {
  if (x < 0 || y < 0 || x >= side || y >= side) return 0;
  return images().pixels(image)[static_cast<std::size_t>(side * y + x)];
}

/// The bytes of image `index` as the header describes them, in double precision.
std::vector<double> slowly(const data::BigMnistOptions& o, std::size_t index, data::Rows::Draw draw) {
  Philox random = data::random_of(draw, index, 0x6269676d6e697374ull);
  const double angle = static_cast<double>(random.uniform(-o.rotation, o.rotation)) * std::acos(-1.0) / 180;
  const double right = static_cast<double>(random.uniform(-o.translation, o.translation)) * side;
  const double down = static_cast<double>(random.uniform(-o.translation, o.translation)) * side;
  const double scale = random.uniform(o.smallest, o.largest);
  const bool mirrored = random.uniform() < 0.5f && o.flip;

  const std::uint64_t key =
      hash_of(static_cast<std::uint64_t>(draw.epoch), hash_of(0x656c6173746963ull, hash_of(draw.seed)));
  std::vector<double> noise(2 * side * side);
  for (std::uint32_t counter = 0; counter < 196; ++counter) {
    const auto words =
        philox({counter, 0, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32)},
               {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
    for (std::size_t i = 0; i < 8; ++i)
      noise[i * 196 + counter] = ((words[i / 2] >> (16 * (i % 2)) & 0xffff) + 0.5) / 32768 - 1;
  }
  const int reach = static_cast<int>(4 * o.smoothness);
  const auto tap = [&](int d) { return std::exp(-0.5 * d * d / o.smoothness / o.smoothness); };
  double sum = 0;
  for (int d = -reach; d <= reach; ++d) sum += tap(d);
  const auto reflected = [](int at) { return at < 0 ? -at : at >= side ? 2 * (side - 1) - at : at; };
  const auto smoothed = [&](int field, int x, int y) {
    double value = 0;
    for (int i = -reach; i <= reach; ++i)
      for (int j = -reach; j <= reach; ++j)
        value +=
            tap(i) * tap(j) / sum / sum *
            noise[static_cast<std::size_t>(field * side * side + reflected(y + i) * side + reflected(x + j))];
    return value;
  };

  std::vector<double> all;
  for (int y = 0; y < side; ++y)
    for (int x = 0; x < side; ++x) {
      double u = x, v = y;
      if (o.elastic > 0) {
        u += o.elastic / 2 * smoothed(0, x, y);
        v += o.elastic / 2 * smoothed(1, x, y);
      }
      if (mirrored) u = side - 1 - u;
      const double center = (side - 1) / 2.0, a = u - center - right, b = v - center - down;
      const double p = center + (std::cos(angle) * a + std::sin(angle) * b) / scale;
      const double q = center + (-std::sin(angle) * a + std::cos(angle) * b) / scale;
      const int left = static_cast<int>(std::floor(p)), above = static_cast<int>(std::floor(q));
      double value = 0;
      for (int dy = 0; dy < 2; ++dy)
        for (int dx = 0; dx < 2; ++dx)
          value += pixel(index % 20, left + dx, above + dy) * (dx == 1 ? p - left : 1 - p + left) *
                   (dy == 1 ? q - above : 1 - q + above);
      all.push_back(value);
    }
  return all;
}

double normalized(double byte) { return (byte / 255 - 0.1307) / 0.3081; }

}  // namespace

TEST_CASE("big mnist: every image as it is, and copies, over and over") {
  const BigMnist set(images());
  CHECK(set.size() == 20u * 6 * 200);
  CHECK(BigMnist(images(), {.copies = 0, .repeats = 3}).size() == 60);
  const data::Samples plain(images().fields(), 1);
  for (const std::size_t index : {0u, 7u, 120u, 127u, 23'880u}) {
    images().read(index % 20, plain.row(0));
    const auto expected = plain.row(0).as<f32>(0);
    CHECK(read(set, index, {1, 1}) == std::vector<float>(expected.begin(), expected.end()));
  }
  for (const std::size_t index : {20u, 47u, 119u, 23'999u}) {
    images().read(index % 20, plain.row(0));
    const auto original = plain.row(0).as<f32>(0);
    CHECK(read(set, index, {1, 1}) != std::vector<float>(original.begin(), original.end()));
  }
  const data::Samples out(set.fields(), 1);
  CHECK_THROWS_AS(data::read(set, set.size(), out), data::DataError);
}

TEST_CASE("big mnist: the values of a slow computation, deformations one by one and together") {
  data::BigMnistOptions rotated = still, moved = still, scaled = still, mirrored = still, elastic = still,
                        rough = still;
  rotated.rotation = 20;
  moved.translation = 0.2f;
  scaled.smallest = 0.8f, scaled.largest = 1.2f;
  mirrored.flip = true;
  elastic.elastic = 30;
  rough.elastic = 12, rough.smoothness = 1.5f;
  data::BigMnistOptions wild;  // moves out of the image on every side
  wild.rotation = 180, wild.translation = 1, wild.smallest = 0.2f, wild.largest = 3, wild.elastic = 300;
  for (const auto& options :
       {still, rotated, moved, scaled, mirrored, elastic, rough, data::BigMnistOptions{}, wild}) {
    const BigMnist set(images(), options);
    for (const std::size_t index : {20u, 53u, 119u, 2390u}) {
      const auto fast = read(set, index, {9, 4});
      const auto slow = slowly(options, index, {9, 4});
      double worst = 0;
      for (std::size_t i = 0; i < fast.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(fast[i]) - normalized(slow[i])));
      CHECK(worst < 2e-3);
    }
  }
}

TEST_CASE("big mnist: half of the copies are mirrored, and none leaves its bounds") {
  data::BigMnistOptions options = still;
  options.flip = true;
  const BigMnist set(images(), options);
  int mirrored = 0, plain = 0;
  for (std::int64_t epoch = 0; epoch < 400; ++epoch) {
    const auto image = read(set, 20 + 5, {3, epoch});
    double as_is = 0, turned = 0;
    for (int y = 0; y < side; ++y)
      for (int x = 0; x < side; ++x) {
        const double value = image[static_cast<std::size_t>(side * y + x)];
        as_is = std::max(as_is, std::abs(value - normalized(pixel(5, x, y))));
        turned = std::max(turned, std::abs(value - normalized(pixel(5, side - 1 - x, y))));
      }
    mirrored += turned < 1e-4;
    plain += as_is < 1e-4;
  }
  CHECK(mirrored + plain == 400);
  CHECK(mirrored > 150);
  CHECK(mirrored < 250);
}

TEST_CASE("big mnist: what is drawn is a function of seed, epoch and index") {
  const BigMnist set(images());
  const auto it = read(set, 31, {1, 2});
  CHECK(it == read(set, 31, {1, 2}));
  CHECK(it != read(set, 31, {1, 3}));
  CHECK(it != read(set, 31, {2, 2}));
  CHECK(it != read(set, 31 + 120, {1, 2}));
  // Two ranks read the samples that one rank reads.
  const auto step_of = [&](data::Shard shard, std::int64_t batch) {
    data::Loader loader(set, {.batch = batch, .shard = shard, .seed = 8});
    loader.start(3, 11);
    const auto images = loader.next()->as<f32>(0);
    return std::vector<float>(images.begin(), images.end());
  };
  auto both = step_of({0, 2}, 20);
  for (const float x : step_of({1, 2}, 20)) both.push_back(x);
  CHECK(both == step_of({}, 40));
}

TEST_CASE("big mnist: nothing is allocated for a batch") {
  const BigMnist set(images(), {.repeats = 2});
  data::Loader loader(set, {.batch = 40});
  loader.start(0);
  while (loader.next() != nullptr) {
  }
  const long before = allocations;
  loader.start(1);
  while (loader.next() != nullptr) {
  }
  CHECK(allocations == before);
}

TEST_CASE("big mnist: more images than can be counted are refused") {
  constexpr int most = std::numeric_limits<int>::max();
  CHECK(BigMnist(images(), {.copies = most, .repeats = 1}).size() == 20 * (std::size_t{1} << 31));
  CHECK(contains(sentence<ConfigError>([] { BigMnist(images(), {.copies = most, .repeats = most}); }),
                 "bigMNIST of 20 images with 2147483647 copies each, 2147483647 times over, has more than "
                 "2^62 images"));
}

TEST_CASE("big mnist: what is refused") {
  const auto refused = [](const data::BigMnistOptions& options) {
    return sentence<ConfigError>([&] { BigMnist(images(), options); });
  };
  CHECK(contains(refused({.copies = -1}), "not -1 and 200"));
  CHECK(contains(refused({.repeats = 0}), "not 5 and 0"));
  CHECK(contains(refused({.rotation = -1}), "rotate by -1 degrees"));
  CHECK(contains(refused({.smallest = 0}), "scale by 0 to 1.2"));
  CHECK(contains(refused({.smallest = 1.5f}), "scale by 1.5 to 1.2"));
  CHECK(contains(refused({.elastic = -2}), "alpha -2"));
  CHECK(contains(refused({.smoothness = 7}), "sigma of 7"));
  // These would lead to points that are not numbers.
  constexpr float infinite = std::numeric_limits<float>::infinity();
  CHECK(contains(refused({.rotation = infinite}), "rotate by inf degrees (0 to 1e6)"));
  CHECK(contains(refused({.translation = infinite}), "move by inf (0 to 1e6)"));
  CHECK(contains(refused({.smallest = 1e-38f}), "scale by 1e-38 to 1.2 (1e-6 to 1e6"));
  CHECK(contains(refused({.largest = infinite}), "to inf (1e-6 to 1e6"));
  CHECK(contains(refused({.elastic = infinite}), "alpha inf (0 to 1e6)"));
  CHECK(contains(refused({.smoothness = 1e-30f}), "sigma of 1e-30 (1e-6 to 6)"));
  const std::shared_ptr<u8[]> none(new u8[4]());
  CHECK(contains(sentence<ConfigError>([&] {
                   BigMnist(data::ImageSet(none, none, 1, Image{1, 2, 2}, 10));
                 }),
                 "images of [1x28x28], not of [1x2x2]"));
}
