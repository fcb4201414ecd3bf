// Trains a small ConvNet on MNIST or on bigMNIST, its 72 million deformed images, which are never stored.
#include <memory>

#include "common/existing.hpp"
#include "common/training.hpp"
#include <convoy/data/big_mnist.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/data/mnist.hpp>
#include <convoy/models/convnet.hpp>

using namespace convoy;
using namespace examples;

namespace {

struct Wanted {
  data::BigMnistOptions options;
  bool plain = false;
};

struct Images {
  data::ImageSplit split;
  data::BigMnist big;
  Images(const Options& options, const Wanted& wanted)
      : split(options.data == "digits" ? data::digits() : data::mnist(existing("--data", options.data))),
        big(split.train, wanted.options) {}
};

Task task_of(const Options& options, const Wanted& wanted) {
  const auto made = std::make_shared<Images>(options, wanted);
  const auto train = wanted.plain ? data::DatasetRef(&made->split.train) : data::DatasetRef(&made->big);
  return {.plan = plan_of<models::ConvNet<>>,
          .data = concat(wanted.plain ? "" : "big", options.data == "digits" ? "digits, " : "MNIST, ",
                         train.size(), " + ", made->split.test.size()),
          .owner = made,
          .train = train,
          .test = data::DatasetRef(&made->split.test)};
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted;
  return run(argc, argv,
             {.name = "bigmnist",
              .about = "Trains a ConvNet on bigMNIST (--data: a folder with MNIST's four files, or digits)",
              .models = {"convnet"},
              .defaults = {.model = "convnet",
                           .optimizer = "sgd",
                           .lr = 0.01f,
                           .decay = "none",
                           .momentum = 0.9f,
                           .batch = 512},
              .options = {{"--plain", &wanted.plain, "Train on MNIST without deformed copies"},
                          {"--copies", &wanted.options.copies, "Deformed copies of each image",
                           Accepts::not_negative},
                          {"--repeats", &wanted.options.repeats,
                           "How often an epoch repeats the images and their copies", Accepts::positive}},
              .make = [&](const Options& options) { return task_of(options, wanted); }});
}
