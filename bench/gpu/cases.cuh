// Cases: which are measured, how long the GPU takes, and how results are printed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <semaphore>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/name.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/device.cuh>
#include <convoy/memory/space.hpp>

namespace gpu_bench {

using namespace convoy;

inline std::string_view chosen;
inline bool lists = false;
inline std::set<std::string, std::less<>> measured;  // before

/// Whether a case is to be measured now.
inline bool wanted(const std::string& name) {
  if (name.find(chosen) == std::string::npos || measured.contains(name)) return false;
  if (lists) std::printf("%s\n", name.c_str());
  return !lists;
}
/// The same for at least one of the parts of a case.
inline bool wanted(const std::string& name, std::initializer_list<std::string_view> parts) {
  bool any = false;
  for (const std::string_view part : parts) any = wanted(concat(name, "/", part)) || any;
  return any;
}

/// Reads the names of an earlier output.
inline void read_measured(const char* path) {
  std::ifstream file(path);
  if (!file) fail<Error>("gpu_bench: could not read ", path);
  constexpr std::string_view before = "{\"name\": \"";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(before) && line.ends_with('}'))
      measured.insert(line.substr(before.size(), line.find('"', before.size()) - before.size()));
}

inline std::atomic<bool> failed = false;  // also set by threads of CUDA

/// Runs cases, and says so if one of them fails.
template <class Run>
void attempt(Run&& run) {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    failed = true;
  }
}

/// Holds a stream back until it is opened. It may be closed again once the stream has passed it.
class Gate {
 public:
  void close(cudaStream_t stream) {
    // After a timeout, opening came too late to be waited for. It must not open the gate now, and a second
    // one would exceed the greatest count of the semaphore.
    while (opened_.try_acquire()) {
    }
    const auto wait = [](void* gate) {
      // The timeout is for a step behind the gate that fails, after which nobody opens the gate.
      if (static_cast<Gate*>(gate)->opened_.try_acquire_for(std::chrono::seconds(5))) return;
      std::fprintf(stderr, "gpu_bench: the GPU was held back for 5 s and went on; this time is not valid\n");
      failed = true;
    };
    device::check(cudaLaunchHostFunc(stream, wait, this), "hold a stream back");
  }
  void open() { opened_.release(); }

 private:
  std::binary_semaphore opened_{0};
};

/// The milliseconds that the GPU takes for the work of each of `runs` calls, sorted, after some warm-up
/// calls. The GPU begins once all work of a call is enqueued, so that the host's time for launches does not
/// count.
template <class Run>
std::vector<float> milliseconds(memory::Device& space, int runs, Run&& run) {
  Gate gate;
  cudaEvent_t from{}, to{};
  device::check(cudaEventCreate(&from), "make an event");
  device::check(cudaEventCreate(&to), "make an event");
  const device::Event begin(from), end(to);
  std::vector<float> times;
  run();  // loads kernels, which may wait for the GPU
  space.synchronize();
  for (int i = -2; i < runs; ++i) {
    gate.close(space.stream());
    try {
      device::check(cudaEventRecord(from, space.stream()), "record an event");
      run();
      device::check(cudaEventRecord(to, space.stream()), "record an event");
    } catch (...) {
      gate.open();
      space.synchronize();
      throw;
    }
    gate.open();
    space.synchronize();
    float time = 0;
    device::check(cudaEventElapsedTime(&time, from, to), "time a run");
    if (i >= 0) times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  return times;
}

inline double median(const std::vector<float>& sorted) {
  return static_cast<double>(sorted[sorted.size() / 2]);
}

/// Prints the median rate with the least and the greatest of its runs, and `more` fields.
inline void report_bandwidth(const std::string& name, double bytes, const std::vector<float>& times,
                             double copy, const std::string& more = "") {
  std::printf(
      "{\"name\": \"%s\", \"GB_per_sec\": %.1f, \"least\": %.1f, \"most\": %.1f, \"of_copy\": %.3f%s}\n",
      name.c_str(), bytes / median(times) * 1e-6, bytes / static_cast<double>(times.back()) * 1e-6,
      bytes / static_cast<double>(times.front()) * 1e-6, copy > 0 ? bytes / median(times) * 1e-6 / copy : 1.0,
      more.c_str());
  std::fflush(stdout);
}

/// Bytes read and written by a copy within the GPU, in GB/s; 0 if nothing is measured.
inline double copy_bandwidth(memory::Device& space) {
  const bool reports = wanted("copy/1GiB");
  if (lists) return 0;
  const std::size_t bytes = std::size_t{1} << 30;
  const memory::Array<std::byte, memory::Device> from(space, bytes), to(space, bytes);
  const auto times = milliseconds(space, 20, [&] { space.copy(to.data(), from.data(), bytes); });
  if (reports) report_bandwidth("copy/1GiB", 2.0 * static_cast<double>(bytes), times, 0);
  return 2.0 * static_cast<double>(bytes) / median(times) * 1e-6;
}

}  // namespace gpu_bench
