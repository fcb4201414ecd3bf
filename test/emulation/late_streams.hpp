// Streams that run late: each is a thread that falls behind now and then, so that a missing wait for a stream
// shows, above all under the thread sanitizer. They replace the emulated runtime in tests of stream ordering;
// only streams, events and plain memory exist here.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <cuda_runtime.h>
#include <malloc.h>

#include "held.hpp"
#include <convoy/core/philox.hpp>

namespace emulation {

/// A position in a stream.
class Mark {
 public:
  bool passed() const { return passed_; }
  /// When it was passed.
  std::chrono::steady_clock::time_point at() const { return at_; }
  void pass() {
    at_ = std::chrono::steady_clock::now();
    passed_ = true;
    passed_.notify_all();
  }
  void wait() const { passed_.wait(false); }

 private:
  std::chrono::steady_clock::time_point at_;
  std::atomic<bool> passed_ = false;
};

}  // namespace emulation

struct CUstream_st {
  CUstream_st() : delays(7, number()), thread([this] { run(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      quit = true;
    }
    more.notify_one();
    thread.join();
  }
  void later(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
    }
    more.notify_one();
  }

 private:
  static std::uint64_t number() {
    static std::atomic<std::uint64_t> next = 0;
    return next++;
  }
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      more.wait(lock, [&] { return quit || !queue.empty(); });
      if (queue.empty()) return;
      const auto work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      if (delays.below(8) == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays.below(300)));
      work();
      lock.lock();
    }
  }

  convoy::Philox delays;
  std::mutex mutex;
  std::condition_variable more;
  std::deque<std::function<void()>> queue;
  bool quit = false;
  std::thread thread;
};

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<emulation::Mark> mark;  // of the last record
  std::shared_ptr<emulation::Mark> now() {
    const std::lock_guard lock(mutex);
    return mark;
  }
};

namespace emulation {

inline cudaError_t run_on(cudaStream_t stream, std::function<void()> work) {
  stream->later(std::move(work));
  return cudaSuccess;
}

}  // namespace emulation

extern "C" {

const char* cudaGetErrorString(cudaError_t) { return "an error"; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
  std::strncpy(text, "0000:00:00.0", static_cast<std::size_t>(length));
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto mark = std::make_shared<emulation::Mark>();
  {
    const std::lock_guard lock(event->mutex);
    event->mark = mark;
  }
  stream->later([mark] { mark->pass(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto mark = event->now();
  return mark == nullptr || mark->passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto mark = event->now()) mark->wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const auto from = begin->now(), to = end->now();
  if (from == nullptr || to == nullptr) return cudaErrorInvalidResourceHandle;
  if (!from->passed() || !to->passed()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->at() - from->at()).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto mark = event->now()) stream->later([mark] { mark->wait(); });
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto mark = std::make_shared<emulation::Mark>();
  stream->later([mark] { mark->pass(); });
  mark->wait();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* p) {
  emulation::Held::of_process().free(p, malloc_usable_size(p), [p] { std::free(p); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  stream->later([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

}  // extern "C"
