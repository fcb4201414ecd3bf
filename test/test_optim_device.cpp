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

TEST_CASE_TEMPLATE("so do blocks of many chunks and tensors", R, optim::Adam, optim::Lars, optim::Lamb) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const RandomLayout layout(seed);
    const auto left = [&] {
      Device space;
      return steps_over<R>(space, layout, {.max_norm = 1}, seed);
    };
    const Left usual = left();
    for (const auto order : {emulation::Order::backward, emulation::Order::shuffled}) {
      const emulation::With other({.blocks = order, .late = true});
      CHECK(left() == usual);
    }
  }
}

TEST_CASE("a range of many tensors is one kernel to update, and two to sum squares of all of them") {
  using emulation::Called;
  const RandomLayout layout(3);
  REQUIRE(layout.tensors.size() > 4);
  Device space;
  const Range whole{0, layout.exchanged};
  memory::Array<float, Device> parameters(space, static_cast<std::size_t>(layout.size)),
      gradients(space, parameters.size());
  const auto calls = [&](auto&& work) {
    const auto before = emulation::Counts::now();
    work();
    const auto made = emulation::Counts::now() - before;
    CHECK(made.all() == made[Called::kernel] + made[Called::copy]);
    return made.all();
  };
  optim::Arena<optim::Lamb, Device> arena(space, {}, layout.tensors, layout.groups);
  arena.own({&whole, 1});
  arena.begin(1, 0.1f);
  CHECK(calls([&] { arena.arrived(whole, 1.0f, parameters.data(), gradients.data()); }) == 2);
  // Dead taps are two more, constants one.
  CHECK(calls([&] { CHECK(arena.decide(parameters.data()) == Decision::apply); }) == 3);
  CHECK(calls([&] { arena.update(whole, 1.0f, parameters.data(), gradients.data()); }) == 1);
  CHECK(calls([&] { arena.decay_dead(1, 0.1f, parameters.data()); }) == 1);
  // A step that was not begun here has constants of its own.
  CHECK(calls([&] { arena.decay_dead(2, 0.1f, parameters.data()); }) == 4);
}
