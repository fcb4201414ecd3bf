// NEEDS: cuda
// SANITIZE: none
// TIMEOUT: 600
// DRIVER: pretended
// cuDNN has a plan for every convolution of every model that gives the same bits in every run and fits its
// workspace limit, on GPUs that need not be present. cuDNN compiles some plans when they are created, and
// needs a driver to load them.
#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "exec_cuda_gpus.hpp"
#include <convoy/exec/cuda/cudnn.cuh>
#include <convoy/exec/stages.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using namespace convoy::exec::cuda;
using namespace exec_cuda;

namespace {

struct Precision {
  std::string_view name;
  DType element;
  bool reduced;
};
constexpr Precision precisions[] = {{"f32", DType::f32, false},
                                    {"tf32", DType::f32, true},
                                    {"bf16", DType::bf16, true},
                                    {"f16", DType::f16, true}};

/// Adds the distinct convolutions of a step to `all`.
void add_convolutions(std::vector<Convolution>& all, const Plan& plan, const Precision& precision, int rows) {
  const std::vector<char> wants = exec::find_gradients(plan);
  for (int n = 0; n < plan.graph.count.nodes; ++n) {
    if (!graph::is<graph::Conv2d>(plan.node(n))) continue;
    Convolution c = convolution_of(plan, n, precision.element, precision.reduced, rows);
    for (const Direction direction :
         {Direction::forward, Direction::backward_weight, Direction::backward_input}) {
      if (direction == Direction::backward_input &&
          wants[static_cast<std::size_t>(plan.graph.input(n, 0))] == 0)
        continue;
      c.direction = direction;
      if (std::find(all.begin(), all.end(), c) == all.end()) all.push_back(c);
    }
  }
}

/// The distinct convolutions of a step of each model. Models share most of them.
std::vector<Convolution> convolutions(std::initializer_list<const Plan*> models, const Precision& precision,
                                      int rows) {
  std::vector<Convolution> all;
  for (const Plan* model : models) add_convolutions(all, *model, precision, rows);
  return all;
}
std::vector<Convolution> convolutions(const Plan& plan, const Precision& precision, int rows) {
  return convolutions({&plan}, precision, rows);
}

/// Returns the number of distinct convolutions.
int check(std::initializer_list<const Plan*> models, int rows) {
  constexpr std::size_t limit = std::size_t{256} << 20;
  int count = 0;
  for (const Gpu& gpu : gpus) {
    const Cudnn cudnn{std::string_view(properties(gpu))};
    for (const Precision& precision : precisions) {
      for (const Convolution& c : convolutions(models, precision, rows)) {
        INFO(gpu.name, ' ', precision.name, " direction ", static_cast<int>(c.direction), ": ", c.in_channels,
             "x", c.in_height, "x", c.in_width, " to ", c.out_channels, "x", c.out_height, "x", c.out_width,
             ", taps ", c.height, "x", c.width, " stride ", c.stride, " padding ", c.top, ' ', c.bottom, ' ',
             c.left, ' ', c.right);
        const auto plans = cudnn.plans(c, limit, 1);
        REQUIRE(plans.size() == 1);
        CHECK(plans[0].workspace <= limit);
        ++count;
      }
    }
  }
  return count;
}

std::vector<cudnnBackendNumericalNote_t> notes_of(const CudnnPlan& plan) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  std::int64_t count = 0;
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  REQUIRE(cudnnBackendGetAttribute(plan.configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                   &handle) == CUDNN_STATUS_SUCCESS);
  REQUIRE(cudnnBackendGetAttribute(handle, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                   notes.data()) == CUDNN_STATUS_SUCCESS);
  notes.resize(static_cast<std::size_t>(count));
  return notes;
}

using Mnist18 = models::ResNet18<Image{1, 28, 28}, 10>;
using Mnist50 = models::ResNet50<Image{1, 28, 28}, 10>;
using ImageNet18 = models::ResNet18<Image{3, 224, 224}, 1000>;
using ImageNet50 = models::ResNet50<Image{3, 224, 224}, 1000>;
using ImageNet101 = models::ResNet101<Image{3, 224, 224}, 1000>;

}  // namespace

TEST_CASE("cudnn: every convolution of a ResNet on small images has a plan") {
  CHECK(check({&plan_of<Mnist18>, &plan_of<Mnist50>}, 128) > 200);
}

TEST_CASE("cudnn: every convolution of a ResNet on ImageNet has a plan") {
  CHECK(check({&plan_of<ImageNet18>, &plan_of<ImageNet50>, &plan_of<ImageNet101>}, 256) > 200);
}

TEST_CASE("cudnn: no convolution of a ResNet in 16 bits sums in less than f32") {
  constexpr std::size_t limit = std::size_t{256} << 20;
  const Cudnn cudnn{std::string_view(properties(gpus[1]))};
  std::ptrdiff_t on_tensor_cores = 0;
  for (const Convolution& c : convolutions(plan_of<ImageNet18>, precisions[3], 256))
    for (const CudnnPlan& plan : cudnn.plans(c, limit, 8)) {
      const auto notes = notes_of(plan);
      CHECK(std::count(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) == 0);
      on_tensor_cores += std::count(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    }
  CHECK(on_tensor_cores > 100);
}

TEST_CASE("cudnn: no convolution of a ResNet in f32 loses digits to a transform") {
  constexpr std::size_t limit = std::size_t{256} << 20;
  std::size_t seen = 0;
  for (const Gpu& gpu : {gpus[0], gpus[1]}) {
    const Cudnn cudnn{std::string_view(properties(gpu))};
    for (const Convolution& c : convolutions(plan_of<ImageNet18>, precisions[0], 256))
      for (const CudnnPlan& plan : cudnn.plans(c, limit, 8)) {
        const auto notes = notes_of(plan);
        for (const cudnnBackendNumericalNote_t note :
             {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
              CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
              CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13})
          CHECK(std::count(notes.begin(), notes.end(), note) == 0);
        ++seen;
      }
  }
  CHECK(seen > 100);
}

TEST_CASE("cudnn: a GPU's properties are those that it was told") {
  const std::string told = properties(gpus[1]), seen = Cudnn(std::string_view(told)).properties();
  for (const std::string_view part : {"\"deviceVer\":900", "\"multiProcessorCount\":132", "NVIDIA H200"}) {
    INFO(seen);
    CHECK(seen.find(part) != std::string::npos);
  }
}

TEST_CASE("cudnn: every convolution of a ResNet in 16 bits sums its channels") {
  constexpr std::size_t limit = std::size_t{256} << 20;
  // cuDNN takes a third of a second or more to compile each of these plans. Each call makes every third of
  // them, beginning with the next: calls with the same models together make all.
  int first = 0;
  const auto check_all = [&](std::initializer_list<const Plan*> models, int rows, const Gpu& gpu,
                             const Precision& precision) {
    const Cudnn cudnn{std::string_view(properties(gpu))};
    int seen = 0;
    ++first;
    for (Convolution c : convolutions(models, precision, rows)) {
      if (c.direction != Direction::forward || (++seen + first) % 3 != 0) continue;
      c.epilogue = ConvolutionEpilogue::statistics;
      INFO(gpu.name, ": ", c.in_channels, "x", c.in_height, "x", c.in_width, " to ", c.out_channels);
      // Image, weight, output and two sums.
      CHECK(c.tensors().size() == 5);
      CHECK(!cudnn.plans(c, limit, 1).empty());
    }
    return seen;
  };
  for (const Gpu& gpu : {gpus[0], gpus[1], desktop})
    for (const Precision& precision : {precisions[2], precisions[3]})
      CHECK(check_all({&plan_of<ImageNet50>, &plan_of<ImageNet18>}, 256, gpu, precision) == 29);
  CHECK(check_all({&plan_of<ImageNet50>}, 101, gpus[1], precisions[3]) == 23);
  CHECK(check_all({&plan_of<Mnist50>}, 128, gpus[1], precisions[3]) > 20);
}

TEST_CASE("cudnn: the gradients of a ResNet's batch norms come with those of inputs on H200") {
  constexpr std::size_t limit = std::size_t{256} << 20;
  // Counts the convolutions behind a batch norm and a ReLU, and those that have a plan: within a block, or at
  // the end of one, where two gradients meet and another image was added.
  const auto count = [&](const Plan& plan, const Gpu& gpu, const Precision& precision, bool at_end) {
    const Cudnn cudnn{std::string_view(properties(gpu))};
    std::set<std::string> with, all;
    for (Convolution c : convolutions(plan, precision, 256)) {
      if (c.direction != Direction::backward_input || (at_end && c.stride > 1)) continue;
      c.epilogue = ConvolutionEpilogue::batch_norm_backward;
      c.has_second = c.has_addend = at_end;
      CHECK(c.tensors().size() == (at_end ? 15u : 13u));
      const auto plans = cudnn.plans(c, c.most_workspace(limit), 1);
      const std::string name = concat(c.hash());
      all.insert(name);
      if (plans.empty()) continue;
      with.insert(name);
      CHECK(plans[0].workspace <= c.tensors()[0].bytes() / 2);
    }
    return std::pair(with.size(), all.size());
  };
  constexpr Precision half = precisions[3];
  for (const Plan* plan : {&plan_of<ImageNet50>, &plan_of<ImageNet18>})
    for (const bool at_end : {false, true}) {
      const auto [with, all] = count(*plan, gpus[1], half, at_end);
      CHECK(with == all);
      CHECK(all > 3);
    }
  // Other GPUs have none, or need extra memory as large as the passes over memory that they save.
  for (const Gpu& gpu : {gpus[0], gpus[2], desktop})
    CHECK(count(plan_of<ImageNet50>, gpu, half, false).first == 0);
  CHECK(count(plan_of<ImageNet50>, gpus[1], precisions[2], false).first == 0);
}

TEST_CASE("cudnn: convolutions of a ResNet behind a batch norm and a ReLU normalize what they read in f16") {
  constexpr std::size_t limit = std::size_t{256} << 20;
  // Counts the convolutions behind one batch norm and a ReLU, forward and towards the weight, and those that
  // have a plan.
  const auto count = [&](const Gpu& gpu, const Precision& precision) {
    const Cudnn cudnn{std::string_view(properties(gpu))};
    const Plan& plan = plan_of<ImageNet50>;
    std::vector<Convolution> all;
    std::size_t with = 0;
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      const int from = graph::is<graph::Conv2d>(plan.node(n)) ? plan.graph.input(n, 0) : -1;
      if (from < 0 || !graph::is<graph::Relu>(plan.node(from)) ||
          !graph::is<graph::BatchNorm>(plan.node(plan.graph.input(from, 0))))
        continue;
      Convolution c = convolution_of(plan, n, precision.element, precision.reduced, 256);
      c.normalizes = true;
      for (const Direction direction : {Direction::forward, Direction::backward_weight}) {
        c.direction = direction;
        c.epilogue =
            direction == Direction::forward ? ConvolutionEpilogue::statistics : ConvolutionEpilogue::none;
        if (std::find(all.begin(), all.end(), c) != all.end()) continue;
        all.push_back(c);
        CHECK(c.tensors().size() == (direction == Direction::forward ? 7u : 5u));
        const auto plans = cudnn.plans(c, c.most_workspace(limit), 1);
        if (plans.empty()) continue;
        ++with;
        CHECK(plans[0].workspace <= c.most_workspace(limit));
      }
    }
    return std::pair(with, all.size());
  };
  constexpr Precision half = precisions[3];
  const auto [with, all] = count(gpus[1], half);
  CHECK(with == all);
  CHECK(all > 20);
  CHECK(count(gpus[0], half).first > 20);
  CHECK(count(gpus[2], half).first == 0);
  CHECK(count(gpus[1], precisions[2]).first == 0);
}

TEST_CASE("cudnn: a plan is made again from its text") {
  const Cudnn cudnn{std::string_view(properties(gpus[1]))};
  const Convolution plain = convolutions(plan_of<Mnist18>, precisions[2], 128)[0];
  Convolution with_sums = convolutions(plan_of<ImageNet18>, precisions[3], 128)[2];
  with_sums.epilogue = ConvolutionEpilogue::statistics;
  Convolution with_batch_norm = convolutions(plan_of<ImageNet18>, precisions[3], 128)[4];
  REQUIRE(with_batch_norm.direction == Direction::backward_input);
  with_batch_norm.epilogue = ConvolutionEpilogue::batch_norm_backward;
  Convolution normalizing = with_sums;
  normalizing.normalizes = true;
  for (const Convolution& c : {plain, with_sums, with_batch_norm, normalizing}) {
    const auto plans = cudnn.plans(c, std::size_t{256} << 20, 1);
    REQUIRE(plans.size() == 1);
    const CudnnPlan again = cudnn.restored(plans[0].text());
    REQUIRE(again.plan);
    CHECK(again.workspace == plans[0].workspace);
  }
  CHECK(!cudnn.restored("{}").plan);
}
