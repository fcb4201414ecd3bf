// EXPECT: this Exec's precision skips steps whose gradients overflow, but the servers of this Comm
// EXPECT: the servers of this Comm update with
#include "../remote_exec.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

struct InHalves : remote_test::RemoteExec {
  using RemoteExec::RemoteExec;
  static constexpr bool may_overflow = true;
  void visit_state(exec::detail::OnNumber) {}
};

int main() {
  const auto digits = data::digits();
  using Servers = comm::ParameterServer<transport::Threads, comm::Async>;
  Trainer<Net, optim::Adam, comm::Staged<Servers, remote_test::Remote>, InHalves> trainer{{.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
