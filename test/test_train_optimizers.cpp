// SANITIZE: none
// TIMEOUT: 300
// Trainers whose optimizer uses norms of tensors: with every way to divide updates among ranks, on the host
// and in memory that the host cannot touch; and what is refused.
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "remote_exec.hpp"
#include "train_support.hpp"
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/optim/registry.hpp>

using namespace train_test;
using remote_test::Remote;
using remote_test::RemoteExec;
using transport::Threads;

namespace {

/// Taps that only meet padding, and a bucket for each layer.
struct Cut : Dead {
  static constexpr BucketOptions buckets{.first = 64, .others = 64};
};

using Near = Trainer<Cut, optim::Any, comm::Any, exec::Reference<f32>>;
using Far = Trainer<Cut, optim::Lamb, comm::Staged<comm::Any, Remote>, RemoteExec>;
using Policy = std::function<comm::Any(const Threads&)>;

template <class T>
std::vector<std::vector<float>> trained(int ranks, const Policy& policy, const typename T::Config& config) {
  const Blobs blobs(60);
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks));
  Threads::World(ranks).run([&](const Threads& endpoint) {
    T trainer(config, policy(endpoint));
    trainer.fit(blobs, {.epochs = 2, .log = nullptr});
    if (trainer.comm().role() == comm::Role::worker)
      all[static_cast<std::size_t>(endpoint.rank())] = all_parameters(trainer);
  });
  return all;
}

Policy named(std::string name, comm::Choice choice = {}) {
  return [=](const Threads& endpoint) { return comm::make(name, endpoint, {}, choice); };
}

template <class T, class Rule>
void check(const typename Rule::Options& options, int ranks, const Policy& policy) {
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    const int batch = 12;
    const auto config = [&](int workers) {
      return typename T::Config{.batch = batch / workers, .optimizer = options, .guard = {.max_norm = clip}};
    };
    const auto alone = trained<T>(1, named("ring"), config(1))[0];
    const auto all = trained<T>(ranks, policy, config(3));
    CHECK(alone.size() > 0);
    for (const auto& parameters : all) {
      if (parameters.empty()) continue;
      CHECK(parameters == all[0]);
      CHECK(largest_difference(parameters, alone) < 2e-5f);
    }
  }
}

}  // namespace

TEST_CASE("norms of tensors do not depend on how ranks divide the updates") {
  const auto both = [](int ranks, const Policy& policy, float decay) {
    check<Near, optim::Lars>({.weight_decay = decay}, ranks, policy);
    check<Near, optim::Lamb>({.lr = 0.01f, .weight_decay = decay}, ranks, policy);
  };
  both(3, named("ring"), 0.1f);
  both(3, named("sharded"), 0.1f);
  both(3, named("ps", {.servers = 2}), 0);
  both(4, named("ps", {.servers_beside = true}), 0);
}

TEST_CASE("norms of tensors do not depend on the space in which they are computed") {
  check<Far, optim::Lamb>({.lr = 0.01f, .weight_decay = 0.1f}, 3, named("sharded"));
  check<Far, optim::Lamb>({.lr = 0.01f, .weight_decay = 0}, 3, named("ps", {.servers = 2}));
}

TEST_CASE("an optimizer is refused if only servers know at which rate dead taps decay") {
  const auto refused = [](const optim::Any::Options& options) -> std::string {
    try {
      trained<Near>(1, named("ps"), {.batch = 12, .optimizer = options});
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  CHECK(
      refused(optim::Lars::Options{.weight_decay = 0.1f})
          .find(
              "the optimizer lars decays a tensor at a rate that depends on norms, which only the servers of "
              "the exchange ps know") != std::string::npos);
  CHECK(refused(optim::Lars::Options{}) == "nothing was refused");
  CHECK(refused(optim::AdamW::Options{}) == "nothing was refused");
}
