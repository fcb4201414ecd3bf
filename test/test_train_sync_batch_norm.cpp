// NEEDS: host
// Batch norms over the rows of all ranks: several ranks train as one rank with all rows.
#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/background.hpp>
#include <convoy/comm/policy/weighted.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/exec/replay.hpp>

using namespace train_test;

namespace {

/// Batch norms after convolutions and alone, with a residual, with channels that fill no block. Each layer is
/// a bucket, so that ranks meet in batch norms while gradients are being exchanged.
struct Residual {
  static constexpr BucketOptions buckets{.first = 64, .others = 64};
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 12})));
    auto y = g.relu(g.batch_norm(g.conv2d(x, {.channels = 20, .stride = 2})));
    y = g.batch_norm(g.conv2d(y, {.channels = 20}));
    y = g.relu(g.add(y, g.batch_norm(g.conv2d(x, {.channels = 20, .kernel = 1, .stride = 2}))));
    y = g.batch_norm(g.max_pool(y, {.kernel = 2}));
    x = g.linear(g.flatten(y), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

struct Trained {
  std::vector<float> parameters, statistics;
  std::vector<double> losses;
};

template <class Exec, class Comm>
Trained trained(int ranks, bool synchronized, int accumulate) {
  const Blobs blobs(130);
  Trained result;
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    Trainer<Residual, optim::Sgd, Comm, Exec> trainer({.batch = 24 / ranks,
                                                       .accumulate = accumulate,
                                                       .optimizer = {.lr = 0.05f, .momentum = 0.9f},
                                                       .sync_batch_norm = synchronized},
                                                      endpoint);
    std::vector<double> losses;
    trainer.fit(blobs, {.epochs = 2,
                        .on_step =
                            [&](const convoy::train::StepReport& report) {
                              losses.push_back(report.loss);
                              return convoy::train::Control::go_on;
                            },
                        .log = nullptr});
    auto parameters = all_parameters(trainer);
    if (trainer.rank() != ranks - 1) return;
    result = {std::move(parameters),
              {trainer.exec().statistics().begin(), trainer.exec().statistics().end()},
              std::move(losses)};
  });
  return result;
}

/// The largest difference of two trainings in parameters, running statistics and losses of steps.
double apart(const Trained& a, const Trained& b) {
  if (a.losses.size() != b.losses.size()) return 1e30;
  double most = std::max(largest_difference(a.parameters, b.parameters),
                         largest_difference(a.statistics, b.statistics));
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    most = std::max(most, std::abs(a.losses[i] - b.losses[i]));
  return most;
}

template <class Exec>
using ByRing = Trainer<Residual, optim::Sgd, comm::Ring<transport::Threads>, Exec>;

}  // namespace

TEST_CASE_TEMPLATE("sync_batch_norm: ranks train what one rank trains with all of their rows", Exec,
                   exec::Reference<f32>, exec::Host<f32>) {
  using Ring = comm::Ring<transport::Threads>;
  for (const int accumulate : {1, 2}) {
    const Trained alone = trained<Exec, Ring>(1, false, accumulate);
    CHECK(apart(trained<Exec, Ring>(1, true, accumulate), alone) == 0);
    // The last step of an epoch has 10 rows, which 3 and 4 ranks share unequally.
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(ranks);
      CHECK(apart(trained<Exec, Ring>(ranks, true, accumulate), alone) < 2e-4);
      CHECK(apart(trained<Exec, Ring>(ranks, false, accumulate), alone) > 2e-3);
    }
  }
}

TEST_CASE("sync_batch_norm: over every kind of exchange that keeps ranks in step") {
  using Exec = exec::Host<f32>;
  const Trained alone = trained<Exec, comm::Ring<transport::Threads>>(1, false, 1);
  CHECK(apart(trained<Exec, comm::Direct<transport::Threads>>(3, true, 1), alone) < 2e-4);
  CHECK(apart(trained<Exec, comm::Sharded<comm::Ring<transport::Threads>>>(3, true, 1), alone) < 2e-4);
  CHECK(apart(trained<Exec, comm::Reproducible<comm::Ring<transport::Threads>>>(3, true, 1), alone) < 2e-4);
  CHECK(apart(trained<Exec, comm::Background<comm::Ring<transport::Threads>>>(3, true, 1), alone) < 2e-4);
  CHECK(apart(trained<Exec, comm::ParameterServer<transport::Threads>>(3, true, 1), alone) < 2e-4);
}

TEST_CASE("sync_batch_norm: all threads of a rank take part") {
  const Blobs blobs(130);
  using ByHost = ByRing<exec::Host<f32>>;
  using Config = ByHost::Config;
  const auto of_threads = [&](int threads) {
    const Config config{
        .batch = 12, .optimizer = {.lr = 0.05f}, .sync_batch_norm = true, .exec = {.threads = threads}};
    return train_test::train<ByHost>(2, config, data::DatasetRef(&blobs), {.epochs = 1, .log = nullptr});
  };
  CHECK(largest_difference(of_threads(1), of_threads(2)) < 1e-5f);
}

TEST_CASE("sync_batch_norm: a user's own loop uses the rows of all ranks, too") {
  const auto parameters_of = [&](int ranks, bool synchronized) {
    std::vector<float> result;
    transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
      const int rows = 12 / ranks;
      ByRing<exec::Reference<f32>> trainer(
          {.batch = rows, .optimizer = {.lr = 0.05f}, .sync_batch_norm = synchronized}, endpoint);
      const Blobs blobs(12);
      std::vector<float> images(static_cast<std::size_t>(rows * image.height * image.width));
      std::vector<i32> labels(static_cast<std::size_t>(rows));
      for (int r = 0; r < rows; ++r) {
        std::byte* const columns[] = {reinterpret_cast<std::byte*>(images.data()),
                                      reinterpret_cast<std::byte*>(labels.data())};
        blobs.read(static_cast<std::size_t>(trainer.rank() * rows + r),
                   data::Sample(blobs.fields(), columns, static_cast<std::size_t>(r)));
      }
      const void* fields[] = {images.data(), labels.data()};
      for (int step = 0; step < 3; ++step) {
        trainer.forward({fields, rows});
        trainer.backward();
        trainer.step();
      }
      auto parameters = all_parameters(trainer);
      if (trainer.rank() == 0) result = std::move(parameters);
    });
    return result;
  };
  const auto alone = parameters_of(1, false);
  CHECK(largest_difference(parameters_of(3, true), alone) < 2e-5f);
  CHECK(largest_difference(parameters_of(3, false), alone) > 1e-3f);
}

TEST_CASE("sync_batch_norm: invalid combinations are refused in one sentence") {
  using Ring = comm::Ring<transport::Threads>;
  const auto error_of = [](auto&& body) -> std::string {
    try {
      body();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  };
  CHECK(error_of([] {
          trained<exec::Host<f32>, comm::ParameterServer<transport::Threads, comm::Async>>(2, true, 1);
        }) ==
        "trainer: the workers of the exchange ps-async do not wait for each other, so their batch norms "
        "cannot use the rows of all ranks; leave out sync_batch_norm, or choose another exchange");
  CHECK(error_of([] { trained<exec::Replay, Ring>(1, true, 1); }) ==
        "trainer: batch norms of exec::replay use each rank's own rows alone; leave out sync_batch_norm, or "
        "choose another Exec");
  // Four samples for three ranks of one row each make two steps of two rows.
  const Blobs four(4);
  CHECK(error_of([&] {
          const ByRing<exec::Host<f32>>::Config config{.batch = 1, .sync_batch_norm = true};
          train_test::train<ByRing<exec::Host<f32>>>(3, config, data::DatasetRef(&four),
                                                     {.epochs = 1, .log = nullptr});
        }) ==
        "fit: rank 0 has none of the 2 rows of step 0 of an epoch, but sync_batch_norm needs rows on every "
        "rank; choose another batch size");
  // A share of 0.05 has no row of the 12 of a full step here, but one of the 7 of each of the last two.
  const Blobs some(38);
  CHECK(error_of([&] {
          transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
            Trainer<Residual, optim::Sgd, comm::Weighted<Ring>, exec::Reference<f32>> trainer(
                {.batch = 4, .sync_batch_norm = true}, comm::WeightedOptions{{0.2125, 0.05, 0.7375}},
                endpoint);
            trainer.fit(some, {.log = nullptr});
          });
        }) ==
        "fit: rank 1 has none of the 12 rows of step 1 of an epoch, but sync_batch_norm needs rows on every "
        "rank; choose another batch size");
  std::string told;
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    ByRing<exec::Reference<f32>> trainer({.batch = 4, .sync_batch_norm = true}, endpoint);
    if (trainer.rank() == 1) told = error_of([&] { trainer.step({}, 4); });
  });
  CHECK(told == "trainer: rank 1 has no rows of a batch, but sync_batch_norm needs rows on every rank");
}
