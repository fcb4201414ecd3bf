// EMULATES
// ALONE
// CudaPeer where ranks are processes: each thread of this test passes for a process, so that memory is mapped
// by handles and unmapped.
#include <atomic>

#include <unistd.h>

// The process id that this thread reports.
static thread_local int process_of_thread = 0;
extern "C" pid_t getpid() noexcept { return 4711 + process_of_thread; }

#include "device_of_tests.hpp"
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/halves.hpp>

namespace {

using namespace device_test;
using Halved = comm::Sharded<comm::CudaPeer<TestSpace>>;

// A bootstrap that gives its thread a process id of its own.
struct Alone : AtTable {
  explicit Alone(const AtTable& bootstrap) : AtTable(bootstrap) { process_of_thread = rank(); }
};

template <class F>
std::vector<std::string> as_processes(int ranks, F&& body, const comm::PeerOptions& options = {}) {
  return rank_table::run(ranks, [&](const AtTable& bootstrap) {
    device::use(bootstrap.rank() % emulation::settings.devices);
    TestSpace space;
    Halved comm(Alone(bootstrap), options);
    body(comm, space);
  });
}

}  // namespace

TEST_CASE("processes map each other's memory, and end together") {
  const std::vector<float> expected = sums(3, 20011, 2);
  std::atomic<int> right = 0, mapped = 0;
  all_well(as_processes(3,
                        [&](Halved& comm, TestSpace& space) {
                          Arenas arenas(space, 20011);
                          const comm::Closing closing(comm);
                          right += train(comm, arenas, 2) == expected ? 1 : 0;
                          comm.barrier();
                          mapped = emulation::peer_counts.mapped.load();
                          comm.barrier();
                        },
                        {.at_once = 1024, .blocks = 2}));
  CHECK(right == 3);
  // Each rank's pad, gradients and parameters are mapped by two others.
  CHECK(mapped == 3 * 3 * 2);
  CHECK(emulation::peer_counts.mapped == 0);
  CHECK(emulation::bytes_in_use() == 0);
}

TEST_CASE("a piece is found behind the beginning of its allocation") {
  std::atomic<int> right = 0;
  all_well(as_processes(2, [&](Halved& comm, TestSpace& space) {
    constexpr std::int64_t before = 100, count = 500;
    const memory::Array<float, TestSpace> all(space, 2 * (before + count));
    const comm::Closing closing(comm);
    const Range bucket{0, count};
    float* const gradients = all.data() + before;
    float* const parameters = gradients + count + before;
    comm.open(comm::Fingerprint(), {.gradients = {gradients, static_cast<std::size_t>(count)},
                                    .parameters = {parameters, static_cast<std::size_t>(count)},
                                    .buckets = {&bucket, 1},
                                    .space = &space});
    space.fill(gradients, count, static_cast<float>(comm.rank() + 1));
    comm.begin(0, space.mark());
    comm.finish([&](Range range, float) {
      space.copy(parameters + range.begin, gradients + range.begin,
                 static_cast<std::size_t>(range.size()) * sizeof(float));
    });
    std::vector<float> seen(count);
    space.read(seen.data(), parameters, count * sizeof(float));
    right += seen == std::vector<float>(count, 3.0f) ? 1 : 0;
  }));
  CHECK(right == 2);
}

TEST_CASE("memory that no other process can map is refused on every rank") {
  std::vector<float> of_the_host(64);
  const auto sentences = as_processes(2, [&](Halved& comm, TestSpace& space) {
    const memory::Array<float, TestSpace> good(space, 64);
    const comm::Closing closing(comm);
    const Range bucket{0, 64};
    float* const gradients = comm.rank() == 1 ? of_the_host.data() : good.data();
    comm.open(comm::Fingerprint(), {.gradients = {gradients, 64},
                                    .parameters = {good.data(), 64},
                                    .buckets = {&bucket, 1},
                                    .space = &space});
  });
  for (const auto& sentence : sentences)
    CHECK(sentence ==
          "cuda-peer: rank 0 cannot reach the memory of rank 1: another process cannot map it; memory for "
          "exchanges must come from cudaMalloc");
  CHECK(emulation::peer_counts.mapped == 0);
}

TEST_CASE("a process that leaves is noticed by those that wait for it") {
  std::atomic<int> waiting = 0;
  const auto sentences = as_processes(2, [&](Halved& comm, TestSpace& space) {
    Arenas arenas(space, 640);
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
    if (comm.rank() == 1) {
      while (waiting < 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      throw Error("left");
    }
    ++waiting;
    comm.begin(0, arenas.compute(0, 0, 0));
    space.synchronize();
    comm.poll();
  });
  CHECK(sentences[1] == "left");
  CHECK(
      contains(sentences[0], "rank 0: cuda-peer reduce-scatter of bucket 0: rank 1 has left (peer rank 1, "));
}

// However a rank ends, nobody frees memory that another process has mapped: the emulated device refuses that.
// If an exception frees memory, it stays allocated until the others have unmapped it.

TEST_CASE("memory that another process has mapped is not freed before it is closed") {
  std::atomic<int> refused = 0;
  all_well(as_processes(2, [&](Halved& comm, TestSpace& space) {
    Arenas arenas(space, 640);
    const comm::Closing closing(comm);
    comm.open(comm::Fingerprint(), arenas.layout());
    try {
      space.release(arenas.gradients.data(), arenas.gradients.bytes());
    } catch (const std::logic_error& error) {
      refused += contains(error.what(), "device memory was freed that process ") ? 1 : 0;
    }
    comm.barrier();
    comm.close();
    CHECK_THROWS_WITH_AS(comm.begin(0), "there is no bucket 0; 0 were opened", Error);
    const std::string closed = concat("rank ", comm.rank(), ": cuda-peer: the exchange is closed");
    CHECK_THROWS_WITH_AS(comm.barrier(), closed.c_str(), Error);
  }));
  CHECK(refused == 2);
  CHECK(emulation::peer_counts.mapped == 0);
}

TEST_CASE("a process that ends waits for the others to unmap its memory") {
  std::atomic<int> closed = 0, early = 0;
  all_well(as_processes(3, [&](Halved& comm, TestSpace& space) {
    Arenas arenas(space, 640);
    const comm::Closing closing(comm);
    train(comm, arenas, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * comm.rank()));
    ++closed;
    comm.close();
    early += closed < 3 ? 1 : 0;
  }));
  CHECK(early == 0);
}

TEST_CASE(
    "a process that ends or opens another layout is through with what it has enqueued, in graphs as well") {
  const emulation::With late({.late = true, .devices = 2, .closed_to_host = false});
  for (const bool ends : {false, true}) {
    CAPTURE(ends);
    std::atomic<int> through = 0;
    all_well(as_processes(2, [&](Halved& comm, TestSpace& space) {
      Arenas arenas(space, 640), others(space, 1000);
      space.synchronize();
      const comm::Closing closing(comm);
      comm.open(comm::Fingerprint(), arenas.layout());
      const device::GraphExec graph = graph_of_step(comm, arenas, [](Range, float) {});
      for (int step = 0; step < 3; ++step)
        device::check(cudaGraphLaunch(graph.get(), space.stream()), "launch a graph");
      if (ends)
        comm.close();
      else
        comm.open(comm::Fingerprint(), others.layout());
      through += cudaStreamQuery(space.stream()) == cudaSuccess ? 1 : 0;
    }));
    CHECK(through == 2);
  }
}

namespace {

// Three processes train. After `steps` of its three steps, rank 1 calls `does` with the number of other ranks
// that have ended. Returns the ranks' error messages.
std::vector<std::string> until_rank_1(int steps, Seconds deadline,
                                      const std::function<void(const std::atomic<int>& ended)>& does) {
  std::atomic<int> ended = 0;
  struct Count {
    std::atomic<int>& ended;
    ~Count() { ++ended; }
  };
  return as_processes(3,
                      [&](Halved& comm, TestSpace& space) {
                        const Count count{ended};
                        Arenas arenas(space, 640);
                        const comm::Closing closing(comm);
                        train(comm, arenas, comm.rank() == 1 ? steps : 3);
                        if (comm.rank() == 1) does(ended);
                        space.synchronize();
                        comm.poll();
                      },
                      {.deadline = deadline, .at_once = 1024});
}

}  // namespace

TEST_CASE("an exception ends a process in the middle of a training, and the others hear of it") {
  const auto sentences = until_rank_1(2, Seconds(1000), [](const auto&) { throw Error("left"); });
  CHECK(sentences[1] == "left");
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CAPTURE(sentences[r]);
    CHECK(contains(sentences[r], concat("rank ", r, ": cuda-peer ")));
    CHECK(contains(sentences[r], " has left"));
  }
  CHECK(emulation::peer_counts.mapped == 0);
}

TEST_CASE("an exception ends a process when others are through, who free nothing that a third has mapped") {
  const auto sentences = until_rank_1(3, Seconds(1000), [](const auto&) { throw Error("left"); });
  CHECK(sentences == std::vector<std::string>{"", "left", ""});
  CHECK(emulation::peer_counts.mapped == 0);
}

TEST_CASE("a process that was killed is waited for no longer than the deadline") {
  const auto killed = [](const std::atomic<int>& ended) {
    emulation::Mappings::of_all().die();
    while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    throw Error("killed");
  };
  CHECK(until_rank_1(3, Seconds(0.3), killed) == std::vector<std::string>{"", "killed", ""});
  const auto sentences = until_rank_1(2, Seconds(0.3), killed);
  CHECK(sentences[1] == "killed");
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}})
    CHECK(contains(sentences[r], concat("rank ", r, ": cuda-peer ")));
  CHECK(emulation::peer_counts.mapped == 0);
}
