// EMULATES
// Optimizers on a GPU whose kernels run on processors.
#include "emulation/emulation.hpp"
#include "optim_device.hpp"

using namespace optim_device;

TEST_CASE_TEMPLATE("blocks run in any order, on streams as late as they may be, to the same bits", R,
                   optim::AdamW, optim::Lars, optim::Lamb) {
  const optim::Guard guard{.max_norm = 1, .skip_not_finite = true};
  const Left usual = on_device<R>({.weight_decay = 0.1f}, guard);
  for (const auto order : {emulation::Order::backward, emulation::Order::shuffled}) {
    const emulation::With other({.blocks = order, .late = true});
    CHECK(on_device<R>(typename R::Options{.weight_decay = 0.1f}, guard) == usual);
  }
}
