// Timing: how long work on a stream takes on its GPU.
#pragma once

#include <algorithm>

#include <convoy/memory/cuda.cuh>
#include <convoy/memory/launch.cuh>

namespace convoy::exec::cuda {

/// Keeps its stream waiting for `nanoseconds`.
template <class = void>
__global__ void hold(unsigned long long nanoseconds) {
  const unsigned long long start = device::nanoseconds();
  while (device::nanoseconds() - start < nanoseconds) {
  }
}

/// The least time of a few rounds of `run`, which enqueues work, after one run that loads kernels. The stream
/// is held while the host enqueues a round, so that the time excludes the host's launch overhead, which a
/// captured graph does not have either.
template <class Run>
float least_milliseconds(cudaStream_t stream, Run&& run) {
  constexpr int rounds = 3;
  constexpr float worth_repeating = 0.3f, most_repeats = 8;  // milliseconds; times
  constexpr unsigned long long held = 200'000;  // nanoseconds: enough to enqueue most_repeats runs
  cudaEvent_t from{}, to{};
  device::check(cudaEventCreate(&from), "make an event");
  const device::Event begin(from);
  device::check(cudaEventCreate(&to), "make an event");
  const device::Event end(to);
  const auto time = [&](int repeats) {
    device::launch({.stream = stream, .block = 1}, hold<>, held);
    device::check(cudaEventRecord(from, stream), "record an event");
    for (int i = 0; i < repeats; ++i) run();
    device::check(cudaEventRecord(to, stream), "record an event");
    device::check(cudaEventSynchronize(to), "wait for work that is timed");
    float milliseconds = 0;
    device::check(cudaEventElapsedTime(&milliseconds, from, to), "time work");
    return milliseconds / static_cast<float>(repeats);
  };
  run();
  float least = time(1);
  const int repeats = static_cast<int>(std::clamp(worth_repeating / least, 1.0f, most_repeats));
  for (int round = 0; round < rounds; ++round) least = std::min(least, time(repeats));
  return least;
}

}  // namespace convoy::exec::cuda
