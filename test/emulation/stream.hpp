// Streams, events and graphs of the emulated device. Work on a stream runs at once, in the order of the
// calls, or later if a test asks for that (Settings::late). On a capturing stream, work becomes a node of a
// graph, with the dependencies that CUDA would give it, and runs whenever the graph is launched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "device_memory.hpp"
#include "queue.hpp"
#include "settings.hpp"

namespace emulation {

/// A piece of work and the indices of the nodes that must run before it.
struct Node {
  std::function<void()> work;
  std::vector<std::size_t> after;
};
using Nodes = std::shared_ptr<const std::vector<Node>>;

/// A capture that has begun. Events keep a reference to their capture after its end.
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  cudaStream_t origin = nullptr;
  bool invalid = false, ended = false;
  std::vector<Node> nodes;
  std::vector<cudaStream_t> streams;
};

/// The nodes on which the next node that a stream captures will depend.
using Tails = std::set<std::size_t>;

}  // namespace emulation

struct CUstream_st {
  unsigned flags = 0;
  int device = 0;
  std::shared_ptr<emulation::Capture> capture;
  emulation::Tails tails;
  std::shared_ptr<emulation::Queue> queue = std::make_shared<emulation::Queue>();
};
struct CUevent_st {
  unsigned flags = 0;
  int device = 0;
  emulation::Mark mark;                         // of the last record
  std::shared_ptr<emulation::Capture> capture;  // of the last record, if that was captured
  emulation::Tails tails;
};
struct CUgraph_st {
  emulation::Nodes nodes;
};
struct CUgraphExec_st {
  emulation::Nodes nodes;
};

namespace emulation {

/// The state of the runtime. Whoever accesses it holds the mutex; no work runs under the mutex.
struct State {
  static State& of_process() {
    static State state;
    return state;
  }

  std::recursive_mutex mutex;
  CUstream_st legacy;
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  std::set<std::shared_ptr<Capture>> captures;
  std::set<int> begun;           // devices that were current when a thread enqueued work
  std::set<const void*> loaded;  // kernels

  /// Null if the handle is not a stream's.
  cudaStream_t stream(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return &legacy;
    return streams.count(handle) ? handle : nullptr;
  }
};

/// The capture mode of this thread (cudaThreadExchangeStreamCaptureMode).
inline thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/// For calls that are unsafe during a capture (cudaMalloc, cudaEventQuery, ...): returns an error and
/// invalidates the running captures, unless their modes permit the call.
inline cudaError_t unsafe_call() {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  bool refused = false;
  for (const auto& capture : state.captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbidden =
        thread_mode != cudaStreamCaptureModeRelaxed &&
        (own ? capture->mode != cudaStreamCaptureModeRelaxed
             : thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal);
    if (forbidden) capture->invalid = refused = true;
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

/// For use of the legacy stream: returns an error if streams that it would wait for are capturing.
inline cudaError_t legacy_call() {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  bool refused = false;
  for (const auto& capture : state.captures)
    if (!(capture->origin->flags & cudaStreamNonBlocking)) capture->invalid = refused = true;
  return refused ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

inline thread_local int current_device = 0;

/// Runs all enqueued work of the streams of this thread's device: of `all` streams for calls that wait for
/// the device, else of those that the legacy stream waits for. Without Settings::late nothing is pending,
/// except work that other threads are running.
inline void catch_up(bool all) {
  if (!settings.late) return;
  State& state = State::of_process();
  std::vector<std::shared_ptr<Queue>> queues;
  {
    const std::lock_guard lock(state.mutex);
    for (const cudaStream_t stream : state.streams)
      if (stream->device == current_device && (all || !(stream->flags & cudaStreamNonBlocking)))
        queues.push_back(stream->queue);
  }
  for (const auto& queue : queues) queue->run_until(queue->added());
}

/// Runs a piece of work on a stream, with device memory open: at once, later, or at every launch of the graph
/// that the stream captures. All work of a stream goes through this function, including that of libraries.
/// The work may wait for other threads. Its exceptions leave the call that runs it. Unless the work is
/// captured, `behind` receives the mark behind it.
inline cudaError_t run_on(cudaStream_t handle, std::function<void()> work, Mark* behind = nullptr) {
  State& state = State::of_process();
  std::shared_ptr<Queue> queue;
  bool legacy = false;
  {
    const std::lock_guard lock(state.mutex);
    state.begun.insert(current_device);
    const cudaStream_t stream = state.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    legacy = stream == &state.legacy;
    if (legacy)
      if (const cudaError_t refused = legacy_call()) return refused;
    if (stream->capture != nullptr) {
      Capture& capture = *stream->capture;
      if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
      capture.nodes.push_back({std::move(work), {stream->tails.begin(), stream->tails.end()}});
      stream->tails = {capture.nodes.size() - 1};
      return cudaSuccess;
    }
    queue = stream->queue;
  }
  if (legacy) catch_up(false);
  const std::uint64_t number = queue->add(std::move(work));
  if (behind != nullptr) *behind = {queue, number, nullptr};
  if (legacy || !settings.late) queue->run_until(number);
  return cudaSuccess;
}

/// Whether a stream is capturing. Calls that cannot be captured ask this and then fail with the next
/// function.
inline bool is_capturing(cudaStream_t handle) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  const cudaStream_t stream = state.stream(handle);
  return stream != nullptr && stream->capture != nullptr;
}

/// The error of a call that cannot be captured, on a capturing stream; invalidates the capture.
inline cudaError_t cannot_be_captured(cudaStream_t handle) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  state.stream(handle)->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

/// The error of a kernel on a stream that is not one of the thread's current device.
inline cudaError_t may_use(cudaStream_t handle) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  const cudaStream_t stream = state.stream(handle);
  const bool may = stream != nullptr && (stream == &state.legacy || stream->device == current_device);
  return may ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

/// Marks a kernel as loaded.
inline void load(const void* kernel) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  state.loaded.insert(kernel);
}
/// The first launch of a kernel loads it. Loading may wait for the device, so that launch cannot be captured.
inline cudaError_t load_for(cudaStream_t stream, const void* kernel) {
  if (!is_capturing(stream)) {
    load(kernel);
    return cudaSuccess;
  }
  {
    State& state = State::of_process();
    const std::lock_guard lock(state.mutex);
    if (state.loaded.count(kernel) > 0) return cudaSuccess;
  }
  return cannot_be_captured(stream);
}

/// Runs the nodes of a graph in the order `settings.nodes`, as far as their dependencies allow.
inline void replay(const std::vector<Node>& nodes) {
  if (settings.nodes == Order::forward) {
    for (const Node& node : nodes) node.work();
    return;
  }
  std::vector<bool> done(nodes.size());
  for (std::size_t left = nodes.size(); left > 0; --left) {
    std::size_t next = nodes.size();
    do --next;
    while (done[next] || !std::all_of(nodes[next].after.begin(), nodes[next].after.end(),
                                      [&](std::size_t before) { return done[before]; }));
    nodes[next].work();
    done[next] = true;
  }
}

}  // namespace emulation
