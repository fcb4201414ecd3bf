// EXPECT: a trainer's optimizer comes before its Comm
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

int main() {
  const auto digits = data::digits();
  Trainer<Net, comm::None, optim::Adam, exec::Reference<f32>> trainer{
      {.batch = 128, .optimizer = {.lr = 1e-3f}}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
