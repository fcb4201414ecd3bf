// Trains a ResNet with a stem for small images on CIFAR-10, with random crops and mirroring.
#include <memory>

#include "common/existing.hpp"
#include "common/training.hpp"
#include <convoy/data/cifar10.hpp>
#include <convoy/data/cropped.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using namespace examples;

namespace {

const Plan& plan_of_model(const Options& o) {
  constexpr Image image{3, 32, 32};
  if (o.model == "resnet18") return plan_of<models::ResNet18<image, 10, DType::f32, models::Stem::small>>;
  if (o.model == "resnet34") return plan_of<models::ResNet34<image, 10, DType::f32, models::Stem::small>>;
  return plan_of<models::ResNet50<image, 10, DType::f32, models::Stem::small>>;
}

struct Images {
  data::ImageSplit split;
  data::Cropped cropped;
  explicit Images(const Options& options)
      : split(data::cifar10(existing("--data", options.data))), cropped(split.train) {}
};

Task task_of(const Options& options) {
  const auto made = std::make_shared<Images>(options);
  return {.plan = plan_of_model(options),
          .data = concat("CIFAR-10, ", made->cropped.size(), " + ", made->split.test.size()),
          .owner = made,
          .train = data::DatasetRef(&made->cropped),
          .test = data::DatasetRef(&made->split.test)};
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv,
             {.name = "cifar10_resnet",
              .about = "Trains a ResNet on CIFAR-10 (--data: a folder with its binary files)",
              .models = {"resnet18", "resnet34", "resnet50"},
              .defaults = {.optimizer = "sgd",
                           .lr = 0.1f,
                           .decay = "cosine",
                           .momentum = 0.9f,
                           .weight_decay = 5e-4f,
                           .epochs = 30,
                           .data = "data/cifar10"},
              .make = task_of});
}
