// EXPECT: the arguments of Trainer after the configuration construct its Comm, which takes no such arguments
// ERRORS: 2
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/models/mlp.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

using Net = models::Mlp<Image{1, 28, 28}, 10, 16>;

void train(const transport::Threads& endpoint) {
  Trainer<Net, optim::Adam, comm::Ring<transport::Threads>, exec::Reference<f32>> trainer{
      {.batch = 128, .optimizer = {.lr = 1e-3f}}, endpoint, 60};
  trainer.step({});
}
