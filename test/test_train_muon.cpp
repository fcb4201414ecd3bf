// NEEDS: host
// Trainers with Muon: which parameters are matrices, the same updates with every storage order of an Exec,
// number of ranks and exchange policy, and the spaces that are refused.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "remote_exec.hpp"
#include "sanitized.hpp"
#include "train_wide.hpp"
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/gpt.hpp>

using namespace train_test;
using remote_test::Remote;
using remote_test::RemoteExec;
using transport::Threads;

namespace {

template <class Exec>
using Chosen = Trainer<Wide, optim::Any, comm::Any, Exec>;

template <class Exec>
std::vector<float> trained(int ranks, const std::string& policy, const typename Exec::Options& exec = {},
                           std::vector<optim::GroupOptions> groups = {}) {
  const Blobs blobs(60);
  std::vector<float> result;
  Threads::World(ranks).run([&](const Threads& endpoint) {
    Chosen<Exec> trainer(
        {.batch = 12 / ranks, .optimizer = muon, .groups = groups, .guard = {.max_norm = 1}, .exec = exec},
        comm::make(policy, endpoint, {}, {}));
    const auto report = trainer.fit(blobs, {.epochs = 4, .log = nullptr});
    CHECK(report.loss < 1.2);
    auto parameters = all_parameters(trainer);
    if (endpoint.rank() == 0) result = std::move(parameters);
  });
  return result;
}

std::vector<std::string> matrices_of(const Plan& plan) {
  std::vector<std::string> names;
  const auto are = train::are_matrices(plan);
  for (std::size_t p = 0; p < are.size(); ++p)
    if (are[p]) names.emplace_back(plan.parameter_list[p].name.view());
  return names;
}

}  // namespace

TEST_CASE("weights are matrices, except for embeddings and a weight whose product a loss reads") {
  CHECK(matrices_of(plan_of<Wide>) == std::vector<std::string>{"first.weight", "second.weight",
                                                               "third.weight", "fourth.weight",
                                                               "hidden.weight"});
  const std::string layer = "transformer.h.0.";
  CHECK(matrices_of(plan_of<models::Gpt2<1, 8, 2, 4, 16, 4>>) ==
        std::vector<std::string>{layer + "attn.c_attn.weight", layer + "attn.c_proj.weight",
                                 layer + "mlp.c_fc.weight", layer + "mlp.c_proj.weight"});
}

TEST_CASE("the last layer before a loss is no matrix, whatever without parameters is between") {
  const auto matrices = [](auto loss) {
    const DynamicPlan plan([&](graph::Builder& g) {
      const auto x = g.relu(g.linear(g.input("features", {8}), {.features = 8, .name = "body"}));
      loss(g, g.linear(x, {.features = 4, .name = "head"}));
    });
    return matrices_of(plan);
  };
  using Names = std::vector<std::string>;
  using graph::Builder;
  using graph::Tensor;
  CHECK(matrices([](Builder& g, Tensor x) {
          const auto each = g.cross_entropy(x, g.label("label", 4));
          g.loss(g.multiply(each, g.input("weight", {})));
        }) == Names{"body.weight"});
  CHECK(matrices([](Builder& g, Tensor x) {
          const auto first = g.cross_entropy(x, g.label("first", 4));
          g.loss(g.add(first, g.cross_entropy(x, g.label("second", 4))));
        }) == Names{"body.weight"});
  CHECK(matrices([](Builder& g, Tensor x) { g.loss(g.mse_loss(g.input("target", {4}), g.sigmoid(x))); }) ==
        Names{"body.weight"});
  // A sum of several layers is no layer, and a number of the data set comes from none.
  CHECK(matrices([](Builder& g, Tensor x) {
          const auto y = g.add(x, g.linear(x, {.features = 4, .name = "tail"}));
          g.loss(g.mse_loss(y, g.input("target", {4})));
        }) == Names{"body.weight", "head.weight", "tail.weight"});
  CHECK(matrices([](Builder& g, Tensor) { g.loss(g.input("number", {})); }) ==
        Names{"body.weight", "head.weight"});
}

TEST_CASE("matrices are updated alike in every order in which an Exec stores them") {
  const auto reference = trained<exec::Reference<f32>>(1, "ring");
  const auto host = trained<exec::Host<f32>>(1, "ring", {.threads = 2});
  CHECK(host.size() == static_cast<std::size_t>(plan_of<Wide>.parameters()));
  CHECK(largest_difference(host, reference) < 2e-4f);
  CHECK(largest_difference(trained<exec::Host<f32>>(1, "ring", {.canonical = true}), reference) < 2e-4f);
  const auto by_element = trained<exec::Host<f32>>(1, "ring", {}, {{.match = "hidden*", .by_element = true}});
  CHECK(largest_difference(by_element, reference) > 5e-3f);
}

TEST_CASE("several ranks make the same updates as one") {
  const auto alone = trained<exec::Reference<f32>>(1, "ring");
  for (const char* policy : {"ring", "reproducible", "tree", "sharded", "ps"}) {
    if (sanitized && policy != std::string_view("tree") && policy != std::string_view("sharded")) continue;
    CHECK(largest_difference(trained<exec::Reference<f32>>(3, policy), alone) < 2e-4f);
  }
  CHECK(largest_difference(trained<exec::Reference<f32>>(1, "sharded"), alone) < 2e-4f);
}

TEST_CASE("ranks that divide matrices update each in the order in which an Exec stores it") {
  const auto reference = trained<exec::Reference<f32>>(1, "ring");
  for (const char* policy : {"sharded", "ps"})
    CHECK(largest_difference(trained<exec::Host<f32>>(2, policy, {.threads = 1}), reference) < 2e-4f);
}

TEST_CASE("state that a matrix does not have is visited as zeros") {
  struct SecondMoments {
    std::map<std::string, std::vector<float>, std::less<>> of;
    void tensor(std::string_view name, const Shape&, std::span<float> values) {
      constexpr std::string_view prefix = "optimizer.exp_avg_sq.";
      if (name.starts_with(prefix))
        of[std::string(name.substr(prefix.size()))].assign(values.begin(), values.end());
    }
    void counter(std::string_view, std::int64_t&) {}
    void real(std::string_view, double&) {}
  } moments;
  Trainer<Wide, optim::Muon, comm::Ring<Threads>, exec::Reference<f32>> trainer({.optimizer = muon});
  trainer.fit(Blobs(60), {.log = nullptr});
  trainer.visit_state(moments, train::Visit::read);
  const auto is_zero = [](float value) { return value == 0; };
  for (const std::string& name : matrices_of(trainer.plan))
    CHECK(std::all_of(moments.of.at(name).begin(), moments.of.at(name).end(), is_zero));
  CHECK_FALSE(std::all_of(moments.of.at("head.weight").begin(), moments.of.at("head.weight").end(), is_zero));
}

TEST_CASE("a space without matrix products is refused") {
  using Far = Trainer<Wide, optim::Any, comm::Staged<comm::Any, Remote>, RemoteExec>;
  Threads::World(1).run([&](const Threads& endpoint) {
    std::string said = "nothing was refused";
    try {
      Far trainer({.batch = 4, .optimizer = muon}, comm::make("ring", endpoint, {}, {}));
    } catch (const ConfigError& error) {
      said = error.what();
    }
    CHECK(said ==
          "optimizer muon multiplies whole matrices, which is implemented for host memory and NVIDIA GPUs, "
          "but not for the space remote; choose another optimizer, or compute on one of these");
  });
}
