// SANITIZE: address thread
// The parameter server over threads: servers among and beside the workers, every consistency, faults, and
// Trainer with the optimizer on the servers.
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include "train_support.hpp"
#include <convoy/comm/exchange/any.hpp>
#include <convoy/comm/exchange/parameter_server.hpp>

using namespace convoy;
using namespace train_test;
using transport::Threads;

namespace {

constexpr int steps = 4;
const comm::Options options{.deadline = Seconds(20)};

/// Trains parameters -= gradients; what worker 0 has in the end, and how often the servers updated.
std::vector<float> run(int ranks, const comm::Service& service, std::int64_t count,
                       std::atomic<std::int64_t>& updated) {
  std::vector<float> result;
  Threads::World(ranks).run([&](Threads endpoint) {
    comm::Served<Threads> exchange(endpoint, service, options);
    Buffer<float> gradients(static_cast<std::size_t>(count)), parameters(static_cast<std::size_t>(count));
    const auto cuts = oracle::buckets(count);
    exchange.open(comm::Fingerprint().add("model", "none"), {gradients, parameters, cuts});
    const auto serve = [&](const comm::ServerPart& part) {
      for (std::int64_t i = 0; i < part.range.size(); ++i)
        part.parameters[i] -= part.scale * part.gradients[i];
      updated += part.range.size();
    };
    // Two fits in a row.
    for (int fit = 0; fit < 2; ++fit) {
      if (fit == 0 && exchange.rank() == 0)
        for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
      exchange.serve(serve);
      if (exchange.role() == comm::Role::server) {
        if (fit == 0) continue;
        break;
      }
      exchange.broadcast(std::span<float>(parameters), 0);
      for (int step = 0; step < steps; ++step) {
        const auto mine =
            oracle::input<float>(exchange.rank(), count, static_cast<std::uint64_t>(steps * fit + step));
        for (std::size_t b = 0; b < cuts.size(); ++b) {
          std::copy(mine.begin() + cuts[b].begin, mine.begin() + cuts[b].end,
                    gradients.begin() + cuts[b].begin);
          exchange.begin(static_cast<int>(b));
          for (int k = 0; k < 5; ++k) exchange.poll();
        }
        exchange.finish([](Range, float) { throw std::logic_error("a worker updates nothing"); });
      }
      exchange.dismiss();
      float alike[] = {1};
      exchange.all_reduce(std::span<float>(alike), comm::sum);
      if (alike[0] != static_cast<float>(exchange.workers()))
        throw std::logic_error("not all workers took part");
    }
    if (exchange.rank() == 0) result.assign(parameters.begin(), parameters.end());
  });
  return result;
}

std::vector<float> expected(int workers, std::int64_t count, float scale) {
  std::vector<float> parameters(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
  for (int step = 0; step < 2 * steps; ++step) {
    std::vector<float> sum(parameters.size());
    for (int w = 0; w < workers; ++w) {
      const auto values = oracle::input<float>(w, count, static_cast<std::uint64_t>(step));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = w == 0 ? values[i] : sum[i] + values[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) parameters[i] -= scale * sum[i];
  }
  return parameters;
}

}  // namespace

TEST_CASE("sync servers give one set of bits, wherever they are and however many") {
  const std::int64_t count = 3'001;
  for (int workers = 1; workers <= 4; ++workers)
    for (int servers = 1; servers <= 3; ++servers) {
      const auto bits = expected(workers, count, 1);
      if (servers <= workers) {
        std::atomic<std::int64_t> updated{0};
        CHECK(oracle::same_bits(run(workers, {{}, servers, comm::Placement::among}, count, updated), bits));
        CHECK(updated == 2 * steps * count);
      }
      std::atomic<std::int64_t> updated{0};
      CHECK(oracle::same_bits(run(workers + servers, {{}, servers, comm::Placement::beside}, count, updated),
                              bits));
      CHECK(updated == 2 * steps * count);
    }
}

TEST_CASE("async and stale servers apply every gradient once") {
  const std::int64_t count = 1'003;
  for (const comm::Consistency c :
       {comm::Async::consistency, comm::Stale<0>::consistency, comm::Stale<2>::consistency})
    for (const comm::Placement placement : {comm::Placement::among, comm::Placement::beside}) {
      const int workers = 3, ranks = placement == comm::Placement::among ? 3 : 5;
      std::atomic<std::int64_t> updated{0};
      const auto result = run(ranks, {c, 2, placement}, count, updated);
      CHECK(updated == 2 * steps * workers * count);
      // Whoever is dismissed last has seen all; worker 0 may have missed the others' last steps.
      CHECK(result.size() == static_cast<std::size_t>(count));
      if (c.bound == 0 && !c.sync) {
        const auto all = expected(workers, count, workers);
        double worst = 0;
        for (std::size_t i = 0; i < all.size(); ++i)
          worst = std::max(worst, std::abs(static_cast<double>(all[i] - result[i])));
        CHECK(worst < 1e-3);
      }
    }
}

TEST_CASE("a worker or server that fails is named on all the others") {
  for (const comm::Placement placement : {comm::Placement::among, comm::Placement::beside})
    for (const int culprit : {0, 2}) {
      std::atomic<int> named{0};
      const std::int64_t count = 1'000;
      const auto all = [&](Threads endpoint) {
        comm::Served<Threads> exchange(endpoint, {{}, 1, placement}, {.deadline = Seconds(3)});
        Buffer<float> gradients(static_cast<std::size_t>(count)), parameters(static_cast<std::size_t>(count));
        const auto cuts = oracle::buckets(count);
        exchange.open({}, {gradients, parameters, cuts});
        try {
          const auto serve = [](const comm::ServerPart&) {};
          if (exchange.rank() == culprit && exchange.role() == comm::Role::server)
            fail("this server has burnt down");
          exchange.serve(serve);
          if (exchange.role() == comm::Role::server) return;
          for (int step = 0; step < 3; ++step) {
            if (exchange.rank() == culprit && step == 1) fail("this worker has burnt down");
            exchange.finish([](Range, float) {});
          }
        } catch (const CommError& error) {
          named += std::string(error.what()).find("rank") != std::string::npos;
          throw;
        }
      };
      CHECK_THROWS_AS(Threads::World(3).run(all), Error);
      CHECK(named == 2);
    }
}

TEST_CASE("what cannot be served is refused") {
  CHECK_THROWS_WITH_AS(comm::Served<Threads>(Threads{}, {{}, 2}),
                       "a parameter server needs 1 to 1 servers in a world of 1, not 2", ConfigError);
  CHECK_THROWS_AS(comm::Served<Threads>(Threads{}, {{false, -1}, 1}), ConfigError);
}

TEST_CASE("Trainer trains with the optimizer on the servers") {
  const Blobs training(240), test(90, 8);
  const data::DatasetRef set(&training);
  using Plain32 = exec::Reference<f32>;
  const auto trained = [&]<class C>(int ranks, float lr) {
    std::vector<float> result;
    double accuracy = 0;
    std::atomic<std::size_t> bytes{0};
    Threads::World(ranks).run([&](const Threads& endpoint) {
      Trainer<Plain, optim::Adam, C, Plain32> trainer{{.batch = 12, .optimizer = {.lr = lr}}, endpoint};
      const auto report = trainer.fit(set, {.epochs = 4, .validate = &test, .log = nullptr});
      trainer.fit(set, {.epochs = 1, .log = nullptr});
      bytes += trainer.optimizer_state_bytes();
      if (trainer.rank() != 0) return;
      accuracy = report.epochs.back().test.accuracy;
      const auto parameters = trainer.exec().parameters();
      result.assign(parameters.begin(), parameters.end());
    });
    return std::tuple(result, accuracy, bytes.load());
  };
  using namespace comm;
  const auto [ordered, accuracy, bytes] = trained.operator()<Reproducible<Ring<Threads>>>(3, 0.01f);
  const auto [among, among_accuracy, among_bytes] =
      trained.operator()<ParameterServer<Threads, Sync, 2>>(3, 0.01f);
  const auto [beside, beside_accuracy, beside_bytes] =
      trained.operator()<ParameterServer<Threads, Sync, 1, Placement::beside>>(4, 0.01f);
  CHECK(ordered == among);
  CHECK(ordered == beside);
  CHECK(accuracy > 0.9);
  CHECK(among_bytes == bytes / 3);
  CHECK(beside_bytes == bytes / 3);
  CHECK(std::get<1>(trained.operator()<ParameterServer<Threads, Async>>(3, 0.003f)) > 0.85);
  CHECK(std::get<1>(trained.operator()<ParameterServer<Threads, Stale<2>, 2>>(3, 0.003f)) > 0.85);
}

TEST_CASE("servers are chosen by name") {
  Threads::World(2).run([](Threads endpoint) {
    for (const char* policy : {"ps", "ps-async", "ps-stale"}) {
      comm::Any any = comm::make(policy, endpoint, {.deadline = Seconds(20), .servers = 2, .staleness = 1});
      if (any.policy() != "ps" || any.lockstep() != (std::string_view(policy) == "ps"))
        throw std::logic_error(policy);
      Buffer<float> gradients(1000), parameters(1000);
      const std::vector<Range> cuts{{0, 1000}};
      any.open({}, {gradients, parameters, cuts});
      const auto serve = [](const comm::ServerPart&) {};
      any.serve(serve);
      any.finish([](Range, float) {});
      any.dismiss();
    }
  });
}
