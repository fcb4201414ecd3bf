// EXPECT: this optimizer multiplies whole matrices, which this space cannot: compute on
#include "../remote_exec.hpp"
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/optim/muon.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

int main() {
  const auto digits = data::digits();
  using Ring = comm::Staged<comm::Ring<transport::Threads>, remote_test::Remote>;
  Trainer<Net, optim::Muon, Ring, remote_test::RemoteExec> trainer{{.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
