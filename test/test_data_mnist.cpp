// MNIST: valid folders, and folders that are invalid in each way.
#include <filesystem>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/data/mnist.hpp>

using namespace convoy;
using namespace data_files;

namespace {

/// A folder in MNIST's format: 20 images to train on, 10 to test on.
struct SmallMnist : Folder {
  SmallMnist() {
    write("train-images-idx3-ubyte", idx({20, 28, 28}, 20 * 784));
    write("train-labels-idx1-ubyte.gz", gzip(idx({20}, 20, 10)));
    write("t10k-images-idx3-ubyte.gz", gzip(idx({10, 28, 28}, 10 * 784)));
    write("t10k-labels-idx1-ubyte", idx({10}, 10, 10));
  }
  std::string refusal() const {
    return sentence<data::DataError>([&] { data::mnist(path); });
  }
};

}  // namespace

TEST_CASE("mnist: plain and gzip files, normalized as they are read") {
  const SmallMnist folder;
  CHECK(data::has_mnist(folder.path));
  const data::ImageSplit split = data::mnist(folder.path);
  const data::ImageSet &train = split.train, &test = split.test;
  static_assert(data::Dataset<data::ImageSet>);
  CHECK(train.size() == 20);
  CHECK(test.size() == 10);
  CHECK(train.fields()[0] == data::Field{"image", DType::f32, {1, 28, 28}});
  CHECK(train.fields()[1] == data::Field{"label", DType::i32, {}});

  data::Samples samples(train.fields(), 2);
  train.read(7, samples.row(1));
  const auto image = samples.row(1).as<f32>(0);
  REQUIRE(image.size() == 784);
  for (std::size_t i = 0; i < 784; ++i) {
    CHECK(train.pixels(7)[i] == (7 * 784 + i) % 256);
    CHECK(image[i] ==
          doctest::Approx((static_cast<double>((7 * 784 + i) % 256) / 255 - 0.1307) / 0.3081).epsilon(1e-5));
  }
  CHECK(samples.row(1).as<i32>(1)[0] == 7);
  CHECK(samples.row(0).as<f32>(0)[5] == 0.0f);  // the other row is untouched
  CHECK(contains(sentence<data::DataError>([&] { train.read(20, samples.row(0)); }), "image 20"));
}

TEST_CASE("mnist: `first` takes a part and shares the pixels") {
  const SmallMnist folder;
  const auto train = data::mnist(folder.path).train;
  CHECK(train.first(5).size() == 5);
  CHECK(train.first(50).size() == 20);
  CHECK(train.first(5).pixels(3).data() == train.pixels(3).data());
}

TEST_CASE("idx images: of any height and width, and of any number of classes") {
  const Folder folder;
  const auto images = folder.write("images", idx({4, 3, 5}, 60)),
             labels = folder.write("labels", idx({4}, 4, 256));
  const data::ImageSet set = data::idx_images(images, labels, 4, {.mean = 0, .deviation = 0.5f});
  CHECK(set.image() == Image{1, 3, 5});
  CHECK(set.fields()[0] == data::Field{"image", DType::f32, {1, 3, 5}});
  CHECK(set.classes() == 4);
  CHECK(set.label(3) == 3);
  CHECK(set.pixels(2)[1] == 31);
  CHECK(set.normalized(0)[51] == doctest::Approx(0.4));
  CHECK(contains(sentence<data::DataError>([&] { data::idx_images(images, labels, 3); }),
                 "label 3 for image 3 (byte 11), expected 0 to 2"));
}

TEST_CASE("mnist: a folder or a file that is missing") {
  CHECK(contains(sentence<data::DataError>([] { data::mnist("/nowhere/at/all"); }),
                 "no folder /nowhere/at/all"));
  CHECK_FALSE(data::has_mnist("/nowhere/at/all"));
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz",
                           "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"}) {
    const SmallMnist folder;
    std::filesystem::remove(folder.path / name);
    CAPTURE(name);
    CHECK_FALSE(data::has_mnist(folder.path));
    CHECK(contains(folder.refusal(), "is missing (with and without .gz)"));
    CHECK(contains(folder.refusal(), folder.path.string()));
  }
}

TEST_CASE("mnist: files that do not fit each other or the format") {
  {
    const SmallMnist folder;
    folder.write("train-images-idx3-ubyte", idx({19, 28, 28}, 19 * 784));
    CHECK(contains(folder.refusal(), "holds 19 images but"));
    CHECK(contains(folder.refusal(), "holds 20 labels"));
  }
  {
    const SmallMnist folder;
    folder.write("t10k-labels-idx1-ubyte", idx({10}, 10, 11));
    CHECK(folder.refusal().empty());  // labels 0 to 9 only: the modulus is not reached
    Bytes labels = idx({10}, 10, 10);
    labels[8 + 6] = 10;
    folder.write("t10k-labels-idx1-ubyte", labels);
    CHECK(contains(folder.refusal(), "label 10 for image 6 (byte 14), expected 0 to 9"));
    labels[8] = 10;
    folder.write("t10k-labels-idx1-ubyte", labels);
    CHECK(contains(folder.refusal(), "label 10 for image 0 (byte 8), expected 0 to 9"));
  }
  {
    const SmallMnist folder;
    folder.write("train-images-idx3-ubyte", idx({20, 32, 32}, 20 * 1024));
    CHECK(contains(folder.refusal(), "32x32 pixels (bytes 8 and 12), expected 28x28"));
  }
  {
    const SmallMnist folder;  // with images and labels swapped
    folder.write("t10k-labels-idx1-ubyte", idx({10, 28, 28}, 10 * 784));
    CHECK(contains(folder.refusal(), "does not hold labels"));
    folder.write("train-images-idx3-ubyte", idx({20}, 20));
    CHECK(contains(folder.refusal(), "does not hold images"));
  }
}
