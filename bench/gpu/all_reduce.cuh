// All-reduces of two ranks that share this GPU.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cases.cuh"
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/core/clock.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/device.cuh>
#include <convoy/memory/space.hpp>

namespace gpu_bench {

using namespace convoy;

/// The rates of an all-reduce of `bytes` by `ranks` ranks, as fields.
inline std::string rates_of_all_reduce(double bytes, int ranks, const std::vector<float>& times) {
  const double algorithm = bytes / median(times) * 1e-6;
  char text[80];
  std::snprintf(text, sizeof text, ", \"algbw\": %.1f, \"busbw\": %.1f", algorithm,
                algorithm * 2 * (ranks - 1) / ranks);
  return text;
}

/// The bootstrap of two ranks, which are threads that share this GPU.
class Pair {
 public:
  struct Place {
    std::vector<std::byte> bytes[2];
    std::barrier<> sync{2};
  };
  Pair(Place& place, int rank) : place_(&place), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const { return 2; }
  void broadcast(std::span<std::byte> data) {
    std::vector<std::byte> all(2 * data.size());
    all_gather(data, all);
    std::copy_n(all.begin(), data.size(), data.begin());
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    place_->bytes[rank_].assign(mine.begin(), mine.end());
    place_->sync.arrive_and_wait();
    std::copy(place_->bytes[1].begin(), place_->bytes[1].end(),
              std::copy(place_->bytes[0].begin(), place_->bytes[0].end(), all.begin()));
    place_->sync.arrive_and_wait();
  }

 private:
  Place* place_;
  int rank_;
};

/// All-reduces of `count` floats by two ranks on this GPU, whose memory takes the place of links between
/// GPUs. In the one-shot algorithm each rank writes its values and reads those of both; in the two-shot
/// algorithm it reads half of both, then the other's half. 0 blocks stand for all multiprocessors: by default
/// ranks that share a GPU leave a quarter of them to backward, and here there is none.
inline void all_reduce(std::int64_t count, double copy, int blocks = 0) {
  std::string name = concat("all_reduce/cuda-peer/2 ranks on this GPU/", count);
  if (blocks > 0) name += concat("/blocks:", blocks);
  if (!wanted(name)) return;
  if (blocks == 0) {
    int processors = 0;
    device::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0),
                  "count the processors of a GPU");
    blocks = std::min(processors / 2, comm::peer::most_blocks);
  }
  Pair::Place place;
  std::vector<float> times;
  bool at_once = false;
  std::exception_ptr failures[2];
  const auto body = [&](int rank) {
    comm::AnyBootstrap bootstrap(Pair(place, rank));
    memory::Device space;
    const memory::Array<float, memory::Device> gradients(space, static_cast<std::size_t>(count));
    space.synchronize();
    {
      comm::peer::Link link(bootstrap, {.deadline = Seconds(20), .blocks = blocks});
      const comm::peer::Window window(bootstrap, gradients.data());
      constexpr int runs = 20, exchanges = 10;
      device::Event marks[runs + 1];
      for (device::Event& mark : marks) {
        cudaEvent_t made{};
        device::check(cudaEventCreate(&made), "make an event");
        mark = device::Event(made);
      }
      for (int i = -1; i <= runs; ++i) {
        if (i >= 0) device::check(cudaEventRecord(marks[i].get(), link.stream()), "record an event");
        for (int k = 0; k < exchanges && i < runs; ++k) link.all_reduce<float>(window, 0, count);
      }
      link.synchronize();
      for (int i = 0; i < runs && rank == 0; ++i) {
        float time = 0;
        device::check(cudaEventElapsedTime(&time, marks[i].get(), marks[i + 1].get()), "time a run");
        times.push_back(time / exchanges);
      }
      if (rank == 0) at_once = count * 4 <= link.options().at_once;
      bootstrap.barrier();
    }
    bootstrap.barrier();
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[rank] = std::current_exception();
        place.sync.arrive_and_drop();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  std::sort(times.begin(), times.end());
  const double bytes = 4.0 * static_cast<double>(count);
  report_bandwidth(name, 2 * (at_once ? 5.0 : 2.5) * bytes, times, copy,
                   rates_of_all_reduce(bytes, 2, times));
}

}  // namespace gpu_bench
