// EXPECT: this Comm exchanges arenas in another space than this Exec's: wrap it as comm::Staged
#include "../remote_exec.hpp"
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/plan_trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

int main() {
  const auto digits = data::digits();
  train::PlanTrainer<optim::Adam, comm::Ring<transport::Threads>, remote_test::RemoteExec> trainer{
      plan_of<Net>, {.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
