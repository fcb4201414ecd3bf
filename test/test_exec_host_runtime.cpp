// NEEDS: host
// SANITIZE: none
// ALONE
// Guarantees of Host other than numbers: no allocation in a step, the same bits in every run and next to
// other Hosts, no reference code of oneDNN, one sentence for unsupported configurations.
#include <thread>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "exec_compare.hpp"
#include "exec_throw.hpp"
#include "sanitized.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/models/resnet.hpp>
#if __has_include(<omp.h>)
#include <omp.h>  // after convoy, which declares some of its functions
#endif

using namespace convoy;
using HostF32 = exec::Host<f32>;

namespace {

const Plan& resnet = plan_of<models::ResNet18<Image{1, 28, 28}, 10>>;
constexpr int rows = sanitized ? 4 : 16;

/// A model without oneDNN operations, so every allocation in a step would be convoy's.
struct OwnLoops {
  static constexpr void define(auto& g) {
    auto x = g.input("image", {32, 1, 1});
    x = g.relu(g.batch_norm(x));
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 32})));
    x = g.max_pool(x, {.kernel = 3, .stride = 2, .padding = 1});
    x = g.avg_pool(g.relu(g.add(x, g.batch_norm(g.conv2d(x, {.channels = 32})))), {.kernel = 1});
    x = g.flatten(x);
    g.output("features", x);
    g.loss(g.cross_entropy(x, g.label("label", 32)));
  }
};

/// Three steps of gradient descent; returns all parameters.
std::vector<float> train(const Plan& plan, int batch, int threads) {
  HostF32 host(plan, batch, {.threads = threads});
  exec_compare::randomize(host, plan, Philox{1, 2});
  for (std::uint64_t step = 0; step < 3; ++step) {
    const exec_compare::Batch data(plan, step == 1 ? batch - 3 : batch, Philox{7, step});
    exec_compare::forward(host, data);
    exec_compare::backward(host, plan, 1.0f / static_cast<float>(batch));
    for (std::size_t i = 0; i < host.gradients().size(); ++i)
      host.parameters()[i] -= 0.01f * host.gradients()[i];
  }
  return {host.parameters().begin(), host.parameters().end()};
}

std::int64_t allocations_in_a_step(const Plan& plan, int batch, int threads) {
  HostF32 host(plan, batch, {.threads = threads});
  exec_compare::randomize(host, plan, Philox{1, 2});
  const exec_compare::Batch data(plan, batch, Philox{3, 4}), ragged(plan, batch - 1, Philox{3, 5});
  const std::vector<float> scales(plan.losses.size(), 1.0f);
  auto step = [&](const exec::BatchView& view) {
    host.forward(view, {});
    host.result();
    host.backward(scales, [](std::int64_t) {});
    host.forward(view, {.mode = exec::Mode::evaluate});
    host.result();
    host.output(0);
  };
  step(data);
  step(ragged);
  const std::int64_t before = allocations;
  step(data);
  step(ragged);
  return allocations - before;
}

}  // namespace

TEST_CASE("host: a step after the first allocates nothing of convoy's own") {
  CHECK(allocations_in_a_step(plan_of<OwnLoops>, 8, 1) == 0);
  CHECK(allocations_in_a_step(plan_of<OwnLoops>, 8, 2) == 0);
  // oneDNN allocates a little for each primitive that it runs, whatever the batch. Below 16 rows, other
  // primitives run.
  const std::int64_t small = allocations_in_a_step(resnet, 20, 1),
                     large = allocations_in_a_step(resnet, 32, 1);
  MESSAGE("operator new in 2 training and 2 evaluation passes of ResNet-18, within oneDNN: ", large);
  CHECK(small == large);
}

TEST_CASE("host: two runs give the same bits") {
  CHECK(train(resnet, rows, 1) == train(resnet, rows, 1));
  CHECK(train(resnet, rows, 2) == train(resnet, rows, 2));
}

TEST_CASE("host: several Hosts in threads of one process give the bits that each gives alone") {
  const auto alone = train(resnet, rows, 1);
  std::vector<std::vector<float>> results(3);
  std::vector<std::thread> ranks;
  for (auto& result : results) ranks.emplace_back([&result] { result = train(resnet, rows, 1); });
  for (auto& rank : ranks) rank.join();
  for (const auto& result : results) CHECK(result == alone);
}

TEST_CASE("host: no step runs reference code of oneDNN, and each says what it runs") {
  for (const Plan* plan : {&resnet, &plan_of<models::ResNet50<Image{3, 64, 64}, 10>>}) {
    const HostF32 host(*plan, 8, {.threads = 1});
    for (const auto& stage : host.profile()) {
      INFO(stage.name, ": ", stage.implementation);
      CHECK(!stage.implementation.empty());
      CHECK(stage.implementation.find("ref") == std::string::npos);
    }
  }
}

TEST_CASE("host: a profile is kept when asked for") {
  HostF32 host(resnet, 4, {.threads = 1, .profile = true});
  exec_compare::randomize(host, resnet, Philox{1, 2});
  const exec_compare::Batch data(resnet, 4, Philox{3, 4});
  exec_compare::forward(host, data);
  exec_compare::backward(host, resnet);
  CHECK(host.profile().size() == resnet.stages.size());
  CHECK(host.profile()[0].forward.runs == 1);
  CHECK(host.profile()[0].backward.runs == 1);
  CHECK(host.profile()[0].forward.total > 0);
}

TEST_CASE("host: a pass in which a user's operation throws has no result, no output and no backward") {
  exec_compare::check_after_a_throw<HostF32>();
}

TEST_CASE("host: what cannot work is one sentence") {
  CHECK_THROWS_WITH_AS(HostF32(resnet, 0), "exec: the batch must have at least one row, not 0", ConfigError);
  CHECK_THROWS_WITH_AS(HostF32(resnet, 4, {.threads = -1}), "exec: threads must be from 0 to 8192, not -1",
                       ConfigError);
  CHECK_THROWS_WITH_AS(HostF32(resnet, 4, {.threads = 8193}),
                       "exec: threads must be from 0 to 8192, not 8193", ConfigError);
  HostF32 host(resnet, 4, {.threads = 1});
  CHECK_THROWS_AS(exec_compare::backward(host, resnet), ExecError);
  CHECK_THROWS_AS(host.result(), ExecError);
  CHECK_THROWS_AS(host.output(0), ExecError);
  CHECK_THROWS_AS(host.output(1), ConfigError);
  const exec_compare::Batch large(resnet, 5, Philox{1, 1});
  CHECK_THROWS_WITH_AS(host.forward(large, {}),
                       "exec: a batch of 5 rows was given to an exec prepared for 1 to 4", ConfigError);
  const std::vector<float> image(4 * 784);
  const std::vector<i32> labels{1, 2, 10, 3};
  const void* const fields[] = {image.data(), labels.data()};
  CHECK_THROWS_WITH_AS(host.forward({fields, 4}, {}),
                       "exec: the label 'label' of row 2 is 10, expected 0 to 9", ExecError);
  CHECK_THROWS_AS(host.forward({std::span(fields, 1), 4}, {}), ConfigError);
  const exec_compare::Batch batch(resnet, 4, Philox{1, 1});
  host.forward(batch, {});
  CHECK_THROWS_WITH_AS(host.backward({}, exec::InOnePiece{}), "exec: 0 scales for 1 losses", ExecError);
  std::vector<float> wrong(3);
  CHECK_THROWS_AS(host.read_parameter(0, wrong), ConfigError);
  CHECK_THROWS_AS(host.read_gradient(0, wrong), ConfigError);
  auto kernels = exec::kernels<HostF32>;
  kernels[static_cast<std::size_t>(graph::index_of<graph::MaxPool>)] = {};
  CHECK_THROWS_WITH_AS(HostF32(resnet, 4, {}, memory::host(), kernels),
                       "exec: host has no kernel for the operation max_pool of maxpool", ExecError);
}
