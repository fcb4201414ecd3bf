// EXPECT: this optimizer uses norms of whole tensors, but the servers of this Comm update with each
// EXPECT: update with each worker's
#include "../remote_exec.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/optim/lars.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

int main() {
  const auto digits = data::digits();
  using Servers = comm::ParameterServer<transport::Threads, comm::Stale<2>>;
  Trainer<Net, optim::Lars, comm::Staged<Servers, remote_test::Remote>, remote_test::RemoteExec> trainer{
      {.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
