// EMULATES
// TIMEOUT: 300
// The kernels of an exchange over peer memory, run on the CPU: ranks are threads whose kernels wait for one
// another. Sums in rank order, by one shot and by two; graphs; ranks that never come. Ranks of one process
// meet on the host around each exchange, so most ranks here pass for processes, whose kernels alone wait for
// one another.
#include <cstdlib>
#include <limits>

#include "as_processes.hpp"
#include "comm_oracle.hpp"
#include "device_of_tests.hpp"
#include <convoy/comm/peer/link.cuh>

namespace {

using namespace device_test;
using comm::peer::Link;
using comm::peer::Window;

// A rank: its bootstrap, its space and its link.
struct Rank {
  comm::AnyBootstrap ranks;
  TestSpace space;
  Link link;
  Rank(const AtTable& bootstrap, const comm::PeerOptions& options) : ranks(bootstrap), link(ranks, options) {}
  // The link's next work waits for the space's work so far, and the other way round.
  void synchronize() {
    space.synchronize();
    link.synchronize();
  }
};

enum class Ranks { processes, threads };

// The ranks' error messages; empty if there were none.
std::vector<std::string> on_links(int ranks, const std::function<void(Rank&)>& body,
                                  const comm::PeerOptions& options = {}, Ranks are = Ranks::processes) {
  const AsProcesses processes(are == Ranks::processes);
  return rank_table::run(ranks, [&](const AtTable& bootstrap) {
    Rank rank(bootstrap, options);
    body(rank);
  });
}

// x_0 + x_1 + ..., in f32 or wider, rounded once.
template <class T>
std::vector<T> in_order(int ranks, std::int64_t count, std::uint64_t seed) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  std::vector<Wide> sums;
  for (int r = 0; r < ranks; ++r) {
    const std::vector<T> next = oracle::input<T>(r, count, seed);
    if (r == 0) sums.assign(next.size(), 0);
    for (std::size_t i = 0; i < next.size(); ++i)
      sums[i] = r == 0 ? static_cast<Wide>(next[i]) : sums[i] + static_cast<Wide>(next[i]);
  }
  std::vector<T> result(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) result[i] = static_cast<T>(sums[i]);
  return result;
}

// This rank's numbers in memory that all ranks can access, `offset` elements behind its beginning.
template <class T>
struct Shared {
  Rank& rank;
  std::int64_t offset, count;
  memory::Array<T, TestSpace> memory;
  Window window;
  Shared(Rank& r, std::int64_t how_many, std::int64_t at = 0)
      : rank(r),
        offset(at),
        count(how_many),
        memory(r.space, static_cast<std::size_t>(how_many + at + 1)),
        window(r.ranks, memory.data()) {}
  ~Shared() {
    window = Window();
    try {
      rank.ranks.barrier();
    } catch (const Error&) {  // a rank has left
    }
  }
  void write(const std::vector<T>& values) {
    rank.space.write(memory.data() + offset, values.data(), values.size() * sizeof(T));
    rank.space.synchronize();
  }
  std::vector<T> read() {
    rank.synchronize();
    std::vector<T> values(static_cast<std::size_t>(count));
    rank.space.read(values.data(), memory.data() + offset, values.size() * sizeof(T));
    return values;
  }
};

constexpr std::int64_t sizes[] = {0, 1, 15, 257, 4099};

}  // namespace

TEST_CASE_TEMPLATE("all-reduce gives sums in the order of ranks, by one shot and by two", T, f32, f64, bf16,
                   f16) {
  using emulation::Order;
  const emulation::With backward({.blocks = sizeof(T) == 4 ? Order::backward : Order::forward,
                                  .threads = sizeof(T) == 8 ? Order::backward : Order::forward,
                                  .closed_to_host = false});
  for (const int ranks : {1, 2, 3, 5})
    for (const std::int64_t at_once : {std::int64_t{1024}, std::int64_t{1} << 18}) {
      CAPTURE(ranks);
      CAPTURE(at_once);
      std::atomic<int> right = 0;
      const auto body = [&](Rank& rank) {
        for (const std::int64_t count : sizes) {
          const auto seed = static_cast<std::uint64_t>(count) + 7;
          Shared<T> shared(rank, count);
          shared.write(oracle::input<T>(rank.link.rank(), count, seed));
          rank.link.all_reduce<T>(shared.window, 0, count);
          right += oracle::same_bits(shared.read(), in_order<T>(ranks, count, seed)) ? 1 : 0;
          if (rank.link.rank() > 0 || ranks == 1 || count == 0) continue;
          // The ring sums in another order.
          const auto ring = oracle::ring<T>(ranks, count, seed, comm::Op::sum);
          const auto seen = in_order<T>(ranks, count, seed);
          const double most = sizeof(T) == 2 ? 0.1 : 1e-5;
          for (std::size_t i = 0; i < ring.size(); ++i)
            if (std::abs(static_cast<double>(static_cast<float>(ring[i])) -
                         static_cast<double>(static_cast<float>(seen[i]))) > most)
              throw Error("far from what the ring gives");
        }
      };
      all_well(on_links(ranks, body, {.at_once = at_once, .blocks = 3}));
      CHECK(right == ranks * static_cast<int>(std::size(sizes)));
    }
}

TEST_CASE_TEMPLATE("a large buffer has the same bits on all ranks and in every run", T, f32, bf16) {
  constexpr std::int64_t count = 300'007;
  std::vector<std::vector<T>> results;
  for (const int blocks : {2, 16}) {
    std::vector<std::vector<T>> of(3);
    all_well(on_links(3,
                      [&](Rank& rank) {
                        Shared<T> shared(rank, count);
                        shared.write(oracle::input<T>(rank.link.rank(), count, 3));
                        rank.link.all_reduce<T>(shared.window, 0, count);
                        of[static_cast<std::size_t>(rank.link.rank())] = shared.read();
                      },
                      {.blocks = blocks}));
    results.insert(results.end(), of.begin(), of.end());
  }
  for (const auto& result : results) CHECK(oracle::same_bits(result, in_order<T>(3, count, 3)));
}

TEST_CASE("memory that others do not see is reduced in pieces of a slot") {
  std::atomic<int> right = 0;
  all_well(on_links(3,
                    [&](Rank& rank) {
                      memory::Array<f32, TestSpace> own(rank.space, 1000);
                      const auto input = oracle::input<f32>(rank.link.rank(), 999, 5);
                      rank.space.write(own.data() + 1, input.data(), input.size() * sizeof(f32));
                      rank.space.synchronize();
                      rank.link.all_reduce(own.data() + 1, 999);
                      rank.synchronize();
                      std::vector<f32> seen(999);
                      rank.space.read(seen.data(), own.data() + 1, seen.size() * sizeof(f32));
                      right += oracle::same_bits(seen, in_order<f32>(3, 999, 5)) ? 1 : 0;
                    },
                    {.at_once = 1024}));
  CHECK(right == 3);
}

TEST_CASE("an exchange may begin while others still read the numbers of the one before") {
  std::atomic<int> right = 0;
  for (int repetition = 0; repetition < 10; ++repetition)
    all_well(on_links(2,
                      [&](Rank& rank) {
                        memory::Array<f32, TestSpace> own(rank.space, 600);
                        rank.space.fill(own.data(), 600, static_cast<f32>(rank.link.rank() + 1));
                        rank.space.synchronize();
                        // 3, 6, 12 and so on. With one block, no rank waits for another rank's second block.
                        for (int k = 0; k < 20; ++k) rank.link.all_reduce(own.data(), 600);
                        rank.synchronize();
                        std::vector<f32> seen(600);
                        rank.space.read(seen.data(), own.data(), seen.size() * sizeof(f32));
                        right += seen == std::vector<f32>(600, 3.0f * (1 << 19)) ? 1 : 0;
                      },
                      {.blocks = 1}));
  CHECK(right == 20);
}

TEST_CASE("the halves: each rank gets the sums of its part, then all get all parts") {
  std::atomic<int> right = 0;
  for (const std::int64_t count : {std::int64_t{5}, std::int64_t{2051}})
    for (const std::int64_t offset : {0, 3, 4}) {
      CAPTURE(count);
      CAPTURE(offset);
      right = 0;
      all_well(on_links(3, [&](Rank& rank) {
        Shared<f32> shared(rank, count, offset);
        const auto input = oracle::input<f32>(rank.link.rank(), count, 9);
        const auto expected = in_order<f32>(3, count, 9);
        shared.write(input);
        const comm::peer::Cuts cuts = rank.link.equal_cuts(count);
        rank.link.reduce_scatter<f32>(shared.window, offset, cuts);
        const auto scattered = shared.read();
        const Range own{cuts.at[rank.link.rank()], cuts.at[rank.link.rank() + 1]};
        bool good =
            own.begin == rank.link.rank() * (count / 48 * 16) && (rank.link.rank() < 2 || own.end == count);
        for (std::int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          good = good && scattered[at] == (i >= own.begin && i < own.end ? expected[at] : input[at]);
        }
        rank.link.all_gather<f32>(shared.window, offset, cuts);
        good = good && oracle::same_bits(shared.read(), expected);
        right += good ? 1 : 0;
      }));
      CHECK(right == 3);
    }
}

TEST_CASE("a broadcast gives every rank the root's bytes") {
  std::atomic<int> right = 0;
  all_well(on_links(3, [&](Rank& rank) {
    for (int root = 0; root < 3; ++root)
      for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{40'001}}) {
        Shared<u8> shared(rank, bytes);
        std::vector<u8> mine(static_cast<std::size_t>(bytes)), expected(mine);
        for (std::size_t i = 0; i < mine.size(); ++i) {
          expected[i] = static_cast<u8>(i * 7 + static_cast<std::size_t>(root));
          mine[i] = rank.link.rank() == root ? expected[i] : u8{0};
        }
        shared.write(mine);
        rank.link.broadcast(shared.window, 0, bytes, root);
        right += shared.read() == expected ? 1 : 0;
      }
  }));
  CHECK(right == 27);
}

TEST_CASE("a captured exchange is replayed as often as one likes") {
  std::atomic<int> right = 0;
  all_well(on_links(
      2,
      [&](Rank& rank) {
        constexpr std::int64_t small = 100, large = 2000;
        Shared<f32> first(rank, small), second(rank, large);
        const cudaStream_t stream = rank.link.stream();
        cudaGraph_t captured{};
        cudaGraphExec_t made{};
        device::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin a capture");
        // Three exchanges of one meeting each, an odd number, and one of three meetings in two shots.
        for (int k = 0; k < 3; ++k) rank.link.all_reduce<f32>(first.window, 0, small);
        rank.link.all_reduce<f32>(second.window, 0, large);
        device::check(cudaStreamEndCapture(stream, &captured), "end a capture");
        device::check(cudaGraphInstantiate(&made, captured, 0), "make a graph");
        const device::GraphExec graph(made);
        bool good = true;
        for (int replay = 0; replay < 5; ++replay) {
          first.write(std::vector<f32>(small, static_cast<f32>(rank.link.rank() + replay)));
          second.write(std::vector<f32>(large, static_cast<f32>(10 * rank.link.rank() + replay)));
          device::check(cudaGraphLaunch(graph.get(), stream), "launch a graph");
          good = good && first.read() == std::vector<f32>(small, static_cast<f32>(4 * (2 * replay + 1)));
          good = good && second.read() == std::vector<f32>(large, static_cast<f32>(2 * replay + 10));
        }
        cudaGraphDestroy(captured);
        right += good ? 1 : 0;
      },
      {.at_once = 1024}));
  CHECK(right == 2);
}

TEST_CASE("the host touches no memory of a GPU, and shuffled blocks give the same") {
  const emulation::With closed({.blocks = emulation::Order::shuffled, .closed_to_host = true});
  std::atomic<int> right = 0;
  all_well(on_links(2, [&](Rank& rank) {
    Shared<f32> shared(rank, 70'000);
    shared.write(oracle::input<f32>(rank.link.rank(), 70'000, 1));
    rank.link.all_reduce<f32>(shared.window, 0, 70'000);
    right += oracle::same_bits(shared.read(), in_order<f32>(2, 70'000, 1)) ? 1 : 0;
  }));
  CHECK(right == 2);
}

// After a failure, a process's pad lives as long as the process, since others may still write to it.
TEST_CASE("nothing is left behind where all is well") { CHECK(emulation::bytes_in_use() == 0); }

TEST_CASE("a rank that does not come is named by the others within the deadline") {
  std::atomic<int> over = 0;
  for (const std::int64_t count : {std::int64_t{10}, std::int64_t{5000}}) {
    over = 0;
    const auto sentences =
        on_links(3,
                 [&](Rank& rank) {
                   memory::Array<f32, TestSpace> memory(rank.space, static_cast<std::size_t>(count));
                   const Window window(rank.ranks, memory.data());
                   if (rank.link.rank() == 1) {
                     while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                     throw Error("left");
                   }
                   rank.link.all_reduce<f32>(window, 0, count, {comm::peer::Kind::all_reduce, 4});
                   CommError seen({.rank = 99, .operation = "nothing"}, "");
                   try {
                     rank.link.synchronize();
                   } catch (const CommError& error) {
                     seen = error;
                   }
                   ++over;
                   CHECK(seen.rank == rank.link.rank());
                   CHECK(seen.peer == 1);
                   CHECK(seen.bytes == static_cast<std::size_t>(count) * sizeof(f32));
                   rank.link.check();  // a failed link stays failed
                 },
                 {.deadline = Seconds(0.2), .at_once = 1024});
    CHECK(sentences[1] == "left");
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      CAPTURE(sentences[r]);
      CHECK(contains(sentences[r], concat("rank ", r,
                                          ": cuda-peer all-reduce of bucket 4: rank 1 did not come "
                                          "within 0.2 s (peer rank 1, ")));
    }
  }
}

TEST_CASE("a deadline too long for the clock never expires") {
  for (const double deadline : {1e11, std::numeric_limits<double>::infinity()})
    all_well(on_links(2,
                      [&](Rank& rank) {
                        Shared<f32> shared(rank, 100);
                        shared.write(oracle::input<f32>(rank.link.rank(), 100, 1));
                        if (rank.link.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
                        rank.link.all_reduce<f32>(shared.window, 0, 100);
                        if (!oracle::same_bits(shared.read(), in_order<f32>(2, 100, 1)))
                          throw Error("not the sums");
                      },
                      {.deadline = Seconds(deadline)}));
}

TEST_CASE("no rank of a process enqueues before all are about to, and none goes on before all have") {
  std::atomic<int> arrived = 0, behind = 0, early = 0;
  all_well(on_links(
      3,
      [&](Rank& rank) {
        memory::Array<f32, TestSpace> own(rank.space, 8);
        rank.space.synchronize();
        for (int round = 1; round <= 3; ++round) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * rank.link.rank()));
          ++arrived;
          {
            const emulation::Enqueued enqueued;
            rank.link.all_reduce(own.data(), 8);
            behind += static_cast<int>(enqueued.names().size());
          }
          early += arrived < 3 * round ? 1 : 0;
        }
        rank.link.synchronize();
      },
      {}, Ranks::threads));
  CHECK(behind == 3 * 3);
  CHECK(early == 0);
}

TEST_CASE("a rank of the process that is late or leaves frees those that wait for it on the host") {
  for (const bool leaves : {false, true}) {
    CAPTURE(leaves);
    std::atomic<int> over = 0;
    const auto sentences = on_links(
        3,
        [&](Rank& rank) {
          memory::Array<f32, TestSpace> own(rank.space, 100);
          if (rank.link.rank() == 1) {
            if (leaves) throw Error("left");
            while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
            return;
          }
          struct Count {
            std::atomic<int>& over;
            ~Count() { ++over; }
          } count{over};
          const emulation::Enqueued enqueued;
          try {
            rank.link.all_reduce(own.data(), 100);
          } catch (const CommError&) {
            if (!enqueued.names().empty()) throw Error("a kernel was started");
            rank.link.check();  // a failed link stays failed
          }
        },
        {.deadline = Seconds(leaves ? 1000 : 0.2)}, Ranks::threads);
    CHECK(sentences[1] == (leaves ? "left" : ""));
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      CAPTURE(sentences[r]);
      CHECK(contains(sentences[r], concat("rank ", r, ": cuda-peer all-reduce: rank ")));
      CHECK(contains(sentences[r],
                     leaves ? " has left (peer rank " : " did not come within 0.2 s (peer rank 1, "));
    }
  }
}

TEST_CASE("ranks that share a GPU share its processors out") {
  const auto blocks = [](int processors, int devices, int wanted = 0) {
    const emulation::With machine({.devices = devices, .processors = processors, .closed_to_host = false});
    std::vector<int> seen(4);
    all_well(rank_table::run(4, [&](const AtTable& bootstrap) {
      device::use(bootstrap.rank() % emulation::settings.devices);
      const Rank rank(bootstrap, {.blocks = wanted});
      seen[static_cast<std::size_t>(bootstrap.rank())] = rank.link.blocks();
    }));
    CHECK(seen == std::vector<int>(4, seen[0]));
    return seen[0];
  };
  CHECK(blocks(132, 1) == 24);  // a quarter of the processors stays free
  CHECK(blocks(132, 1, 128) == 33);
  CHECK(blocks(132, 1, 16) == 16);
  CHECK(blocks(40, 1, 16) == 10);
  CHECK(blocks(2, 1) == 1);
  CHECK(blocks(30, 2) == 11);
  CHECK(blocks(30, 2, 16) == 15);
  CHECK(blocks(50, 3) == 19);  // two of the four ranks share the first GPU
  CHECK(blocks(132, 4) == 32);
  CHECK(blocks(132, 4, 128) == 128);
  CHECK(blocks(8, 4) == 8);
  CHECK(blocks(1024, 1) == 128);
}

TEST_CASE("a rank that leaves is noticed at once") {
  std::atomic<int> waiting = 0;
  const auto sentences = on_links(3,
                                  [&](Rank& rank) {
                                    memory::Array<f32, TestSpace> memory(rank.space, 100);
                                    if (rank.link.rank() == 1) {
                                      while (waiting < 2)
                                        std::this_thread::sleep_for(std::chrono::milliseconds(2));
                                      throw Error("left");
                                    }
                                    ++waiting;
                                    rank.link.all_reduce(memory.data(), 100);
                                    rank.link.synchronize();
                                  },
                                  {.deadline = Seconds(1000)});
  CHECK(sentences[1] == "left");
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CAPTURE(sentences[r]);
    CHECK(contains(sentences[r], "cuda-peer all-reduce: rank "));
    CHECK(contains(sentences[r], " has left (peer rank "));
  }
}

TEST_CASE("what does not fit is refused in one sentence") {
  const auto one = [](const comm::PeerOptions& options) {
    return on_links(
        1, [](Rank&) {}, options)[0];
  };
  CHECK(one({.at_once = 100}) ==
        "cuda-peer: at_once is a multiple of 256 from 1024 to 67108864 bytes, not 100");
  for (const int blocks : {-1, 129})
    CHECK(one({.blocks = blocks}) ==
          concat("cuda-peer: an exchange uses 1 to 128 blocks, or 0 for its own choice, not ", blocks));
  const auto differ = [](const AtTable& bootstrap) { Rank(bootstrap, {.blocks = 4 + bootstrap.rank()}); };
  for (const auto& sentence : rank_table::run(2, differ))
    CHECK(sentence == "rank 1 differs from rank 0 in comm.blocks: 5 instead of 4");
  // Streams of ranks that are threads need hardware queues of their own.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "11", 1);
  for (const int ranks : {2, 3})
    for (const std::string& sentence : on_links(
             ranks, [](Rank&) {}, {}, Ranks::threads))
      CHECK(sentence == (ranks == 2
                             ? ""
                             : "cuda-peer: 3 ranks of this process share a GPU, whose 11 hardware queues are "
                               "too few for their streams, so that one stream would wait for another; set "
                               "CUDA_DEVICE_MAX_CONNECTIONS to 12 (at most 32) before the first CUDA call"));
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}
