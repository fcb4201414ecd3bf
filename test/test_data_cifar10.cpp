// CIFAR-10's binary files, good and damaged; crops and mirrors.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/data/cifar10.hpp>
#include <convoy/data/cropped.hpp>
#include <convoy/data/loader.hpp>

using namespace convoy;
using data_files::Bytes;
using data_files::contains;
using data_files::sentence;

namespace {

constexpr std::size_t record = 3073;

/// Records with labels `first`, `first` + 1, ... modulo 10, and pixel i of image n = (i * 7 + n) % 251.
Bytes records(int count, int first = 0) {
  Bytes bytes;
  for (int n = 0; n < count; ++n) {
    bytes.push_back(static_cast<unsigned char>((first + n) % 10));
    for (int i = 0; i < 3072; ++i) bytes.push_back(static_cast<unsigned char>((i * 7 + first + n) % 251));
  }
  return bytes;
}

void write_all(const data_files::Folder& folder) {
  for (int i = 1; i <= 5; ++i) folder.write("data_batch_" + std::to_string(i) + ".bin", records(i, 10 * i));
  folder.write("test_batch.bin", records(4, 3));
}

data::ImageSet one_set() {
  const data_files::Folder folder;
  const std::filesystem::path files[] = {folder.write("a", records(6))};
  return data::cifar10_images(files);
}

}  // namespace

TEST_CASE("cifar10: the files' records in their order, normalized by channel") {
  const data_files::Folder folder;
  write_all(folder);
  const auto [train, test] = data::cifar10(folder.path);
  REQUIRE(train.size() == 15);
  REQUIRE(test.size() == 4);
  CHECK(train.image() == Image{3, 32, 32});
  CHECK(train.classes() == 10);
  CHECK(train.label(3) == 0);  // the first of the third file
  CHECK(train.label(5) == 2);
  CHECK(test.label(1) == 4);
  CHECK(train.pixels(3)[5] == (5 * 7 + 30) % 251);
  const data::Samples out(train.fields(), 1);
  train.read(3, out.row(0));
  const auto image = out.row(0).as<f32>(0);
  const float means[] = {0.4914f, 0.4822f, 0.4465f}, deviations[] = {0.2470f, 0.2435f, 0.2616f};
  for (std::size_t c = 0; c < 3; ++c)
    for (const std::size_t i : {std::size_t{0}, std::size_t{1023}})
      CHECK(image[c * 1024 + i] ==
            doctest::Approx((static_cast<float>(train.pixels(3)[c * 1024 + i]) / 255.0f - means[c]) /
                            deviations[c]));
  // The folder layout of the unpacked archive.
  const data_files::Folder above;
  std::filesystem::rename(folder.path, above.path / "cifar-10-batches-bin");
  CHECK(data::cifar10(above.path).train.size() == 15);
}

TEST_CASE("cifar10: files that are damaged or missing") {
  const data_files::Folder folder;
  write_all(folder);
  const auto refused = [&] { return sentence<data::DataError>([&] { data::cifar10(folder.path); }); };
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, record - 1, record + 1, 2 * record - 1}) {
    Bytes bytes = records(2);
    bytes.resize(size);
    folder.write("data_batch_2.bin", bytes);
    CHECK(contains(refused(), "data_batch_2.bin is " + std::to_string(size) +
                                  " bytes long, expected a multiple of 3073"));
  }
  Bytes bytes = records(3);
  bytes[record] = 10;
  folder.write("data_batch_2.bin", bytes);
  CHECK(contains(refused(), "data_batch_2.bin has label 10 at byte 3073, expected 0 to 9"));
  write_all(folder);
  std::filesystem::remove(folder.path / "test_batch.bin");
  CHECK(contains(refused(), "test_batch.bin does not exist"));
  CHECK(contains(sentence<data::DataError>([&] { data::cifar10(folder.path / "nothing"); }),
                 "there is no folder"));
  const std::filesystem::path packed[] = {folder.write("a.bin.gz", data_files::gzip(records(1)))};
  CHECK(contains(sentence<data::DataError>([&] { data::cifar10_images(packed); }), "unpack it first"));
}

TEST_CASE("cropped: each image is a crop of its padded self, mirrored half of the time, everywhere alike") {
  const data::ImageSet set = one_set();
  const data::Cropped cropped(set, {.padding = 2});
  const auto value = [&](std::size_t index, std::size_t c, int y, int x) {
    const auto table = set.normalized(static_cast<int>(c));
    if (y < 0 || y >= 32 || x < 0 || x >= 32) return table[0];
    return table[set.pixels(index)[c * 1024 + static_cast<std::size_t>(32 * y + x)]];
  };
  std::vector<int> seen(50);
  int mirrored = 0;
  data::Loader loader(cropped, {.batch = 6, .seed = 5});
  for (std::int64_t epoch = 0; epoch < 300; ++epoch) {
    loader.start(epoch);
    const data::Batch* batch = loader.next();
    for (std::size_t r = 0; r < 6; ++r) {
      const auto image = batch->as<f32>(0).subspan(r * 3072, 3072);
      const auto index = static_cast<std::size_t>(batch->as<i32>(1)[r]);
      int found = -1, matches = 0;
      for (int which = 0; which < 50; ++which) {
        const int down = which / 10 - 2, right = which / 2 % 5 - 2;
        bool same = true;
        for (std::size_t i = 0; same && i < 3072; ++i) {
          const int y = static_cast<int>(i % 1024 / 32), x = static_cast<int>(i % 32);
          same = image[i] == value(index, i / 1024, y + down, (which % 2 == 0 ? x : 31 - x) + right);
        }
        if (same) found = which, ++matches;
      }
      REQUIRE(matches == 1);
      ++seen[static_cast<std::size_t>(found)];
      mirrored += found % 2;
    }
  }
  CHECK(*std::min_element(seen.begin(), seen.end()) > 10);  // 36 are expected
  CHECK(*std::max_element(seen.begin(), seen.end()) < 70);
  CHECK(std::abs(mirrored - 900) < 100);
}

TEST_CASE("cropped: drawn from seed, epoch and position, whoever reads") {
  const data::Cropped cropped(one_set());
  const auto epoch_of = [&](std::int64_t epoch, data::Shard shard, std::int64_t batch, std::uint64_t seed) {
    data::Loader loader(cropped, {.batch = batch, .shard = shard, .seed = seed});
    std::vector<float> all;
    loader.start(epoch);
    while (const data::Batch* it = loader.next()) {
      const auto images = it->as<f32>(0);
      all.insert(all.end(), images.begin(), images.end());
    }
    return all;
  };
  const auto whole = epoch_of(1, {}, 6, 0);
  auto both = epoch_of(1, {0, 2}, 3, 0);
  for (const float x : epoch_of(1, {1, 2}, 3, 0)) both.push_back(x);
  CHECK(whole == both);
  CHECK(whole == epoch_of(1, {}, 2, 0));
  CHECK(whole != epoch_of(2, {}, 6, 0));
  CHECK(whole != epoch_of(1, {}, 6, 1));
}

TEST_CASE("cropped: without padding and mirrors the images as they are; what is refused") {
  const data::ImageSet set = one_set();
  const data::Cropped plain(set, {.padding = 0, .flip = false});
  const data::Samples a(set.fields(), 1), b(set.fields(), 1);
  set.read(4, a.row(0));
  data::read(plain, 4, b);
  CHECK(std::equal(a.row(0).as<f32>(0).begin(), a.row(0).as<f32>(0).end(), b.row(0).as<f32>(0).begin()));
  CHECK(b.row(0).as<i32>(1)[0] == 4);
  CHECK_THROWS_AS(data::read(plain, 6, b), data::DataError);
  CHECK_THROWS_AS(data::Cropped(set, {.padding = -1}), ConfigError);
  CHECK_THROWS_AS(data::Cropped(set, {.padding = 32}), ConfigError);
  const data::ImageSet wide(nullptr, nullptr, 0, Image{1, 4, 8}, 10);
  CHECK(data::Cropped(wide, {.padding = 3}).size() == 0);
  CHECK(contains(sentence<ConfigError>([&] { data::Cropped(wide, {.padding = 4}); }),
                 "padding of 4, expected 0 to 3"));
  CHECK_THROWS_AS(
      data::ImageSet(nullptr, nullptr, 0, Image{3, 2, 2}, 10, std::vector<data::Normalization>(2)),
      ConfigError);
}
