// EXPECT: an optimizer must have Options, an aggregate
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

struct Adagrad {};

int main() {
  const auto digits = data::digits();
  Trainer<models::ResNet18<Image{1, 28, 28}, 10>, Adagrad, comm::None, exec::Reference<f32>> trainer{
      {.optimizer = {.lr = 1e-2f}}};
  trainer.fit(digits.train);
}
