// EXPECT: a trainer exchanges gradients by a Comm, such as
#include <convoy/data/digits.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/plan_trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

int main() {
  const auto digits = data::digits();
  train::PlanTrainer<optim::Adam, int, exec::Reference<f32>> trainer{plan_of<Net>, {.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
