// Two ranks on one GPU, threads of one process, exchange over peer memory: run on the CPU by
// test_comm_peer_ranks.cpp, and on a GPU by test_comm_peer_gpu.cu. All memory is allocated before the first
// exchange and freed after the last: a call that waits for the whole GPU would wait for the other rank's
// kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "comm_oracle.hpp"
#include "rank_table.hpp"
#include "sanitized.hpp"
#include "skip.hpp"
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/memory/device.cuh>

namespace peer_ranks {

using namespace convoy;
using comm::peer::Window;

inline constexpr int ranks = 2;

// Returns the ranks' error messages; empty if there were none. `body` gets the rank and its bootstrap.
inline std::vector<std::string> run(const std::function<void(int, comm::AnyBootstrap&)>& body) {
  return rank_table::run(ranks, [&](const rank_table::AtTable& at) {
    comm::AnyBootstrap bootstrap(at);
    body(at.rank(), bootstrap);
  });
}

template <class T>
std::vector<T> sum_of_both(std::int64_t count, std::uint64_t seed) {
  std::vector<T> sums = oracle::input<T>(0, count, seed), others = oracle::input<T>(1, count, seed);
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums[i] = static_cast<T>(static_cast<float>(sums[i]) + static_cast<float>(others[i]));
  return sums;
}

// How many of `rounds` exchanges, of numbers that differ from round to round, gave the right result.
template <class T>
int right_rounds(int rank, comm::AnyBootstrap& bootstrap, std::int64_t count, int rounds, bool graph) {
  memory::Device space;
  const memory::Array<T, memory::Device> memory(space, static_cast<std::size_t>(count));
  space.synchronize();
  int right = 0;
  {
    comm::peer::Link link(bootstrap, {.deadline = Seconds(20)});
    const Window window(bootstrap, memory.data());
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    std::vector<std::vector<T>> inputs, sums;
    for (int round = 0; round < std::min(rounds, 3); ++round) {
      inputs.push_back(oracle::input<T>(rank, count, static_cast<std::uint64_t>(round)));
      sums.push_back(sum_of_both<T>(count, static_cast<std::uint64_t>(round)));
    }
    std::vector<T> seen(static_cast<std::size_t>(count));
    device::GraphExec replayed;
    if (graph) {
      cudaGraph_t captured{};
      cudaGraphExec_t made{};
      device::check(cudaStreamBeginCapture(link.stream(), cudaStreamCaptureModeThreadLocal), "capture");
      link.all_reduce<T>(window, 0, count);
      device::check(cudaStreamEndCapture(link.stream(), &captured), "end a capture");
      device::check(cudaGraphInstantiate(&made, captured, 0), "make a graph");
      replayed = device::GraphExec(made);
      device::check(cudaGraphDestroy(captured), "end a graph");
      // Otherwise the first launch uploads it, perhaps while the other rank's kernel waits for this rank.
      device::check(cudaGraphUpload(replayed.get(), link.stream()), "upload a graph");
      device::check(cudaStreamSynchronize(link.stream()), "upload a graph");
    }
    bootstrap.barrier();
    for (int round = 0; round < rounds; ++round) {
      const auto which = static_cast<std::size_t>(round % 3);
      space.write(memory.data(), inputs[which].data(), bytes);
      space.synchronize();
      if (graph)
        device::check(cudaGraphLaunch(replayed.get(), link.stream()), "launch a graph");
      else
        link.all_reduce<T>(window, 0, count);
      link.synchronize();
      space.read(seen.data(), memory.data(), bytes);
      right += oracle::same_bits(seen, sums[which]) ? 1 : 0;
    }
    bootstrap.barrier();
  }
  bootstrap.barrier();
  return right;
}

template <class C>
bool trains(int rank, comm::AnyBootstrap& bootstrap) {
  constexpr std::int64_t count = 300'000;
  const std::vector<Range> buckets{{0, 1000}, {1000, 200'000}, {200'000, count}};
  memory::Device space;
  const memory::Array<float, memory::Device> gradients(space, count), parameters(space, count);
  space.synchronize();
  std::vector<float> seen(count);
  {
    C comm(bootstrap, {.deadline = Seconds(20)});
    comm.open(comm::Fingerprint(), {.gradients = {gradients.data(), count},
                                    .parameters = {parameters.data(), count},
                                    .buckets = buckets,
                                    .space = &space});
    bootstrap.barrier();
    for (int step = 0; step < 5; ++step) {
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        space.fill(gradients.data() + buckets[b].begin, buckets[b].size(),
                   static_cast<float>(10 * rank + step));
        comm.begin(static_cast<int>(b), space.mark());
      }
      comm.finish([&](Range range, float) {
        space.add(parameters.data() + range.begin, gradients.data() + range.begin, range.size());
      });
    }
    space.read(seen.data(), parameters.data(), count * sizeof(float));
    comm.poll();
    std::vector<float> numbers(2'000'000 / sizeof(float), rank == 1 ? 7.0f : 0.0f);
    comm.broadcast(std::span<float>(numbers), 1);
    if (numbers != std::vector<float>(numbers.size(), 7.0f)) throw Error("not what rank 1 had");
    bootstrap.barrier();
  }
  bootstrap.barrier();
  return seen == std::vector<float>(count, 5.0f * 10 + 2 * (0 + 1 + 2 + 3 + 4));
}

}  // namespace peer_ranks

TEST_CASE("a rank that ends by an exception is not waited for at the table") {
  const auto sentences = peer_ranks::run([](int rank, convoy::comm::AnyBootstrap& bootstrap) {
    if (rank == 1) throw std::runtime_error("broken");
    bootstrap.barrier();
  });
  CHECK(sentences[0] == "a rank has left the others");
  CHECK(sentences[1] == "broken");
}

TEST_CASE_TEMPLATE("two ranks on one GPU get the same sums by one shot and by two", T, convoy::f32,
                   convoy::bf16) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace peer_ranks;
  for (const std::int64_t count :
       {std::int64_t{1}, std::int64_t{1001}, std::int64_t{65'536}, std::int64_t{1'000'003}})
    for (const bool graph : {false, true}) {
      if (sanitized && count > 65'536) continue;
      CAPTURE(count);
      CAPTURE(graph);
      int right[ranks] = {};
      for (const auto& sentence : run([&](int rank, comm::AnyBootstrap&bootstrap) {
             right[rank] = right_rounds<T>(rank, bootstrap, count, 7, graph);
           }))
        CHECK(sentence == "");
      for (const int rounds : right) CHECK(rounds == 7);
    }
}

TEST_CASE_TEMPLATE("two ranks on one GPU train", C, convoy::comm::CudaPeer<convoy::memory::Device>,
                   convoy::comm::Sharded<convoy::comm::CudaPeer<convoy::memory::Device>>) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace peer_ranks;
  bool right[ranks] = {};
  for (const auto& sentence :
       run([&](int rank, comm::AnyBootstrap&bootstrap) { right[rank] = trains<C>(rank, bootstrap); }))
    CHECK(sentence == "");
  for (const bool good : right) CHECK(good);
}

TEST_CASE("a rank on the same GPU that does not come ends the wait of the other") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace peer_ranks;
  const auto sentences = run([&](int rank, comm::AnyBootstrap& bootstrap) {
    memory::Device space;
    const memory::Array<float, memory::Device> memory(space, 100'000);
    space.synchronize();
    comm::peer::Link link(bootstrap, {.deadline = Seconds(0.5)});
    const Window window(bootstrap, memory.data());
    std::string sentence;
    if (rank == 0) {
      try {
        link.all_reduce<float>(window, 0, 100'000);
        link.synchronize();
      } catch (const CommError& error) {
        sentence = error.what();
      }
    }
    bootstrap.barrier();
    if (!sentence.empty()) throw Error(sentence);
  });
  CHECK(sentences[0].find("rank 0: cuda-peer all-reduce: rank 1 did not come within 0.5 s") == 0);
  CHECK(sentences[1] == "");
}
