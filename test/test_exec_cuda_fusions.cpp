// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 600
// exec::Cuda in 16 bits with cuDNN's fused operations, run on the CPU.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_cuda_fusions.hpp"
#include "exec_random_models.hpp"
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/graph/dynamic.hpp>

TEST_CASE("cuda: a cuDNN that sums bf16 is asked to") {
  using namespace exec_cuda_fusions;
  const DynamicPlan plan(residual);
  const Trace fused = trace<bf16>(plan, untimed);
  CHECK(fused.statistics != trace<bf16>(plan, {.candidates = 1}).statistics);
}

TEST_CASE(
    "cuda: in f16 a batch norm whose only reader normalizes makes no pass, in training and evaluation") {
  using namespace exec_cuda_fusions;
  const DynamicPlan plan(residual);
  const auto passes = [&]<class P>(P, bool fuses, exec::Mode mode) {
    Alone<P> exec(plan, 6, {.graphs = false, .candidates = 1, .fuse_batch_norm = fuses});
    const exec_compare::Batch batch(plan, 6, Philox{1, 2});
    const emulation::Enqueued enqueued;
    exec.forward(batch, {.mode = mode});
    return std::count(enqueued.names().begin(), enqueued.names().end(), "batch_norm_apply");
  };
  for (const exec::Mode mode : {exec::Mode::train, exec::Mode::evaluate}) {
    CHECK(passes(f16(), false, mode) == 14);
    CHECK(passes(f16(), true, mode) == 14 - 6);  // two within each block
    CHECK(passes(bf16(), true, mode) == 14);
  }
}

TEST_CASE("cuda: in f16 a batch norm whose value a metric reads writes the value") {
  using namespace exec_cuda_fusions;
  const DynamicPlan plan([](Builder& g) {
    Tensor x = g.relu(g.batch_norm(g.conv2d(g.input("image", {8, 5, 5}), {.channels = 8})));
    g.metric("magnitude", exec_compare::Magnitude{}, x);
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 8})));
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 5}), g.label("label", 5)));
  });
  const exec_compare::Batch batch(plan, 6, Philox{1, 2});
  const auto measured = [&](bool fuses, exec::Mode mode) {
    Alone<f16> exec(plan, 6, {.candidates = 1, .fuse_batch_norm = fuses});
    exec_compare::randomize(exec, plan, Philox{1, 1000});
    return exec_compare::forward(exec, batch, mode).metrics[0];
  };
  for (const exec::Mode mode : {exec::Mode::train, exec::Mode::evaluate})
    CHECK(measured(true, mode) == doctest::Approx(measured(false, mode)).epsilon(1e-3));
}

namespace {

using namespace exec_cuda_fusions;
using namespace convoy::exec::cuda;

/// The tensors of a convolution in f16, filled with numbers, in GPU memory.
struct Tensors {
  std::vector<memory::Array<std::byte, memory::Device>> memory;
  CudnnTensors pointers;

  Tensors(memory::Device& space, const Convolution& c) {
    Philox random{5, 1};
    for (const Extents& of : c.tensors()) {
      std::vector<std::byte> bytes(of.bytes());
      for (std::size_t i = 0; i * size_of(of.element) < bytes.size(); ++i) {
        const float number = random.uniform(-1.0f, 1.0f);
        if (of.element == DType::f32)
          reinterpret_cast<float*>(bytes.data())[i] = number;
        else
          reinterpret_cast<f16*>(bytes.data())[i] = f16(number);
      }
      memory.emplace_back(space, bytes.size());
      space.write(memory.back().data(), bytes.data(), bytes.size());
      pointers.push_back(memory.back().data());
    }
  }
  template <class T>
  std::vector<float> at(memory::Device& space, std::size_t i) const {
    std::vector<T> values(memory[i].size() / sizeof(T));
    space.read(values.data(), memory[i].data(), memory[i].size());
    return std::vector<float>(values.begin(), values.end());
  }
};

/// Runs the fused plan and the rival, and passes their tensors to `check`.
void compare(const Convolution& c,
             const std::function<void(memory::Device&, const Tensors&, const Tensors&)>& check) {
  memory::Device space;
  Libraries libraries(space, {.candidates = 1}, false);
  const CudnnPlan* plan = libraries.find_plan(c, {});
  REQUIRE(plan != nullptr);
  const Tensors fused(space, c), apart(space, c);
  const memory::Array<std::byte, memory::Device> workspace(space, plan->workspace);
  libraries.cudnn().run(*plan, Cudnn::arguments(fused.pointers, workspace.data()));
  ConvolutionRival<f16> rival(libraries, c);
  rival.rival().run(apart.pointers);
  check(space, fused, apart);
}

constexpr Convolution small{.element = DType::f16,
                            .rows = 16,
                            .in_channels = 8,
                            .in_height = 5,
                            .in_width = 4,
                            .out_channels = 16,
                            .out_height = 5,
                            .out_width = 4,
                            .height = 3,
                            .width = 3,
                            .top = 1,
                            .left = 1,
                            .bottom = 1,
                            .right = 1};

}  // namespace

TEST_CASE("cuda: convolutions are timed on numbers between -1 and 1, and not on zeros") {
  memory::Device space;
  Libraries libraries(space, {}, false);
  Convolution c = small;
  c.rows = 12;  // no other test has this choice made
  c.epilogue = ConvolutionEpilogue::statistics;
  int seen = 0;
  libraries.find_plan(c, {.run = [&](const CudnnTensors& tensors) {
                        for (const std::size_t i : {0, 1}) {
                          std::vector<f16> values(c.tensors()[i].bytes() / sizeof(f16));
                          space.read(values.data(), tensors[i], values.size() * sizeof(f16));
                          const auto high = std::count_if(values.begin(), values.end(), [](f16 x) {
                            return static_cast<float>(x) > 0.5f && static_cast<float>(x) <= 1;
                          });
                          CHECK(static_cast<double>(high) > 0.2 * static_cast<double>(values.size()));
                          CHECK(static_cast<double>(high) < 0.3 * static_cast<double>(values.size()));
                          ++seen;
                        }
                      }});
  CHECK(seen > 0);
}

TEST_CASE("cuda: a convolution and its batch norm apart make the statistics that a fused one sums for") {
  Convolution c = small;
  c.epilogue = ConvolutionEpilogue::statistics;
  compare(c, [&](memory::Device& space, const Tensors& fused, const Tensors& apart) {
    CHECK(fused.at<f16>(space, 2) == apart.at<f16>(space, 2));
    const auto sums = fused.at<float>(space, 3), means = apart.at<float>(space, 3);
    for (std::size_t k = 0; k < means.size(); ++k)
      CHECK(means[k] == doctest::Approx(sums[k] / (16 * 20)).epsilon(1e-3));
  });
}

TEST_CASE("cuda: a convolution and its batch norm apart make the gradients that a fused one makes") {
  Convolution c = small;
  c.direction = Direction::backward_input;
  c.epilogue = ConvolutionEpilogue::batch_norm_backward;
  for (const bool meets : {false, true}) {
    c.has_second = meets;
    compare(c, [&](memory::Device& space, const Tensors& fused, const Tensors& apart) {
      const std::size_t first = meets ? 9 : 8;
      for (const std::size_t i : {first, first + 1})
        CHECK(exec_cuda_fusions::apart(apart.at<float>(space, i), fused.at<float>(space, i)) < 5e-3);
    });
  }
  // With an addend, the unfused operations mask by the sign of the addend, in place of the batch norm's
  // output.
  c.has_addend = true;
  compare(c, [&](memory::Device& space, const Tensors&, const Tensors& apart) {
    const auto dy = apart.at<f16>(space, 0);
    CHECK(std::count(dy.begin(), dy.end(), 0.0f) > 60);
  });
}

TEST_CASE("cuda: a convolution that normalizes its image makes what others make of the normalized image") {
  memory::Device space;
  Libraries libraries(space, {.candidates = 1}, false);
  for (const Direction direction : {Direction::forward, Direction::backward_weight}) {
    Convolution c = small;
    c.direction = direction;
    c.epilogue =
        direction == Direction::forward ? ConvolutionEpilogue::statistics : ConvolutionEpilogue::none;
    Convolution normalizing = c;
    normalizing.normalizes = true;
    const Tensors fused(space, normalizing), apart(space, c);
    const std::size_t scales = fused.pointers.size() - 2;
    const auto x = fused.at<f16>(space, 0), scale = fused.at<f16>(space, scales),
               shift = fused.at<f16>(space, scales + 1);
    std::vector<f16> image;
    for (std::size_t i = 0; i < x.size(); ++i)
      image.emplace_back(std::max(0.0f, x[i] * scale[i % scale.size()] + shift[i % scale.size()]));
    space.write(const_cast<void*>(apart.pointers[0]), image.data(), image.size() * sizeof(f16));
    for (const auto& [tensors, of] : {std::pair{&fused, &normalizing}, {&apart, &c}}) {
      const CudnnPlan* plan = libraries.find_plan(*of, {});
      REQUIRE(plan != nullptr);
      const memory::Array<std::byte, memory::Device> workspace(space, plan->workspace);
      libraries.cudnn().run(*plan, Cudnn::arguments(tensors->pointers, workspace.data()));
    }
    const std::size_t result = direction == Direction::forward ? 2 : 1;
    CHECK(exec_cuda_fusions::apart(fused.at<f16>(space, result), apart.at<f16>(space, result)) < 1e-3);
    if (direction == Direction::forward)
      CHECK(exec_cuda_fusions::apart(fused.at<float>(space, 4), apart.at<float>(space, 4)) < 1e-3);
  }
}

TEST_CASE("cuda: normalizing gives way to a pass of its own where it takes longer, in both directions") {
  memory::Device space;
  Libraries libraries(space, {}, false);
  Convolution c = small;
  c.rows = 14;  // no other test has these choices made
  Convolution of_weight = c;
  of_weight.direction = Direction::backward_weight;
  c.epilogue = ConvolutionEpilogue::statistics;
  c.normalizes = of_weight.normalizes = true;
  const CudnnPlan* const plan = libraries.find_plan(of_weight, {});
  REQUIRE(plan != nullptr);
  NormalizingRival<f16> apart(libraries, c, plan);
  Rival rival = apart.rival();
  int runs = 0, runs_after = 0;
  const Rival counted{.run =
                          [&](const CudnnTensors& tensors) {
                            rival.run(tensors);
                            ++runs;
                          },
                      .after =
                          [&](const CudnnTensors& tensors) {
                            rival.after(tensors);
                            ++runs_after;
                            std::this_thread::sleep_for(std::chrono::milliseconds(50));
                          }};
  CHECK(libraries.find_plan(c, counted) == nullptr);
  CHECK(runs > 0);
  CHECK(runs_after > 0);
}

TEST_CASE("cuda: a fused convolution gives way where it takes longer") {
  memory::Device space;
  Libraries libraries(space, {}, false);
  Convolution c = small;
  c.epilogue = ConvolutionEpilogue::statistics;
  const auto sleep = [](const CudnnTensors&) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  CHECK(libraries.find_plan(c, {.run = sleep}) != nullptr);
  c.rows = 15;
  CHECK(libraries.find_plan(c, {.run = [](const CudnnTensors&) {}, .after = sleep}) == nullptr);
}
