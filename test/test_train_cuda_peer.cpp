// EMULATES: nccl
// SANITIZE: none
// TIMEOUT: 600
// Trainer over exec::Cuda and comm::CudaPeer, or NCCL with encoded gradients, run on processors: the ranks
// end with the same bits, and with what comm::Nccl gives.
#include <cmath>
#include <string>
#include <vector>

#include <unistd.h>

// The name of the process as the thread wants it: ranks that are threads may say that they are processes.
static thread_local int process_of_thread = 0;
extern "C" pid_t getpid() noexcept { return 4711 + process_of_thread; }

#include <doctest/doctest.h>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "emulation/nccl.hpp"
#include <convoy/memory/device.cuh>

namespace device_test {
using TestSpace = convoy::memory::Device;
}  // namespace device_test

#include "comm_device.hpp"
#include "train_support.hpp"
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/nccl.cuh>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/optim/device.cuh>

namespace {

using namespace train_test;

struct Small {
  static constexpr BucketOptions buckets{.first = 64, .others = 256};
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 4, .kernel = 3})));
    x = g.linear(g.flatten(g.max_pool(x, {.kernel = 4})), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// Three matrices beside vectors and a head, and taps that meet nothing but padding.
struct Wide {
  static constexpr BucketOptions buckets{.first = 64, .others = 64};
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.relu(g.conv2d(x, {.channels = 4, .kernel = 3, .bias = true}));
    x = g.relu(g.conv2d(g.max_pool(x, {.kernel = 8}), {.channels = 6, .kernel = 3}));
    x = g.relu(g.linear(g.flatten(x), {.features = 12}));
    x = g.linear(x, {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

using Parameters = std::vector<float>;

struct Setting {
  bool processes = false;  // ranks say that they are
  bool resident = false;   // the data set lies on the GPU
  bool overlap = true;
  comm::Traffic* sent = nullptr;  // by rank 0
};

// What each rank ends with.
template <class Comm, class Rule = optim::Sgd, class Model = Small>
std::vector<Parameters> trained(int ranks, float clip, const Setting& setting = {}) {
  using T = Trainer<Model, Rule, Comm, exec::Cuda<f32>>;
  device_test::Table table(ranks);
  std::vector<Parameters> all(static_cast<std::size_t>(ranks));
  std::vector<std::string> sentences(all.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        process_of_thread = setting.processes ? rank : 0;
        typename T::Config config;
        config.batch = 8;
        config.optimizer.lr = 0.05f;
        config.optimizer.momentum = 0.9f;
        config.guard.max_norm = clip;
        config.overlap = setting.overlap;
        T trainer(config, device_test::AtTable(table, rank));
        const Blobs training(40);
        trainer.fit(training, {.epochs = 2, .log = nullptr, .resident = setting.resident});
        if (rank == 0 && setting.sent != nullptr) *setting.sent = trainer.comm().traffic();
        for (const auto& parameter : trainer.parameters())
          for (const float value : parameter.values()) all[static_cast<std::size_t>(rank)].push_back(value);
      } catch (const Error& error) {
        sentences[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& sentence : sentences) CHECK(sentence == "");
  return all;
}

double apart(const Parameters& a, const Parameters& b) {
  double all = 0, off = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    all += std::pow(static_cast<double>(b[i]), 2);
    off += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(off / all);
}

using Peer = comm::CudaPeer<memory::Device>;
using Encoded = comm::Compressed<comm::Nccl<memory::Device>, comm::codec::Int8>;

}  // namespace

TEST_CASE("ranks train over peer memory as over NCCL, and end with the same bits") {
  const emulation::With open({.closed_to_host = false});
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    const auto expected = trained<comm::Nccl<memory::Device>>(2, clip);
    const auto seen = trained<Peer>(2, clip);
    const auto sharded = trained<comm::Sharded<Peer>>(2, clip);
    const auto encoded = trained<Encoded>(2, clip);
    REQUIRE(expected[0].size() > 100);
    for (const auto* all : {&seen, &sharded}) {
      CHECK((*all)[0] == (*all)[1]);
      CHECK(apart((*all)[0], expected[0]) < 1e-5);
    }
    CHECK(encoded[0] == encoded[1]);
    CHECK(apart(encoded[0], expected[0]) > 0);
    CHECK(apart(encoded[0], expected[0]) < 1e-2);
  }
  CHECK(trained<Peer>(3, 0) == trained<Peer>(3, 0));
}

TEST_CASE_TEMPLATE("graphs make the steps of processes over peer memory, with the bits of steps without", C,
                   Peer, comm::Sharded<Peer>) {
  const emulation::With open({.closed_to_host = false});
  const auto graphs = [] { return emulation::Counts::now()[emulation::Called::graph]; };
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    comm::Traffic of_threads, sent;
    const auto expected = trained<C>(2, clip, {.sent = &of_threads});
    for (const bool overlap : {true, false}) {
      CAPTURE(overlap);
      const long before = graphs();
      CHECK(trained<C>(2, clip, {.processes = true, .overlap = overlap, .sent = &sent}) == expected);
      // Of four steps with full batches and of two with less, the first is enqueued.
      CHECK(graphs() - before == 2 * (3 + 1));
      CHECK(sent.messages == of_threads.messages);
      CHECK(sent.bytes == of_threads.bytes);
    }
    CHECK(trained<C>(2, clip, {.processes = true, .resident = true, .sent = &sent}) ==
          trained<C>(2, clip, {.resident = true}));
    CHECK(sent.messages == of_threads.messages);
  }
}

TEST_CASE("ranks that share out matrices on GPUs train as ranks that update all") {
  const emulation::With open({.closed_to_host = false});
  using Over = comm::Nccl<memory::Device>;
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    const auto expected = trained<Over, optim::Muon, Wide>(3, clip);
    CHECK(expected[0] == expected[1]);
    CHECK(expected[0] == expected[2]);
    CHECK(apart(expected[0], trained<Over, optim::Sgd, Wide>(3, clip)[0]) > 1e-2);
    for (const auto& all :
         {trained<comm::Sharded<Over>, optim::Muon, Wide>(3, clip), trained<Peer, optim::Muon, Wide>(3, clip),
          trained<comm::Sharded<Peer>, optim::Muon, Wide>(3, clip)}) {
      CHECK(all[0] == all[1]);
      CHECK(all[0] == all[2]);
      CHECK(apart(all[0], expected[0]) < 1e-4);
    }
  }
}
