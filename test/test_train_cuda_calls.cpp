// EMULATES
// SANITIZE: none
// How often a step of a published model calls the CUDA runtime: what it costs the host where the GPU is fast.
#include <vector>

#include <doctest/doctest.h>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/resident.cuh>
#include <convoy/data/synthetic.hpp>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/models/resnet.hpp>
#include <convoy/optim/device.cuh>
#include <convoy/train/trainer.hpp>

namespace {

using namespace convoy;
using emulation::Called;
using emulation::Counts;

constexpr Image image{1, 28, 28};
constexpr int classes = 10;

/// The calls of a step once its graphs are captured.
template <class Rule>
Counts calls_of_step(float clip, bool resident = false) {
  const emulation::With open({.closed_to_host = false});
  using T = Trainer<models::ResNet18<image, classes>, Rule, comm::None, exec::Cuda<bf16>>;
  T trainer({.batch = 2, .guard = {.max_norm = clip}});
  const data::Synthetic samples(16, {{{"image", DType::f32, image}}, {{"label", DType::i32, {}}, classes}});
  std::vector<Counts> seen;
  trainer.fit(samples, {.epochs = 1,
                        .on_step =
                            [&](const train::StepReport&) {
                              seen.push_back(Counts::now());
                              return train::Control::go_on;
                            },
                        .log = nullptr,
                        .resident = resident});
  return seen.at(5) - seen.at(4);
}

}  // namespace

TEST_CASE("cuda: a step of ResNet-18 in 16 bits is so many calls") {
  // The step is a graph; beside it go the batch there and where it is read, the number of the step and its
  // rate, and the result back, with events for each and for what waits.
  const Counts adamw = calls_of_step<optim::AdamW>(0);
  CHECK(adamw[Called::graph] == 1);
  CHECK(adamw[Called::kernel] == 1);
  CHECK(adamw.all() == 11);
  // A norm that is reported is a copy and a wait for that of two steps ago.
  const Counts clipped = calls_of_step<optim::AdamW>(1), lamb = calls_of_step<optim::Lamb>(0);
  CHECK(clipped.all() == 14);
  CHECK(clipped[Called::host_wait] == 3);
  CHECK(lamb.all() == 11);
  CHECK(lamb[Called::host_wait] == 2);
  // Where the data set is on the GPU, the graph makes the batch, and the host says where it stands in the
  // epoch.
  const Counts resident = calls_of_step<optim::AdamW>(0, true);
  CHECK(resident[Called::graph] == 1);
  CHECK(resident[Called::kernel] == 2);
  CHECK(resident[Called::host_wait] == 1);
  CHECK(resident.all() == 6);
  for (const Counts& step : {adamw, clipped, lamb, resident}) CHECK(step[Called::pageable_copy] == 0);
}
