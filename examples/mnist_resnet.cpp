// Trains a ResNet on MNIST (or on digits that need no download) with data-parallel ranks.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/existing.hpp"
#include "common/training.hpp"
#include <convoy/data/data.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using namespace examples;

namespace {

constexpr int classes = 10;

/// A model is a type, traced while compiling, so that each image size is a separate model.
template <int size>
const Plan& plan_of_size(const Options& o) {
  constexpr Image image{1, size, size};
  if (o.model == "resnet18") return plan_of<models::ResNet18<image, classes>>;
  if (o.model == "resnet50") return plan_of<models::ResNet50<image, classes>>;
  return plan_of<models::ResNet101<image, classes>>;
}

struct Images {
  int size = 28;             ///< height and width; images of another size are resized
  std::int64_t samples = 0;  ///< of a generated data set; 0: its default
};

Task task_of(const Options& options, const Images& wanted) {
  Task task{.plan = wanted.size == 224 ? plan_of_size<224>(options) : plan_of_size<28>(options)};
  const Image image{1, wanted.size, wanted.size};
  const std::string size_of_images = wanted.size == 28 ? "" : concat(", ", wanted.size, "x", wanted.size);
  if (options.data == "synthetic") {
    const std::size_t size = wanted.samples > 0 ? static_cast<std::size_t>(wanted.samples) : 60'000;
    auto set = std::make_shared<data::Synthetic>(
        size,
        std::vector<data::RandomField>{{{"image", DType::f32, image}}, {{"label", DType::i32, {}}, classes}});
    task.train = data::DatasetRef(set.get());
    task.owner = std::move(set);
    task.data = concat("synthetic, ", size, " random images", size_of_images);
    return task;
  }
  const bool generated = options.data == "digits";
  if (!generated && wanted.samples > 0)
    fail<ConfigError>("--samples is for generated sets, digits and synthetic, and not for ", options.data);
  data::DigitsOptions digits;
  if (wanted.samples > 0) digits.train = static_cast<std::size_t>(wanted.samples);
  auto split = std::make_shared<data::ImageSplit>(generated ? data::digits(digits)
                                                            : data::mnist(existing("--data", options.data)));
  if (split->train.image() == image) {
    task.train = data::DatasetRef(&split->train);
    task.test = data::DatasetRef(&split->test);
    task.owner = std::move(split);
  } else {
    using Larger = data::Resized<data::ImageSet>;
    auto resized =
        std::make_shared<std::pair<Larger, Larger>>(Larger(split->train, "image", image.height, image.width),
                                                    Larger(split->test, "image", image.height, image.width));
    task.train = data::DatasetRef(&resized->first);
    task.test = data::DatasetRef(&resized->second);
    task.owner = std::move(resized);
  }
  task.data = concat(generated ? "generated digits" : "MNIST", ", ", task.train.size(), " + ",
                     task.test.size(), size_of_images);
  return task;
}

}  // namespace

int main(int argc, char** argv) {
  Images images;
  return run(argc, argv,
             {.name = "mnist_resnet",
              .about = "Trains a ResNet on MNIST (--data: a folder with its four files, digits or synthetic)",
              .models = {"resnet18", "resnet50", "resnet101"},
              .options = {{"--image-size", &images.size, "Height and width that images are resized to",
                           OneOf{28, 224}},
                          {"--samples", &images.samples,
                           "Training samples of a generated set (0: its default)", Accepts::not_negative}},
              .make = [&](const Options& options) { return task_of(options, images); }});
}
