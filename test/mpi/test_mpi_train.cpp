// NEEDS: host
// RANKS: 2 3
// Training over MPI: the same bits as over threads, whatever the number of ranks.
#include <doctest/doctest.h>

#include "../train_support.hpp"
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/exec/host/host.hpp>

using namespace convoy;
using namespace train_test;

namespace {

template <template <class> class Policy, class Transport, class Model>
using HostTrainer = Trainer<Model, optim::Adam, Policy<Transport>, exec::Host<f32>>;

template <class Model>
void same_bits() {
  const Blobs blobs(231);
  const train::FitOptions options{.epochs = 2, .log = nullptr};
  const transport::Mpi world;
  const typename HostTrainer<comm::Ring, transport::Mpi, Model>::Config config{
      .batch = 16, .optimizer = {.weight_decay = 0.01f}, .exec = {.threads = 1}};

  HostTrainer<comm::Ring, transport::Mpi, Model> trainer{config, world};
  trainer.fit(blobs, options);
  const auto over_mpi = all_parameters(trainer);
  const auto over_threads = train_test::train<HostTrainer<comm::Ring, transport::Threads, Model>>(
      world.size(), config, data::DatasetRef(&blobs), options);
  CHECK(over_mpi == over_threads);
}

}  // namespace

TEST_CASE("ring over MPI and ring over threads train to the same bits") {
  same_bits<Plain>();
  same_bits<Normed>();
}
