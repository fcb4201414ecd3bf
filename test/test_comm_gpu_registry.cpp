// EMULATES: nccl
// SANITIZE: none
// TIMEOUT: 300
// ALONE
// The registry of exchanges of GPU memory, with kernels run on the CPU: the names that make knows, what it
// refuses, and that each exchange does what its name says.
#define CONVOY_HAS_NCCL

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device_of_tests.hpp"
#include "emulation/nccl.hpp"
#include <convoy/comm/bootstrap/comm.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/registry.cuh>
#include <convoy/comm/transport/threads.hpp>

namespace {

using namespace device_test;
using transport::Threads;
using AnyComm = comm::AnyIn<TestSpace>;
static_assert(comm::Comm<AnyComm> && comm::works_in<AnyComm, TestSpace> &&
              !comm::works_in<AnyComm, memory::Host>);
using Ring = comm::CommBootstrap<comm::Ring<Threads>>;
static_assert(comm::Bootstrap<Ring>);

// The ranks' error messages; empty if there were none.
template <class Body>
std::vector<std::string> on_ranks(int ranks, Body&& body) {
  std::vector<std::string> sentences(static_cast<std::size_t>(ranks));
  Threads::World(ranks).run([&](const Threads& endpoint) {
    try {
      body(comm::AnyBootstrap(Ring(comm::Ring<Threads>(endpoint))));
    } catch (const Error& error) {
      sentences[static_cast<std::size_t>(endpoint.rank())] = error.what();
    }
  });
  return sentences;
}

std::string refusal(std::string_view policy, std::string_view transport, const comm::Options& options = {},
                    const comm::Choice& choice = {}) {
  const auto sentences = on_ranks(2, [&](const comm::AnyBootstrap& bootstrap) {
    comm::make<TestSpace>(policy, transport, bootstrap, options, choice);
  });
  CHECK(sentences[0] == sentences[1]);
  return sentences[0];
}

}  // namespace

TEST_CASE("a barrier over the bootstrap of a Comm waits for all ranks") {
  std::atomic<int> came = 0, waited = 0;
  for (const auto& sentence : on_ranks(3, [&](comm::AnyBootstrap bootstrap) {
         std::this_thread::sleep_for(std::chrono::milliseconds(20 * bootstrap.rank()));
         ++came;
         bootstrap.barrier();
         waited += came == 3 ? 1 : 0;
       }))
    CHECK(sentence == "");
  CHECK(waited == 3);
}

TEST_CASE("each line of the registry makes an exchange that sums gradients") {
  CHECK(comm::gpu_policies<TestSpace>.size() == 6);
  for (const comm::Entry& entry : comm::gpu_policies<TestSpace>)
    for (const int ranks : {1, 2, 3}) {
      CAPTURE(entry.name);
      CAPTURE(entry.over);
      CAPTURE(ranks);
      CHECK_FALSE(entry.about.empty());
      const std::vector<float> expected = sums(ranks, 1000, 2);
      std::atomic<int> right = 0;
      all_well(on_ranks(ranks, [&](const comm::AnyBootstrap& bootstrap) {
        TestSpace space;
        AnyComm any = comm::make<TestSpace>(entry.name, entry.over, bootstrap);
        right +=
            any.policy().find(entry.name) != std::string_view::npos && train(any, space, 1000, 2) == expected
                ? 1
                : 0;
        space.synchronize();
      }));
      CHECK(right == ranks);
    }
}

TEST_CASE("NCCL exchanges what a codec makes") {
  for (const char* codec : {"none", "bf16", "f16", "int8", "topk"}) {
    CAPTURE(codec);
    all_well(on_ranks(2, [&](const comm::AnyBootstrap& bootstrap) {
      const AnyComm any = comm::make<TestSpace>("nccl", "nccl", bootstrap, {}, {.codec = codec});
      if (any.policy() != (std::string_view(codec) == "none" ? "nccl" : codec)) fail("it is ", any.policy());
    }));
  }
}

TEST_CASE("workers may take unequal shares, and a mean goes by the shares") {
  std::atomic<int> right = 0;
  all_well(on_ranks(2, [&](const comm::AnyBootstrap& bootstrap) {
    AnyComm any = comm::make<TestSpace>("cuda-peer", "cuda-peer", bootstrap, {}, {.weights = {3, 1}});
    const std::vector<double> shares = any.shares([](double, double&) {});
    double mine[] = {any.rank() == 0 ? 8.0 : 4.0};
    any.all_reduce(std::span<double>(mine), comm::mean);
    right += shares == std::vector<double>{0.75, 0.25} && mine[0] == 7 ? 1 : 0;
  }));
  CHECK(right == 2);
}

TEST_CASE("what does not go together is refused in one sentence") {
  CHECK(refusal("tree", "nccl") ==
        "there is no comm \"tree\" over nccl; choose nccl, sharded and hierarchical");
  CHECK(refusal("nccl", "cuda-peer") ==
        "there is no comm \"nccl\" over cuda-peer; choose cuda-peer, sharded and hierarchical");
  CHECK(refusal("nccl", "mpi") == "GPUs have no transport \"mpi\"; choose nccl and cuda-peer");
  CHECK(refusal("nccl", "nccl", {}, {.servers = 2}) ==
        "comm \"nccl\" does not use servers, which is an option of ps, ps-async and ps-stale");
  CHECK(refusal("cuda-peer", "cuda-peer", {}, {.codec = "int8"}) ==
        "comm \"cuda-peer\" does not use codec, which is an option of nccl");
  CHECK(refusal("nccl", "nccl", {}, {.codec = "powersgd"}) ==
        "GPUs have no codec \"powersgd\"; choose none, bf16, f16, int8 and topk");
  CHECK(refusal("nccl", "nccl", {}, {.topk = {.fraction = 0.5}}) ==
        "codec \"none\" does not use topk.fraction, which is an option of topk");
  CHECK(refusal("nccl", "nccl", {}, {.background = true}) ==
        "background is for exchanges of host memory; GPUs advance their exchanges without the host");
  CHECK(refusal("nccl", "nccl", {}, {.weighted = true, .weights = {1, 1}}) ==
        "weighted measures the shares, and weights gives them; choose one of the two");
}
