// Timing: how long work of a stream takes on its GPU.
#pragma once

#include <algorithm>

#include <convoy/memory/cuda.cuh>

namespace convoy::exec::cuda {

/// The least time of a few rounds, after a run that loads kernels. A round runs `repeats` times, so that the
/// host is ahead of the GPU where one run is shorter than its start.
template <class Run>
float least_milliseconds(cudaStream_t stream, int repeats, Run&& run) {
  constexpr int rounds = 3;
  cudaEvent_t from{}, to{};
  device::check(cudaEventCreate(&from), "make an event");
  const device::Event begin(from);
  device::check(cudaEventCreate(&to), "make an event");
  const device::Event end(to);
  run();
  float least = 0;
  for (int round = 0; round < rounds; ++round) {
    float time = 0;
    device::check(cudaEventRecord(from, stream), "record an event");
    for (int i = 0; i < repeats; ++i) run();
    device::check(cudaEventRecord(to, stream), "record an event");
    device::check(cudaEventSynchronize(to), "wait for work that is timed");
    device::check(cudaEventElapsedTime(&time, from, to), "time work");
    least = round == 0 ? time : std::min(least, time);
  }
  return least / static_cast<float>(repeats);
}

}  // namespace convoy::exec::cuda
