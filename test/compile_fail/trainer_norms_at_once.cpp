// EXPECT: this optimizer uses norms of whole tensors, but the servers of this Comm update with each
// EXPECT: update with each worker's
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/optim/lamb.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

using Net = models::ResNet18<Image{1, 28, 28}, 10>;

int main() {
  const auto digits = data::digits();
  Trainer<Net, optim::Lamb, comm::ParameterServer<transport::Threads, comm::Async>, exec::Reference<f32>>
      trainer{{.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
