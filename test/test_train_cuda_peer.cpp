// EMULATES: nccl stages
// SANITIZE: none
// TIMEOUT: 600
// Trainer over exec::Cuda and comm::CudaPeer, or NCCL with encoded gradients, run on the CPU: the ranks end
// with the same bits, and near the results of comm::Nccl. Whatever ends a rank, it frees no memory that NCCL
// has registered or another process has mapped; the emulated device refuses that.
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "as_processes.hpp"
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "emulation/nccl.hpp"
#include "train_support.hpp"
#include <convoy/comm/bootstrap/comm.hpp>
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/nccl.cuh>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/memory/device.cuh>
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

/// Three matrices, vectors, a head, and taps that only meet padding.
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

template <class Comm, class Rule = optim::Sgd, class Model = Small>
using Over = Trainer<Model, Rule, Comm, exec::Cuda<f32>>;

struct Setting {
  float clip = 0;
  bool resident = false;  // the data set lies on the GPU
  bool overlap = true;
  comm::Traffic* sent = nullptr;  // by rank 0
};

// Each rank makes a trainer and runs `body`. Returns the error message of each rank; empty for none.
template <class T, class... CommOptions>
std::vector<std::string> on_ranks(int ranks, const Setting& setting, const std::function<void(T&)>& body,
                                  const CommOptions&... options) {
  std::vector<std::string> sentences(static_cast<std::size_t>(ranks));
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    try {
      typename T::Config config;
      config.batch = 8;
      config.optimizer.lr = 0.05f;
      config.optimizer.momentum = 0.9f;
      config.guard.max_norm = setting.clip;
      config.overlap = setting.overlap;
      T trainer(config, comm::CommBootstrap(comm::Ring<transport::Threads>(endpoint)), options...);
      body(trainer);
    } catch (const Error& error) {
      sentences[static_cast<std::size_t>(endpoint.rank())] = error.what();
    }
  });
  return sentences;
}

using Parameters = std::vector<float>;

// The parameters of each rank after training.
template <class Comm, class Rule = optim::Sgd, class Model = Small>
std::vector<Parameters> trained(int ranks, Setting setting) {
  using T = Over<Comm, Rule, Model>;
  std::vector<Parameters> all(static_cast<std::size_t>(ranks));
  const auto body = [&](T& trainer) {
    const Blobs training(40);
    trainer.fit(training, {.epochs = 2, .log = nullptr, .resident = setting.resident});
    if (trainer.rank() == 0 && setting.sent != nullptr) *setting.sent = trainer.comm().traffic();
    for (const auto& parameter : trainer.parameters())
      for (const float value : parameter.values())
        all[static_cast<std::size_t>(trainer.rank())].push_back(value);
  };
  for (const auto& sentence : on_ranks<T>(ranks, setting, body)) CHECK(sentence == "");
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

using Nccl = comm::Nccl<memory::Device>;
using Peer = comm::CudaPeer<memory::Device>;
using Encoded = comm::Compressed<Nccl, comm::codec::Int8>;

// Rank 1 throws at the broadcast of the parameters, when the exchange is open.
template <class C>
class Unable : public comm::Wrapper<C> {
  using Base = comm::Wrapper<C>;

 public:
  template <class... Arguments>
  explicit Unable(Arguments&&... arguments) : Base(std::in_place, std::forward<Arguments>(arguments)...) {}
  using Base::broadcast;
  template <class E>
  void broadcast(std::span<E> values, int root) {
    if (this->rank() == 1) throw Error("unable");
    Base::broadcast(values, root);
  }
};

}  // namespace

TEST_CASE("ranks train over peer memory as over NCCL, and end with the same bits") {
  const emulation::With open({.closed_to_host = false});
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    comm::Traffic by_nccl, by_peer;
    const auto expected = trained<Nccl>(2, {.clip = clip, .sent = &by_nccl});
    CHECK(by_nccl.arenas == comm::Access::symmetric);
    const auto seen = trained<Peer>(2, {.clip = clip, .sent = &by_peer});
    CHECK(by_peer.arenas == comm::Access::plain);
    const auto sharded = trained<comm::Sharded<Peer>>(2, {.clip = clip});
    const auto encoded = trained<Encoded>(2, {.clip = clip});
    REQUIRE(expected[0].size() > 100);
    for (const auto* all : {&seen, &sharded}) {
      CHECK((*all)[0] == (*all)[1]);
      CHECK(apart((*all)[0], expected[0]) < 1e-5);
    }
    CHECK(encoded[0] == encoded[1]);
    CHECK(apart(encoded[0], expected[0]) > 0);
    CHECK(apart(encoded[0], expected[0]) < 1e-2);
  }
  const auto as_threads = trained<Peer>(3, {});
  CHECK(trained<Peer>(3, {}) == as_threads);
  const AsProcesses processes;
  CHECK(trained<Peer>(3, {}) == as_threads);
  CHECK(emulation::peer_counts.mapped == 0);
}

TEST_CASE_TEMPLATE("processes over peer memory run steps as graphs, with the bits of steps without", C, Peer,
                   comm::Sharded<Peer>) {
  const emulation::With open({.closed_to_host = false});
  const auto graphs = [] { return emulation::Counts::now()[emulation::Called::graph]; };
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    comm::Traffic of_threads, sent;
    const auto expected = trained<C>(2, {.clip = clip, .sent = &of_threads});
    const auto resident = trained<C>(2, {.clip = clip, .resident = true});
    const AsProcesses processes;
    for (const bool overlap : {true, false}) {
      CAPTURE(overlap);
      const long before = graphs();
      CHECK(trained<C>(2, {.clip = clip, .overlap = overlap, .sent = &sent}) == expected);
      // Four steps have full batches, two smaller ones. The first of each kind runs without a graph.
      CHECK(graphs() - before == 2 * (3 + 1));
      CHECK(sent.messages == of_threads.messages);
      CHECK(sent.bytes == of_threads.bytes);
    }
    CHECK(trained<C>(2, {.clip = clip, .resident = true, .sent = &sent}) == resident);
    CHECK(sent.messages == of_threads.messages);
  }
}

TEST_CASE_TEMPLATE("a rank that is alone in its world runs steps as graphs", C, Nccl, Peer,
                   comm::Sharded<Nccl>) {
  const emulation::With open({.closed_to_host = false});
  const auto graphs = [] { return emulation::Counts::now()[emulation::Called::graph]; };
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    comm::Traffic sent;
    const long before = graphs();
    const auto alone = trained<C>(1, {.clip = clip, .sent = &sent});
    CHECK(graphs() - before == 2 * 5 - 1);  // the first of ten steps runs without a graph
    CHECK(sent.messages == 0);
    CHECK(trained<C>(1, {.clip = clip, .resident = true}) == alone);
  }
}

TEST_CASE("ranks that divide matrices among GPUs train as ranks that update all") {
  const emulation::With open({.closed_to_host = false});
  for (const float clip : {0.0f, 0.5f}) {
    CAPTURE(clip);
    const auto expected = trained<Nccl, optim::Muon, Wide>(3, {.clip = clip});
    CHECK(expected[0] == expected[1]);
    CHECK(expected[0] == expected[2]);
    CHECK(apart(expected[0], trained<Nccl, optim::Sgd, Wide>(3, {.clip = clip})[0]) > 1e-2);
    for (const auto& all : {trained<comm::Sharded<Nccl>, optim::Muon, Wide>(3, {.clip = clip}),
                            trained<Peer, optim::Muon, Wide>(3, {.clip = clip}),
                            trained<comm::Sharded<Peer>, optim::Muon, Wide>(3, {.clip = clip})}) {
      CHECK(all[0] == all[1]);
      CHECK(all[0] == all[2]);
      CHECK(apart(all[0], expected[0]) < 1e-4);
    }
  }
}

TEST_CASE_TEMPLATE("an exception ends a rank during a training, the other ranks get an error, and all end", C,
                   Nccl, comm::Sharded<Nccl>, Peer, comm::Sharded<Peer>) {
  const emulation::With open({.closed_to_host = false});
  for (const bool they_are : {false, true}) {
    CAPTURE(they_are);
    const AsProcesses processes(they_are);
    const auto body = [](Over<C>& trainer) {
      const auto leave = [&](const train::StepReport& step) {
        if (trainer.rank() == 1 && step.step == 3) throw Error("left");
        return train::Control::go_on;
      };
      const Blobs training(60);
      trainer.fit(training, {.epochs = 2, .on_step = leave, .log = nullptr});
    };
    typename C::Options options;
    options.deadline = Seconds(2);
    const auto sentences = on_ranks<Over<C>>(3, {}, body, options);
    CHECK(sentences[1] == "left");
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      CAPTURE(sentences[r]);
      CHECK(sentences[r].starts_with(concat("rank ", r, ": ")));
    }
    CHECK(emulation::nccl_counts.registrations == 0);
    CHECK(emulation::nccl_counts.communicators == 0);
    CHECK(emulation::peer_counts.mapped == 0);
  }
}

TEST_CASE_TEMPLATE("an exception while a trainer with an open exchange is made ends all ranks", C, Nccl,
                   comm::Sharded<Peer>) {
  const emulation::With open({.closed_to_host = false});
  for (const bool they_are : {false, true}) {
    CAPTURE(they_are);
    const AsProcesses processes(they_are);
    typename C::Options options;
    options.deadline = Seconds(2);
    const auto sentences = on_ranks<Over<Unable<C>>>(
        2, {}, [](auto&) {}, options);
    CHECK(sentences[1] == "unable");
    CHECK(sentences[0].starts_with("rank 0: "));
    CHECK(emulation::nccl_counts.registrations == 0);
    CHECK(emulation::peer_counts.mapped == 0);
  }
}
