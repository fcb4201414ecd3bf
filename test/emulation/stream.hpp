// Streams, events and graphs of the emulated device. Work on a stream is done at once, in the order of the
// calls, or later if a test wants that (Settings::late). On a stream that is capturing it becomes a node of a
// graph, behind those that CUDA would put it behind, and is done whenever the graph is launched.
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

/// A piece of work and the pieces that must be done before it.
struct Node {
  std::function<void()> work;
  std::vector<std::size_t> after;
};
using Nodes = std::shared_ptr<const std::vector<Node>>;

/// A capture that was begun; events remember theirs when it has ended.
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  cudaStream_t origin = nullptr;
  bool invalid = false, ended = false;
  std::vector<Node> nodes;
  std::vector<cudaStream_t> streams;
};

/// Nodes that are behind everything that a stream has captured so far.
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

/// Everything that the runtime remembers. Whoever looks at it holds the mutex; no work runs under it.
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
  std::set<int> begun;           // devices that were some thread's own when it gave a stream work
  std::set<const void*> loaded;  // kernels

  /// Null if it is none.
  cudaStream_t stream(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return &legacy;
    return streams.count(handle) ? handle : nullptr;
  }
};

/// The mode of this thread (cudaThreadExchangeStreamCaptureMode).
inline thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/// Of calls that would do something beside a capture that goes on (cudaMalloc, cudaEventQuery, ...): an error
/// and the end of these captures, unless their modes let it pass.
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

/// Of use of the legacy stream, which would wait for streams that are capturing.
inline cudaError_t legacy_call() {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  bool refused = false;
  for (const auto& capture : state.captures)
    if (!(capture->origin->flags & cudaStreamNonBlocking)) capture->invalid = refused = true;
  return refused ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

inline thread_local int current_device = 0;

/// Has the streams of this thread's device do all their work, as for calls that wait for the device, or those
/// for which the legacy stream waits. Without Settings::late there is nothing to wait for: what other threads
/// are about to do is theirs.
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

/// Does a piece of work on a stream, with device memory open: at once, or later, or at every launch of the
/// graph that the stream captures. Everything that a stream does goes through here, libraries' calls too. The
/// work may wait for other threads. Its exceptions are those of the call that has it done. `behind` becomes
/// the place behind it where it is not captured.
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

/// Whether a stream is capturing; what cannot be captured then says so.
inline bool is_capturing(cudaStream_t handle) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  const cudaStream_t stream = state.stream(handle);
  return stream != nullptr && stream->capture != nullptr;
}

/// The error of a call on a capturing stream that cannot be captured; the capture is lost.
inline cudaError_t cannot_be_captured(cudaStream_t handle) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  state.stream(handle)->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

/// A kernel is loaded from here on.
inline void load(const void* kernel) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  state.loaded.insert(kernel);
}
/// Its first launch loads it, which may wait for the device, and so is none that a stream captures.
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

/// Does the nodes of a graph in an order that their dependences allow, as `settings.nodes` says.
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
