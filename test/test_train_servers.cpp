// NEEDS: host
// Servers on the ranks of workers: a server writes parameters only after the backward that reads them, and
// serves only a fit that begins. Servers that are ranks of their own take part when all ranks compare
// numbers.
#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/train/gather.hpp>

using namespace train_test;

TEST_CASE_TEMPLATE("a server does not update the parameters of a layer before the layer's backward is over",
                   Exec, exec::Host<f32>, exec::Reference<f32>) {
  const Blobs blobs(200);
  const auto trained = [&]<class Comm>(int ranks, int accumulate) {
    using Trained = Trainer<Bucketed, optim::Sgd, Comm, Exec>;
    const typename Trained::Config config{.batch = 20 / ranks,
                                          .accumulate = accumulate,
                                          .optimizer = {.lr = 0.05f, .momentum = 0.9f},
                                          .exec = {.threads = 1}};
    return train_test::train<Trained>(ranks, config, data::DatasetRef(&blobs), {.epochs = 3, .log = nullptr});
  };
  for (const int ranks : {1, 2})
    for (const int accumulate : {1, 2})
      CHECK(trained.template operator()<comm::ParameterServer<transport::Threads>>(ranks, accumulate) ==
            trained.template operator()<comm::Ring<transport::Threads>>(ranks, accumulate));
}

TEST_CASE_TEMPLATE("a fit that is refused before its first step leaves the servers to the next one", Comm,
                   comm::ParameterServer<transport::Threads>,
                   comm::ParameterServer<transport::Threads, comm::Async>) {
  const Blobs few(3), blobs(50);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Trainer<Plain, optim::Sgd, Comm, exec::Reference<f32>> trainer{{.batch = 10}, endpoint};
    CHECK_THROWS_AS(trainer.fit(few, {.log = nullptr}), ConfigError);
    CHECK_THROWS_AS(trainer.fit(blobs, {.log = nullptr, .readers = 0}), ConfigError);
    for (int fit = 0; fit < 2; ++fit) CHECK(trainer.fit(blobs, {.log = nullptr}).steps == 3);
  });
}

TEST_CASE("servers that are ranks of their own take part when ranks compare numbers and learn a value") {
  transport::Threads::World(3).run([](const transport::Threads& endpoint) {
    comm::ParameterServer<transport::Threads, comm::Sync, 1, comm::Placement::beside> comm(endpoint);
    constexpr std::uint64_t large = ~std::uint64_t{0}, upper = std::uint64_t{1} << 32;
    const int rank = comm.rank();  // 2 is the server's
    CHECK(train::all_equal(comm, {0, large}));
    CHECK_FALSE(train::all_equal(comm, {0, rank == 2 ? large - 1 : large}));
    CHECK_FALSE(train::all_equal(comm, {rank == 1 ? upper : 0, large}));
    CHECK(train::broadcast_with_servers(comm, -0.5 - rank) == -0.5);
  });
}
