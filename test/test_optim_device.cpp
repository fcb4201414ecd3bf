// EMULATES
// Optimizers on a GPU, with kernels run on the CPU.
#include <cmath>
#include <string>
#include <vector>

#include "emulation/cublaslt.hpp"
#include "emulation/emulation.hpp"
#include "optim_device.hpp"
#include "optim_device_muon.hpp"

using namespace optim_device;

TEST_CASE_TEMPLATE("blocks in any order, on streams that run as late as they may, give the same bits", R,
                   optim::AdamW, optim::Lars, optim::Lamb) {
  const optim::Guard guard{.max_norm = 1, .skip_not_finite = true};
  const Left usual = on_device<R>({.weight_decay = 0.1f}, guard);
  for (const auto order : {emulation::Order::backward, emulation::Order::shuffled}) {
    const emulation::With other({.blocks = order, .late = true});
    CHECK(on_device<R>(typename R::Options{.weight_decay = 0.1f}, guard) == usual);
  }
}

TEST_CASE_TEMPLATE("blocks of many chunks and tensors give the same bits in any order", R, optim::Adam,
                   optim::Lars, optim::Lamb) {
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

TEST_CASE_TEMPLATE("an arena without tensors, as of a model whose layers are all frozen, makes steps", R,
                   optim::AdamW, optim::Lars, optim::Lamb) {
  Device space;
  optim::Arena<R, Device> arena(space, {}, {}, {}, {.max_norm = 1});
  arena.own({});
  memory::Array<float, Device> parameters(space, 1);
  arena.begin(1, 0.1f);
  Decision decision = arena.decide(parameters.data());
  if (decision == Decision::again) decision = arena.decide(parameters.data());
  CHECK(decision == Decision::apply);
  CHECK_NOTHROW(space.synchronize());
}

TEST_CASE("a range of many tensors takes one kernel to update, and two to sum the squares of all of them") {
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
  // Dead taps take two calls more, constants one.
  CHECK(calls([&] { CHECK(arena.decide(parameters.data()) == Decision::apply); }) == 3);
  CHECK(calls([&] { arena.update(whole, 1.0f, parameters.data(), gradients.data()); }) == 1);
  CHECK(calls([&] { arena.decay_dead(1, 0.1f, parameters.data()); }) == 1);
  // For a step that this arena has not begun, decay_dead computes constants first.
  CHECK(calls([&] { arena.decay_dead(2, 0.1f, parameters.data()); }) == 4);
}

TEST_CASE("Muon's steps give the same bits in any order of blocks, on streams that run as late as they may") {
  const auto left = [] {
    Device space;
    return steps_of_matrices<optim::Muon>(space, muon, {});
  };
  const Left usual = left();
  for (const auto order : {emulation::Order::backward, emulation::Order::shuffled}) {
    const emulation::With other({.blocks = order, .threads = emulation::Order::backward, .late = true});
    CHECK(left() == usual);
  }
}

TEST_CASE("a matrix is updated by three kernels and the products of its iterations, and by nothing else") {
  using emulation::Called;
  constexpr std::int64_t rows = 24, columns = 40;
  const optim::ArenaTensor tensor{{0, rows * columns}, {}, 0, rows};
  const optim::Group group;
  Device space;
  optim::Arena<optim::Muon, Device> arena(space, {.iterations = 2}, {&tensor, 1}, {&group, 1});
  arena.own({&tensor.live, 1});
  memory::Array<float, Device> parameters(space, rows * columns), gradients(space, rows * columns);
  arena.begin(1, 0.1f);
  const auto free = [] {
    std::size_t bytes = 0, all = 0;
    cudaMemGetInfo(&bytes, &all);
    return bytes;
  };
  const std::size_t free_before = free();
  const auto before = emulation::Counts::now();
  std::vector<std::string> names;
  {
    const emulation::Enqueued enqueued;
    arena.update(tensor.live, 1.0f, parameters.data(), gradients.data());
    names = enqueued.names();
  }
  const auto made = emulation::Counts::now() - before;
  CHECK(names == std::vector<std::string>{"make_matrix", "divide_matrix", "product", "product", "product",
                                          "product", "product", "product", "update_matrix"});
  CHECK(made.all() == made[Called::kernel]);
  CHECK(made[Called::kernel] == 3);
  CHECK(free() == free_before);
}

TEST_CASE("Muon takes the first algorithm that cuBLASLt runs, and whose products are whole") {
  constexpr std::int64_t rows = 9, columns = 14;
  const optim::ArenaTensor tensor{{0, rows * columns}, {}, 0, rows};
  const optim::Group group;
  const auto updated = [&] {
    Device space;
    optim::Arena<optim::Muon, Device> arena(space, {.iterations = 2}, {&tensor, 1}, {&group, 1});
    arena.own({&tensor.live, 1});
    memory::Array<float, Device> parameters(space, rows * columns), gradients(space, rows * columns);
    std::vector<float> values(rows * columns);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    space.write(gradients.data(), values.data(), gradients.bytes());
    arena.begin(1, 0.1f);
    arena.update(tensor.live, 1.0f, parameters.data(), gradients.data());
    space.read(values.data(), parameters.data(), parameters.bytes());
    return values;
  };
  const std::vector<float> usual = updated();
  emulation::algorithms_that_fail = {0};
  CHECK(updated() == usual);
  emulation::algorithms_that_fail.clear();
  emulation::algorithms_that_drop = {0};
  CHECK(updated() == usual);
  emulation::algorithms_that_drop.clear();
}

TEST_CASE("a product for which cuBLASLt has no algorithm is an error before the first step") {
  const optim::ArenaTensor tensor{{0, 96}, {}, 0, 8};
  const optim::Group group;
  Device space;
  optim::Arena<optim::Muon, Device> arena(space, {}, {&tensor, 1}, {&group, 1});
  emulation::missing_epilogues = {CUBLASLT_EPILOGUE_DEFAULT};
  CHECK_THROWS_WITH_AS(arena.own({&tensor.live, 1}),
                       "cublas: there is no algorithm for a product of 8 x 12 and 12 x 8",
                       device::DeviceError);
  emulation::missing_epilogues.clear();
}

TEST_CASE("Muon multiplies one by one what no algorithm multiplies together, with the same bits") {
  const Layers all(5);
  const auto expected = steps_of_layers(all, all.tensors.size());
  emulation::one_pair_at_a_time = true;
  CHECK(steps_of_layers(all, all.tensors.size()) == expected);
  emulation::one_pair_at_a_time = false;
}

TEST_CASE("Muon enqueues for the matrices of twelve layers what it enqueues for those of one") {
  const auto enqueued = [](int layers) {
    const Layers all(layers);
    Device space;
    optim::Arena<optim::Muon, Device> arena(space, muon, all.tensors, all.groups);
    const Range whole{0, all.size};
    arena.own({&whole, 1});
    const auto count = static_cast<std::size_t>(all.size);
    const memory::Array<float, Device> p(space, count), g(space, count);
    arena.begin(1, 0.1f);
    const emulation::Enqueued work;
    arena.update(whole, 1.0f, p.data(), g.data());
    return work.names().size();
  };
  // For each of two shapes: three kernels, and three products in each of five iterations. One for the biases.
  CHECK(enqueued(1) == 2 * (3 + 3 * 5) + 1);
  CHECK(enqueued(12) == enqueued(1));
}
