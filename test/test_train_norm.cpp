// The gradient norm in the reports of steps: correct if something computes it, and absent if nothing does.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/optim/registry.hpp>

using namespace train_test;
using transport::Threads;

namespace {

using Chosen = Trainer<Bucketed, optim::Any, comm::Any, exec::Reference<f32>>;

struct Run {
  std::vector<std::optional<double>> norms;  // of each step, on rank 0
  std::vector<float> parameters;
};

Run run(int ranks, const std::string& policy, const optim::Any::Options& rule, const optim::Guard& guard) {
  const Blobs blobs(24);
  Run result;
  Threads::World(ranks).run([&](const Threads& endpoint) {
    Chosen trainer({.batch = 12 / ranks, .optimizer = rule, .guard = guard},
                   comm::make(policy, endpoint, {}, {}));
    std::vector<std::optional<double>> norms;
    trainer.fit(blobs, {.epochs = 2,
                        .on_step =
                            [&](const train::StepReport& step) {
                              norms.push_back(step.gradient_norm);
                              return train::Control::go_on;
                            },
                        .log = nullptr});
    if (endpoint.rank() == 0) result = {norms, all_parameters(trainer)};
  });
  CHECK(result.norms.size() == 4);
  return result;
}

}  // namespace

TEST_CASE("a step reports the norm of the gradient before clipping") {
  const Blobs blobs(12);
  Trainer<Plain, optim::Sgd, comm::None, exec::Reference<f32>> trainer{
      {.batch = 12, .optimizer = {.lr = 0.1f}, .guard = {.max_norm = 0.01f}}};
  double norm = -1;
  trainer.fit(blobs, {.steps = 1,
                      .on_step =
                          [&](const train::StepReport& step) {
                            norm = step.gradient_norm.value();
                            return train::Control::go_on;
                          },
                      .log = nullptr});
  double squares = 0;
  for (const auto& parameter : trainer.parameters())
    for (const float g : parameter.gradient()) squares += static_cast<double>(g) * static_cast<double>(g);
  CHECK(norm > 0.01);
  CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-9));
}

TEST_CASE("the norm does not depend on how ranks divide the updates, and measuring changes nothing") {
  const optim::Any::Options rule = optim::Sgd::Options{.lr = 0.05f};
  const optim::Guard measure{.measure = true};
  const Run alone = run(1, "ring", rule, measure);
  for (const char* policy : {"ring", "sharded", "reproducible"}) {
    CAPTURE(policy);
    const Run all = run(3, policy, rule, measure), unmeasured = run(3, policy, rule, {});
    for (std::size_t s = 0; s < alone.norms.size(); ++s) {
      CHECK(all.norms[s].value() == doctest::Approx(alone.norms[s].value()).epsilon(1e-5));
      CHECK(!unmeasured.norms[s]);
    }
    CHECK(all.parameters == unmeasured.parameters);
  }
}

TEST_CASE("rules that use norms of tensors' gradients report the norm of the whole gradient too") {
  const auto told = [](const char* policy, const optim::Any::Options& rule, const optim::Guard& guard) {
    return run(2, policy, rule, guard).norms[3].has_value();
  };
  const optim::Lars::Options lars{.lr = 0.01f};
  const optim::Lamb::Options lamb{.lr = 0.01f};
  CHECK(told("ring", lars, {}));
  CHECK(!told("ring", lamb, {}));  // uses norms of directions
  CHECK(told("ring", lamb, {.measure = true}));
  CHECK(!told("ps", lars, {.measure = true}));  // only the server knows it
  CHECK(run(2, "sharded", lars, {}).norms[0].value() ==
        doctest::Approx(run(2, "ring", optim::Sgd::Options{}, {.measure = true}).norms[0].value())
            .epsilon(1e-5));
}

TEST_CASE("a rule or guard that needs the whole gradient is refused if the exchange cannot provide it") {
  const auto refusal = [](const char* policy, const optim::Any::Options& rule, const optim::Guard& guard) {
    try {
      run(1, policy, rule, guard);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto sentence = [](const char* policy, const char* rule) {
    return concat(
        "trainer: the exchange ", policy,
        " updates before any rank has the whole gradient, so the trainer cannot clip it, skip steps, or "
        "use norms of the gradient or of tensors (optimizer ",
        rule, ")");
  };
  CHECK(refusal("ps-async", optim::Lamb::Options{}, {}) == sentence("ps-async", "lamb"));
  CHECK(refusal("ps-async", optim::Sgd::Options{}, {.max_norm = 1}) == sentence("ps-async", "sgd"));
  CHECK(refusal("ps-stale", optim::Sgd::Options{}, {.measure = true}) == sentence("ps-stale", "sgd"));
  CHECK(refusal("ps-async", optim::Sgd::Options{}, {}) == "");
  CHECK(refusal("ps", optim::Lamb::Options{}, {.max_norm = 1}) == "");
}
