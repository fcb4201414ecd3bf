// exec::Cuda against the reference over each operation and over random models: run on the CPU by
// test_exec_cuda_models.cpp, and on a GPU by test_exec_cuda_gpu.cu.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_cuda_alone.hpp"
#include "exec_cuda_custom.hpp"
#include "exec_distance.hpp"
#include "exec_models.hpp"
#include "exec_operations.hpp"
#include "exec_random_graphs.hpp"
#include "exec_random_models.hpp"
#include "skip.hpp"
#include "temporary_folder.hpp"
#include <convoy/models/bert.hpp>
#include <convoy/models/convnet.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/transformer.hpp>

namespace exec_cuda {

using namespace convoy;

using Emulated = Alone<f32>;

}  // namespace exec_cuda

using namespace exec_cuda;

TEST_CASE("cuda: each operation agrees with the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  std::uint64_t seed = 300;
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    CHECK(exec_compare::difference<Emulated>(plan, {.seed = ++seed, .batch = 3}) == "");
  }
}

TEST_CASE("cuda: random models of images agree with the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const exec_compare::ModelOf<Customs> model{seed, {.largest_map = 6}};
    INFO("seed ", seed, "\n", model.text());
    CHECK(exec_compare::difference<Emulated>(model.plan(),
                                             {.seed = seed, .batch = 1 + static_cast<int>(seed % 4)}) == "");
  }
}

TEST_CASE("cuda: random graphs of all operations agree with the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const DynamicPlan plan([&](auto& g) { exec_random_graphs::define<Customs>(g, Philox{seed, 79}); });
    INFO("seed ", seed, "\n", exec_compare::Model::describe(plan));
    CHECK(exec_compare::difference<Emulated>(plan, {.seed = seed, .batch = 1 + static_cast<int>(seed % 5)}) ==
          "");
  }
}

TEST_CASE("cuda: shared parameters, sequences, bytes and custom parameters agree with the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  exec_models::for_each<CustomsWithParameters>([](const std::string& name, const Plan& plan) {
    INFO(name);
    CHECK(exec_compare::difference<Emulated>(plan, {.seed = 3, .batch = 3}) == "");
  });
}

TEST_CASE("cuda: small models of every kind agree with the reference, with dropout") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  std::uint64_t seed = 40;
  for (const Plan* plan :
       {&plan_of<models::ConvNet<Image{2, 8, 8}, 4>>, &plan_of<models::Transformer<2, 24, 3, 40, 9, 30, 5>>,
        &plan_of<models::Transformer<2, 16, 2, 24, 7, 30, 5, models::NormPlace::after>>,
        &plan_of<models::Bert<2, 48, 3, 40, 9, 30, 4, 12>>, &plan_of<models::Gpt2<2, 24, 3, 9, 30, 12>>})
    for (const int batch : {1, 3})
      CHECK(exec_compare::difference<Emulated>(*plan, {.seed = ++seed, .batch = batch}) == "");
}

TEST_CASE("cuda: custom operations and losses agree with the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  std::uint64_t seed = 500;
  for (const auto& operation : custom_cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    CHECK(exec_compare::difference<Emulated>(plan, {.seed = ++seed, .batch = 3}) == "");
    const std::uint64_t own = hash_of(operation.name);
    CHECK(exec_compare::usual_distance<Alone<f32>>(plan, own) < 1e-5);
    CHECK(exec_compare::usual_distance<Alone<bf16>>(plan, own) < 3e-2);
    CHECK(exec_compare::usual_distance<Alone<f16>>(plan, own) < 4e-3);
  }
}

TEST_CASE("cuda: a custom operation without functions for a device is named") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan([](auto& g) {
    auto x = g.custom(exec_compare::Swish{}, g.linear(g.input("x", {3}), {.features = 3}));
    g.loss(g.cross_entropy(x, g.label("label", 3)));
  });
  CHECK_THROWS_WITH_AS(Emulated(plan, 1, {}),
                       "exec: cuda computes a custom operation or loss by its functions for a device, and "
                       "custom.0 has none: give it static void forward(cudaStream_t, View<const float> x, "
                       "..., View<float> y) and a backward likewise",
                       ExecError);
}

TEST_CASE("cuda: a metric with a function for a device is measured there, in every pass") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan([](auto& g) {
    const auto x = g.gelu(g.input("image", {3, 5, 4}));
    g.metric("magnitude", Magnitude{}, x);
    g.metric("the same on the host", exec_compare::Magnitude{}, x);
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 3}), g.label("label", 3)));
  });
  const int before = Magnitude::on_host;
  Alone<bf16> exec(plan, 3, {});
  std::vector<double> seen;
  for (const int rows : {3, 3, 3, 2}) {  // the second pass is captured, and the third replays it
    exec.forward(exec_compare::Batch(plan, rows, Philox{1, 2}), {});
    const auto metrics = exec.result().metrics;
    REQUIRE(metrics.size() == 2);
    CHECK(metrics[0] > 0);
    CHECK(metrics[0] == doctest::Approx(metrics[1]).epsilon(1e-6));
    seen.push_back(metrics[0]);
  }
  CHECK(seen[1] == seen[0]);
  CHECK(seen[2] == seen[0]);
  CHECK(seen[3] != seen[0]);
  CHECK(Magnitude::on_host == before);
}

TEST_CASE("cuda: a backward needs a scale for each loss") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan([](auto& g) {
    g.loss(g.cross_entropy(g.linear(g.input("x", {3}), {.features = 3}), g.label("label", 3)));
  });
  Emulated exec(plan, 2, {});
  exec.forward(exec_compare::Batch(plan, 2, Philox{1, 2}), {});
  CHECK_THROWS_WITH_AS(exec.backward({}, exec::InOnePiece()), "exec: 0 scales for 1 losses", ExecError);
  exec.backward(std::vector<float>{1}, exec::InOnePiece());
}

TEST_CASE("cuda: what a custom operation's functions could not start is found though they do not look") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan([](auto& g) { g.loss(g.custom_loss(Failing{}, g.input("x", {3}))); });
  Emulated exec(plan, 2, {});
  const exec_compare::Batch batch(plan, 2, Philox{1, 2});
  CHECK_THROWS_WITH_AS(exec.forward(batch, {}), doctest::Contains("could not start the kernels of custom.0"),
                       convoy::device::DeviceError);
}

TEST_CASE("cuda: in 16 bits gradients are off by what rounding costs") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    // The seed does not depend on the operation's position in the list.
    const std::uint64_t seed = hash_of(operation.name);
    CHECK(exec_compare::usual_distance<Alone<f32>>(plan, seed) < 1e-5);
    CHECK(exec_compare::usual_distance<Alone<bf16>>(plan, seed) < 3e-2);
    CHECK(exec_compare::usual_distance<Alone<f16>>(plan, seed) < 4e-3);
  }
}

TEST_CASE(
    "cuda: the ways that were chosen for convolutions and products are kept, and a file that is damaged is "
    "made anew") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  namespace fs = std::filesystem;
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path;
  const DynamicPlan plan(
      [](auto& g) { exec_operations::head(g, g.conv2d(exec_operations::image(g, 8), {.channels = 8})); });
  const exec::CudaOptions options{.plan_cache = folder.string()};
  const exec_compare::Batch batch(plan, 2, Philox{1, 2});
  const auto losses = [&] {
    Emulated exec(plan, 2, options);
    exec_compare::randomize(exec, plan, Philox{3, 4});
    return exec_compare::forward(exec, batch).loss();
  };
  const auto files = [&] {
    std::vector<fs::path> all(fs::directory_iterator(folder), fs::directory_iterator{});
    std::sort(all.begin(), all.end());
    return all;
  };
  const double first = losses();
  const auto kept = files();
  // Two convolutions and a linear layer, forward and backward; the first convolution needs no input gradient.
  // A product that takes less time apart from its bias is kept in both ways.
  CHECK(kept.size() >= 5 + 3);
  std::vector<fs::file_time_type> times;
  for (const fs::path& file : kept) times.push_back(fs::last_write_time(file));
  CHECK(losses() == first);
  CHECK(files() == kept);
  for (std::size_t i = 0; i < kept.size(); ++i) CHECK(fs::last_write_time(kept[i]) == times[i]);
  for (const fs::path& file : kept) std::ofstream(file) << "{}";
  CHECK(losses() == first);
  for (const fs::path& file : kept) CHECK(fs::file_size(file) > 2);
}

TEST_CASE("cuda: the scale of losses in f16 stays a normal number whatever the gradients are") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  const DynamicPlan plan([](auto& g) {
    const auto x = g.linear(g.input("x", {3}), {.features = 2}), weight = g.input("weight", {});
    g.loss(g.multiply(weight, g.cross_entropy(x, g.label("label", 2))));
  });
  const auto exponent_after = [&](std::int64_t exponent, float weight) {
    Alone<f16> exec(plan, 1, {});
    exec.visit_state([&](std::string_view name, std::int64_t& number) {
      number = name == "loss_scale_exponent" ? exponent : exec::cuda::LossScale::patience - 1;
    });
    const float x[3] = {1, 2, 3};
    const i32 label = 1;
    const void* const fields[] = {x, &weight, &label};
    exec.forward({fields, 1}, {.mode = exec::Mode::train});
    exec.backward(std::vector<float>{1}, exec::InOnePiece());
    exec.visit_state([&](std::string_view name, std::int64_t& number) {
      if (name == "loss_scale_exponent") exponent = number;
    });
    return exponent;
  };
  CHECK(exponent_after(5, 0) == 6);
  CHECK(exponent_after(127, 0) == 127);
  const float infinite = std::numeric_limits<float>::infinity();
  CHECK(exponent_after(5, infinite) == 4);
  CHECK(exponent_after(-126, infinite) == -126);
}
