// EMULATES: stages
// SANITIZE: none
// The number of CUDA runtime calls in a step of a published model: with a fast GPU, they limit the step.
#include <cstddef>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/resident.cuh>
#include <convoy/data/synthetic.hpp>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/models/convnet.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>
#include <convoy/optim/device.cuh>
#include <convoy/train/trainer.hpp>

namespace {

using namespace convoy;
using emulation::Called;
using emulation::Counts;

constexpr Image image{1, 8, 8};
constexpr int classes = 10;

/// Sentences of as many words as there are.
struct Words {
  static constexpr int length = 4, vocabulary = 9;
  std::size_t size() const { return 36; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    for (int w = 0; w < length; ++w)
      out.as<i32>(0)[static_cast<std::size_t>(w)] =
          static_cast<i32>(index + static_cast<std::size_t>(w)) % vocabulary;
    out.as<i32>(1)[0] = length;
    out.as<i32>(2)[0] = static_cast<i32>(index % classes);
  }

 private:
  std::vector<data::Field> fields_{
      {"input_ids", DType::i32, {length}}, {"lengths", DType::i32, {}}, {"label", DType::i32, {}}};
};

/// The calls of a step after its graphs are captured; with a data set on the GPU, of the `resident` steps of
/// one graph.
template <class Model, class Rule, class Set>
Counts calls_of_step(const Set& samples, float clip, int resident = 0) {
  const emulation::With open({.closed_to_host = false});
  using T = Trainer<Model, Rule, comm::None, exec::Cuda<bf16>>;
  typename T::Config config{.batch = 2, .guard = {.max_norm = clip}};
  if (resident > 0) config.exec.steps_at_once = resident;
  T trainer(config);
  std::vector<Counts> seen;
  trainer.fit(samples, {.epochs = 1,
                        .on_step =
                            [&](const train::StepReport&) {
                              seen.push_back(Counts::now());
                              return train::Control::go_on;
                            },
                        .log = nullptr,
                        .resident = resident > 0});
  // With the data set on the GPU, the first step runs alone, those of the next graph without one, and those
  // after them are captured.
  return resident > 1 ? seen.at(12) - seen.at(8) : seen.at(5) - seen.at(4);
}

}  // namespace

TEST_CASE("cuda: the number of calls in a step of ResNet-18 in 16 bits") {
  // The step is one graph. The other calls send the batch, its address, the step's number and its learning
  // rate, fetch the result, and record events and wait for them. A small network has as many.
  using Network = models::ResNet18<image, classes>;
  using Small = models::ConvNet<Image{1, 8, 8}, classes>;
  const data::Synthetic images(36, {{{"image", DType::f32, image}}, {{"label", DType::i32, {}}, classes}});
  const Counts adamw = calls_of_step<Network, optim::AdamW>(images, 0);
  // A reported norm comes with the result.
  const Counts clipped = calls_of_step<Small, optim::AdamW>(images, 1),
               lamb = calls_of_step<Small, optim::Lamb>(images, 0);
  for (const Counts& step : {adamw, clipped, lamb}) {
    CHECK(step[Called::graph] == 1);
    CHECK(step[Called::kernel] == 1);
    CHECK(step[Called::host_wait] == 2);
    CHECK(step.all() == 11);
  }
  // With the data set on the GPU, one graph makes the batches of its steps and runs the steps. The host sends
  // the numbers of all these steps, and fetches all results.
  const Counts one = calls_of_step<Small, optim::AdamW>(images, 1, 1),
               four = calls_of_step<Small, optim::AdamW>(images, 1, 4);
  // The numbers of a Transformer's step include those of its dropouts.
  using Encoder = models::Transformer<6, 8, 2, 16, Words::length, Words::vocabulary, classes>;
  const Counts dropping = calls_of_step<Encoder, optim::AdamW>(Words(), 1, 1);
  for (const Counts& steps : {one, four, dropping}) {
    CHECK(steps[Called::graph] == 1);
    CHECK(steps[Called::kernel] == 1);
    CHECK(steps[Called::host_wait] == 1);
    CHECK(steps.all() == 5);
  }
  for (const Counts& step : {adamw, clipped, lamb, one, four, dropping})
    CHECK(step[Called::pageable_copy] == 0);
}
