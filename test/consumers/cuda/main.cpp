// A user's program with an operation that has its own kernels: the same training on the CPU and on a GPU, if
// there is one.
#include <cmath>
#include <cstdio>

#include "gate.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

int main() {
  using OnProcessors = Trainer<Net, optim::Sgd, comm::None, exec::Reference<f32>>;
  const double expected = trained<OnProcessors>(data::digits({.train = 64}));
  std::printf("loss %g on processors", expected);
  if (!has_gpu()) {
    std::printf(", no GPU\n");
    return std::isfinite(expected) ? 0 : 1;
  }
  const double seen = trained_on_gpu();
  std::printf(", %g on a GPU\n", seen);
  return std::abs(seen - expected) < 1e-3 * expected ? 0 : 1;
}
