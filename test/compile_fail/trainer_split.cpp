// EXPECT: this is a training set and a test set: pass one of them
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

int main() {
  const auto digits = data::digits();
  Trainer<models::ResNet18<Image{1, 28, 28}, 10>, optim::Adam, comm::None, exec::Reference<f32>> trainer{{}};
  trainer.fit(digits, {.epochs = 4});
}
