// EXPECT: this Comm exchanges arenas in another space than this Exec's: wrap it as comm::Staged
#include "../remote_exec.hpp"
#include <convoy/comm/policy/any.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

int main() {
  const auto digits = data::digits();
  Trainer<Net, optim::Adam, comm::Any, remote_test::RemoteExec> trainer{{.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
