// EMULATES
// Data sets in GPU memory, with kernels run on the CPU.
#include "data_resident.hpp"
#include "emulation/emulation.hpp"

TEST_CASE("rows that a GPU makes depend on no order of its threads, and wait for what is written") {
  using namespace data_resident;
  const data::Cropped set(images(300, {1, 12, 12}));
  const emulation::With orders(
      {.blocks = emulation::Order::shuffled, .threads = emulation::Order::backward, .late = true});
  expect_rows_of_loader(set, {.batch = 64});
  expect_rows_of_loader(Mixture{}, {.batch = 64});
}
