// EMULATES: nccl
// SANITIZE: none
// TIMEOUT: 300
// Hierarchical over GPUs, with kernels run on the CPU: ranks are threads, and the tests assign them to nodes.
#include <atomic>
#include <exception>

#include "as_processes.hpp"
#include "device_of_tests.hpp"
#include "emulation/nccl.hpp"
#include <convoy/comm/policy/nccl_hierarchical.cuh>
#include <convoy/comm/transport/threads.hpp>

namespace {

using namespace device_test;
using transport::Threads;
using Peer = comm::CudaPeer<TestSpace>;
using Nccl = comm::Nccl<TestSpace>;
using PeerThenNccl = comm::Hierarchical<Peer, Nccl>;
using NcclThenNccl = comm::Hierarchical<Nccl, Nccl>;
using PeerThenRing = comm::Hierarchical<Peer, comm::Ring<Threads>>;
using NcclThenTree = comm::Hierarchical<Nccl, comm::Tree<Threads>>;
static_assert(comm::Comm<PeerThenNccl> && comm::Comm<NcclThenNccl> && comm::Comm<PeerThenRing> &&
              comm::Comm<NcclThenTree>);

template <class C>
struct MadeOf;
template <class Inside, class Across>
struct MadeOf<comm::TwoLevelsOfGpus<Inside, Across>> {
  using Options = typename Inside::Options;
  static constexpr bool by_hosts = comm::detail::through_hosts<Across>;
};

// The ranks' error messages; empty if there were none.
template <class C>
std::vector<std::string> run_nodes(const std::vector<int>& node_of,
                                   const std::function<void(C&, TestSpace&)>& body,
                                   const typename MadeOf<C>::Options& inside = {},
                                   Seconds across = Seconds(20)) {
  const auto ranks = static_cast<int>(node_of.size());
  Table table(ranks);
  Threads::World world(ranks);
  std::vector<std::string> sentences(node_of.size());
  const auto of_rank = [&](const Threads& endpoint) {
    try {
      TestSpace space;
      const comm::AnyBootstrap bootstrap(AtTable(table, endpoint.rank()));
      const comm::Nodes nodes(node_of);
      std::unique_ptr<C> comm;
      if constexpr (MadeOf<C>::by_hosts)
        comm = std::make_unique<C>(bootstrap, nodes, endpoint, inside,
                                   comm::Options{.deadline = across, .segment_bytes = 256});
      else
        comm = std::make_unique<C>(bootstrap, nodes, inside, comm::NcclOptions{.deadline = across});
      body(*comm, space);
      space.synchronize();
    } catch (const std::exception& error) {
      sentences[static_cast<std::size_t>(endpoint.rank())] = error.what();
    }
    table.leave();
  };
  world.run(of_rank);
  return sentences;
}

}  // namespace

TEST_CASE_TEMPLATE("every rank ends with the updates of the sums of all nodes", C, PeerThenNccl, NcclThenNccl,
                   PeerThenRing, NcclThenTree) {
  for (const std::vector<int>& node_of :
       {std::vector<int>{0}, {0, 0, 0}, {0, 1, 2}, {0, 0, 1, 1}, {5, 7, 5, 7}, {3, 1, 1, 2, 3, 2}})
    for (const std::int64_t count : {40, 1000, 20011}) {
      const auto ranks = static_cast<int>(node_of.size());
      CAPTURE(ranks);
      CAPTURE(count);
      const std::vector<float> expected = sums(ranks, count, 2);
      std::atomic<int> right = 0;
      all_well(run_nodes<C>(node_of, [&](C& comm, TestSpace& space) {
        right += train(comm, space, count, 2) == expected ? 1 : 0;
      }));
      CHECK(right == ranks);
    }
}

TEST_CASE_TEMPLATE("a rule decides over the gradient of all nodes, and a step is skipped", C, PeerThenNccl,
                   PeerThenRing) {
  const std::int64_t count = 3000;
  const std::vector<float> expected = decide::trained(4, count, {1});
  std::atomic<int> right = 0;
  all_well(run_nodes<C>({0, 0, 1, 1}, [&](C& comm, TestSpace& space) {
    right += train_by_rule(comm, space, count, 1) == expected ? 1 : 0;
  }));
  CHECK(right == 4);
}

TEST_CASE_TEMPLATE("numbers of the host reach all nodes from any root", C, PeerThenNccl, PeerThenRing) {
  std::atomic<int> right = 0;
  all_well(run_nodes<C>({0, 1, 0, 1}, [&](C& comm, TestSpace&) {
    double me[] = {static_cast<double>(comm.rank())};
    comm.all_reduce(std::span<double>(me), comm::sum);
    bool good = me[0] == 6;
    for (int root = 0; root < 4; ++root) {
      std::vector<float> many(1000, static_cast<float>(comm.rank()));
      comm.broadcast(std::span<float>(many), root);
      good = good && many == std::vector<float>(1000, static_cast<float>(root));
    }
    comm.barrier();
    right += good ? 1 : 0;
  }));
  CHECK(right == 4);
}

TEST_CASE_TEMPLATE("the host touches no memory of a GPU", C, PeerThenNccl, PeerThenRing) {
  const emulation::With closed({.closed_to_host = true});
  std::atomic<int> right = 0;
  all_well(run_nodes<C>({0, 1}, [&](C& comm, TestSpace& space) {
    right += train(comm, space, 200, 1) == sums(2, 200, 1) ? 1 : 0;
  }));
  CHECK(right == 2);
}

TEST_CASE("without nodes that somebody names, they are the hosts") {
  std::atomic<int> right = 0;
  all_well(rank_table::run(3, [&](const AtTable& bootstrap) {
    TestSpace space;
    PeerThenNccl comm(bootstrap);
    comm.barrier();
    right += comm.nodes().count() == 1 && train(comm, space, 1000, 1) == sums(3, 1000, 1) ? 1 : 0;
  }));
  CHECK(right == 3);
}

TEST_CASE("nodes of different sizes are refused in one sentence") {
  for (const auto& sentence : run_nodes<PeerThenNccl>({4, 4, 4, 5, 5}, [](auto&, auto&) {}))
    CHECK(sentence ==
          "hierarchical: the node of rank 3 has 2 GPUs and that of rank 0 has 3; all nodes must have equally "
          "many");
}

TEST_CASE("a rank that leaves a node is noticed by its node") {
  std::atomic<int> waiting = 0;
  const auto sentences = run_nodes<PeerThenNccl>(
      {0, 0, 1, 1},
      [&](PeerThenNccl& comm, TestSpace& space) {
        Arenas arenas(space, 640);
        const comm::Closing closing(comm);
        comm.open(comm::Fingerprint(), arenas.layout());
        if (comm.rank() == 3) {
          while (waiting < 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          throw Error("left");
        }
        ++waiting;
        for (int b = 0; b < 6; ++b)
          comm.begin(b, arenas.compute(static_cast<std::size_t>(b), comm.rank(), 0));
        comm.finish([](Range, float) {});
        space.synchronize();
        comm.poll();
      },
      {}, Seconds(1));
  CHECK(contains(sentences[2], "rank 2: cuda-peer reduce-scatter of bucket 0: rank 3 has left (peer rank 3"));
  CHECK(sentences[3] == "left");
  for (const std::size_t r : {0, 1}) CHECK(contains(sentences[r], concat("rank ", r, ": nccl ")));
}

TEST_CASE("an observer hears of every bucket of a step") {
  for (const std::vector<int>& node_of : {std::vector<int>{0, 0}, {0, 1}}) {
    std::vector<comm::ExchangeEvent> events;
    all_well(run_nodes<PeerThenNccl>(node_of, [&](PeerThenNccl& comm, TestSpace& space) {
      if (comm.rank() == 0) observe(comm, events);
      train(comm, space, 1000, 1);
    }));
    REQUIRE(events.size() == 6);
    for (const auto& event : events) CHECK(event.end >= event.begin);
  }
}

TEST_CASE("nothing is left behind") {
  CHECK(emulation::bytes_in_use() == 0);
  CHECK(emulation::nccl_counts.communicators == 0);
}

// The pads of a node's processes live as long as the processes, since no barrier of one node waits for
// another.
TEST_CASE_TEMPLATE("processes of nodes end well, or by an exception, and unmap one another's memory", C,
                   PeerThenNccl, PeerThenRing) {
  const AsProcesses processes;
  const std::vector<int> node_of{0, 0, 1, 1};
  const std::vector<float> expected = sums(4, 1000, 2);
  std::atomic<int> right = 0;
  all_well(run_nodes<C>(
      node_of, [&](C& comm, TestSpace& space) { right += train(comm, space, 1000, 2) == expected ? 1 : 0; }));
  CHECK(right == 4);
  CHECK(emulation::peer_counts.mapped == 0);
  const auto sentences = run_nodes<C>(
      node_of,
      [&](C& comm, TestSpace& space) {
        Arenas arenas(space, 1000);
        const comm::Closing closing(comm);
        train(comm, arenas, comm.rank() == 3 ? 1 : 2);
        if (comm.rank() == 3) throw Error("left");
        space.synchronize();
        comm.poll();
      },
      {}, Seconds(1));
  CHECK(contains(sentences[2], "rank 2: "));
  CHECK(sentences[3] == "left");
  CHECK(emulation::peer_counts.mapped == 0);
  CHECK(emulation::nccl_counts.registrations == 0);
}
