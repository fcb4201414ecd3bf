// SANITIZE: none
// Groups of parameters in a Trainer, and ranks whose groups differ.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace train_test;

namespace {

using Alone = Trainer<Plain, optim::Sgd, comm::None, exec::Reference<f32>>;

// Each parameter before and after three steps on the same batch.
struct Trained {
  std::vector<std::string> names;
  std::vector<std::vector<float>> before, after;
};

Trained train_three(const Alone::Config& config) {
  const Blobs blobs(10);
  Alone trainer(config);
  Trained result;
  const auto read = [&](std::vector<std::vector<float>>& into) {
    for (std::size_t p = 0; p < trainer.plan.parameter_list.size(); ++p) {
      into.emplace_back(static_cast<std::size_t>(trainer.plan.parameter_list[p].shape.size()));
      trainer.exec().read_parameter(static_cast<int>(p), into.back());
    }
  };
  for (const auto& parameter : trainer.plan.parameter_list) result.names.emplace_back(parameter.name.view());
  read(result.before);
  trainer.fit(blobs, {.epochs = 3, .log = nullptr});
  read(result.after);
  return result;
}

bool ends_with_bias(const std::string& name) { return name.ends_with(".bias"); }

}  // namespace

TEST_CASE("the parameters of a frozen group stay as they are, and the others learn") {
  const auto trained =
      train_three({.batch = 10, .optimizer = {.lr = 0.05f}, .groups = {{.match = "*.bias", .frozen = true}}});
  CHECK(std::count_if(trained.names.begin(), trained.names.end(), ends_with_bias) == 2);
  for (std::size_t p = 0; p < trained.names.size(); ++p) {
    CAPTURE(trained.names[p]);
    CHECK((trained.before[p] == trained.after[p]) == ends_with_bias(trained.names[p]));
  }
}

TEST_CASE("a group of parameters that the model has frozen already is refused, and says so") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.flatten(g.input("image", image));
    x = g.relu(g.linear(x, {.features = 4, .frozen = true, .name = "body"}));
    g.loss(g.cross_entropy(g.linear(x, {.features = classes}), g.label("label", classes)));
  });
  std::string sentence;
  try {
    const train::PlanTrainer<optim::Sgd, comm::None, exec::Reference<f32>> trainer{
        plan, {.groups = {{.match = "body.*", .lr_scale = 0.1f}}}};
  } catch (const ConfigError& error) {
    sentence = error.what();
  }
  CHECK(sentence == "group 0: no parameter that the model trains has a name like 'body.*'");
}

TEST_CASE("biases decay only where all parameters do") {
  const optim::Sgd::Options heavy{.lr = 0.05f, .weight_decay = 0.5f};
  const auto usual = train_three({.batch = 10, .optimizer = heavy});
  const auto all = train_three({.batch = 10, .optimizer = heavy, .decay_all = true});
  const auto said =
      train_three({.batch = 10, .optimizer = heavy, .groups = {{.match = "*.bias", .weight_decay = 0.5f}}});
  CHECK(usual.after != all.after);
  CHECK(all.after == said.after);
}

TEST_CASE("ranks whose groups or optimizers differ are refused") {
  const auto refused = [](auto change) {
    std::string sentence;
    transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
      ThreadTrainer<Plain>::Config config{.batch = 4};
      if (endpoint.rank() == 1) change(config);
      try {
        const ThreadTrainer<Plain> trainer(config, endpoint);
      } catch (const Error& error) {
        if (endpoint.rank() == 0) sentence = error.what();
      }
    });
    return sentence;
  };
  CHECK(refused([](auto& config) {
          config.groups = {{.lr_scale = 0.5f}};
        }).starts_with("rank 1 differs from rank 0 in groups: [{match=*, lr_scale=0.5"));
  CHECK(refused([](auto& config) {
          config.decay_all = true;
        }).starts_with("rank 1 differs from rank 0 in decay_all"));
  CHECK(refused([](auto& config) { config.optimizer.nesterov = true; }) ==
        "rank 1 differs from rank 0 in optimizer.nesterov: true instead of false");
}
