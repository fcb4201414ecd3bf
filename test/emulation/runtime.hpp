// The CUDA runtime without a device: definitions of its functions, which the linker takes instead of
// libcudart. One source of a test program includes this file. Calls that a device would refuse fail with the
// same error; functions that are not defined here are missing at link time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "counts.hpp"
#include "device_memory.hpp"
#include "enqueued.hpp"
#include "held.hpp"
#include "queue.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace emulation {

inline thread_local cudaError_t last_error = cudaSuccess;

/// Remembers the error of a call for cudaGetLastError.
inline cudaError_t returns(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// Runs a call of the runtime; without devices, every call fails.
template <class F>
cudaError_t call(F&& f) {
  if (settings.devices == 0) return returns(cudaErrorInsufficientDriver);
  return returns(f());
}

/// Host memory that copies may use while a stream captures.
struct Pinned {
  static Pinned& of_process() {
    static Pinned pinned;
    return pinned;
  }
  std::mutex mutex;
  struct Piece {
    std::size_t bytes;
    bool allocated;
  };
  std::map<std::byte*, Piece> pieces;

  bool holds(const void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    auto next = pieces.upper_bound(static_cast<std::byte*>(const_cast<void*>(p)));
    if (next == pieces.begin()) return false;
    const auto& [begin, piece] = *--next;
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(p) - begin);
    return offset <= piece.bytes && bytes <= piece.bytes - offset;
  }
};

/// Whether a copy has the right kind and stays within allocated memory.
inline bool may_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  DeviceMemory& memory = DeviceMemory::of_process();
  const bool to_device = memory.is_device(to), from_device = memory.is_device(from);
  if (kind != cudaMemcpyDefault &&
      (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
       from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
    return false;
  return (!to_device || memory.holds(to, bytes)) && (!from_device || memory.holds(from, bytes)) &&
         to != nullptr && from != nullptr;
}

/// Called when a graph is launched whose copies or fills refer to freed memory.
[[noreturn]] inline void lost_memory(const char* what) {
  throw std::logic_error(std::string("a graph was launched whose ") + what +
                         " lies outside of what is allocated now");
}

/// The queue of a stream; null if there is none.
inline std::shared_ptr<Queue> queue_of(cudaStream_t handle) {
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  const cudaStream_t stream = state.stream(handle);
  return stream == nullptr ? nullptr : stream->queue;
}

inline cudaError_t copy_on(cudaStream_t stream, void* to, const void* from, std::size_t bytes,
                           cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  if (!may_copy(to, from, bytes, kind)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDeviceToDevice) Enqueued::note("copy");
  const auto pageable = [bytes](const void* p) {
    return !DeviceMemory::of_process().is_device(p) && !Pinned::of_process().holds(p, bytes);
  };
  const bool is_pageable = pageable(to) || pageable(from);
  Counts::count(is_pageable ? Called::pageable_copy : Called::copy);
  if (is_pageable && is_capturing(stream)) return cannot_be_captured(stream);
  // Host memory is read when the stream reaches the copy, even pageable memory: a GPU with direct access to
  // it need not stage it during the call.
  const auto copy = [=] {
    if (!may_copy(to, from, bytes, kind)) lost_memory("copy");
    std::memmove(to, from, bytes);
  };
  if (const cudaError_t error = run_on(stream, copy)) return error;
  if (pageable(to)) {  // such a copy is complete when the call returns
    const auto queue = queue_of(stream);
    queue->run_until(queue->added());
  }
  return cudaSuccess;
}

inline cudaError_t fill_on(cudaStream_t stream, void* to, int value, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  Counts::count(Called::fill);
  if (!DeviceMemory::of_process().holds(to, bytes)) return cudaErrorInvalidValue;
  Enqueued::note("fill");
  return run_on(stream, [=] {
    if (!DeviceMemory::of_process().holds(to, bytes)) lost_memory("fill");
    std::memset(to, value, bytes);
  });
}

/// Maximum bytes of dynamic shared memory of a kernel, for kernels that asked for more than 48 KiB.
inline std::map<const void*, int>& most_shared() {
  static std::map<const void*, int> bytes;
  return bytes;
}

/// Whether a device would start a kernel with this configuration.
inline cudaError_t may_start(const void* kernel, dim3 grid, dim3 block, std::size_t shared) {
  constexpr std::size_t plain = 48 << 10;
  if (settings.devices == 0) return cudaErrorInsufficientDriver;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0 ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || block.x > 1024 || block.y > 1024 ||
      block.z > 64 || std::size_t{block.x} * block.y * block.z > 1024)
    return cudaErrorInvalidConfiguration;
  State& state = State::of_process();
  const std::lock_guard lock(state.mutex);
  const auto found = most_shared().find(kernel);
  if (shared > std::max(plain, found == most_shared().end() ? 0 : static_cast<std::size_t>(found->second)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
inline const ErrorText& text_of(cudaError_t error) {
#define EMULATION_ERROR(name, text) \
  { name, #name, text }
  static const ErrorText texts[] = {
      EMULATION_ERROR(cudaSuccess, "no error"),
      EMULATION_ERROR(cudaErrorInvalidValue, "invalid argument"),
      EMULATION_ERROR(cudaErrorMemoryAllocation, "out of memory"),
      EMULATION_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
      EMULATION_ERROR(cudaErrorInsufficientDriver,
                      "CUDA driver version is insufficient for CUDA runtime version"),
      EMULATION_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
      EMULATION_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
      EMULATION_ERROR(cudaErrorNotReady, "device not ready"),
      EMULATION_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                      "part or all of the requested memory range is already mapped"),
      EMULATION_ERROR(cudaErrorHostMemoryNotRegistered,
                      "pointer does not correspond to a registered memory region"),
      EMULATION_ERROR(cudaErrorNotSupported, "operation not supported"),
      EMULATION_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
      EMULATION_ERROR(cudaErrorStreamCaptureInvalidated,
                      "operation failed due to a previous error during capture"),
      EMULATION_ERROR(cudaErrorStreamCaptureMerge,
                      "operation would result in a merge of separate capture sequences"),
      EMULATION_ERROR(cudaErrorStreamCaptureUnmatched,
                      "capture was not ended in the same stream as it began"),
      EMULATION_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
      EMULATION_ERROR(cudaErrorStreamCaptureIsolation,
                      "dependency created on uncaptured work in another stream"),
      EMULATION_ERROR(cudaErrorStreamCaptureImplicit,
                      "operation would make the legacy stream depend on a capturing blocking stream"),
      EMULATION_ERROR(cudaErrorCapturedEvent,
                      "operation not permitted on an event last recorded in a capturing stream"),
      EMULATION_ERROR(cudaErrorStreamCaptureWrongThread,
                      "attempt to terminate a thread-local capture sequence from another thread"),
  };
#undef EMULATION_ERROR
  static const ErrorText unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const ErrorText& t : texts)
    if (t.error == error) return t;
  return unknown;
}

/// Locks the runtime's state for one call.
template <class F>
cudaError_t call_with_state(F&& f) {
  return call([&] {
    State& state = State::of_process();
    const std::lock_guard lock(state.mutex);
    return f(state);
  });
}

inline cudaError_t record(cudaEvent_t event, cudaStream_t handle, bool external) {
  Counts::count(Called::record);
  const auto at = std::make_shared<std::chrono::steady_clock::time_point>();
  bool captured = false;
  const cudaError_t found = call_with_state([&](State& state) {
    const cudaStream_t stream = state.stream(handle);
    if (stream == nullptr || !state.events.count(event)) return cudaErrorInvalidResourceHandle;
    if (event->device != (stream == &state.legacy ? current_device : stream->device))
      return cudaErrorInvalidResourceHandle;
    captured = stream->capture != nullptr;
    if (!captured) return cudaSuccess;
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!external) {
      event->capture = stream->capture;
      event->tails = stream->tails;
    }
    return cudaSuccess;
  });
  if (found != cudaSuccess || (captured && !external)) return found;
  const auto pass = [at] { *at = std::chrono::steady_clock::now(); };
  if (captured)
    return call([&] {
      return run_on(handle, [event, at, pass] {
        pass();
        State& state = State::of_process();
        const std::lock_guard lock(state.mutex);
        if (state.events.count(event)) event->mark = {std::make_shared<Queue>(), 0, at};
      });
    });
  return call([&] {
    Mark mark;
    if (const cudaError_t error = run_on(handle, pass, &mark)) return error;
    mark.at = at;
    const std::lock_guard lock(State::of_process().mutex);
    event->capture = nullptr;
    event->mark = mark;
    return cudaSuccess;
  });
}

/// A query or a wait by the host. A wait runs the work before the mark; a query runs one piece of it.
inline cudaError_t look_at(const Mark& mark, bool wait) {
  if (wait) Counts::count(Called::host_wait);
  if (mark.queue == nullptr) return cudaSuccess;
  if (wait)
    mark.pass();
  else if (!mark.passed())
    mark.queue->step();
  return mark.passed() ? cudaSuccess : cudaErrorNotReady;
}
inline cudaError_t look_at(cudaEvent_t event, bool wait) {
  Mark mark;
  const cudaError_t refused = call_with_state([&](State& state) {
    if (!state.events.count(event)) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) {
      event->capture->invalid = true;
      return cudaErrorCapturedEvent;
    }
    mark = event->mark;
    return unsafe_call();
  });
  return refused != cudaSuccess ? refused : look_at(mark, wait);
}
inline cudaError_t look_at(cudaStream_t handle, bool wait) {
  Mark mark;
  bool legacy = false;
  const cudaError_t refused = call_with_state([&](State& state) {
    const cudaStream_t stream = state.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cannot_be_captured(handle);
    legacy = stream == &state.legacy;
    if (legacy)
      if (const cudaError_t error = legacy_call()) return error;
    mark = {stream->queue, stream->queue->added(), nullptr};
    return unsafe_call();
  });
  if (refused != cudaSuccess) return refused;
  if (legacy) catch_up(false);
  return look_at(mark, wait);
}

}  // namespace emulation

#ifndef EMULATION_STAGES
extern "C" {

// ---- Errors and devices

const char* cudaGetErrorString(cudaError_t error) { return emulation::text_of(error).text; }
const char* cudaGetErrorName(cudaError_t error) { return emulation::text_of(error).name; }
cudaError_t cudaGetLastError() { return std::exchange(emulation::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return emulation::last_error; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return emulation::call([&] {
    *count = emulation::settings.devices;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* device) {
  return emulation::call([&] {
    *device = emulation::current_device;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return emulation::call([&] {
    if (device < 0 || device >= emulation::settings.devices) return cudaErrorInvalidDevice;
    emulation::current_device = device;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  const cudaError_t refused = emulation::call_with_state([](emulation::State& state) {
    for (const auto& capture : state.captures) capture->invalid = true;
    return state.captures.empty() ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
  });
  if (refused == cudaSuccess) emulation::catch_up(true);
  return refused;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = emulation::settings.devices == 0 ? 0 : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return emulation::call([&] {
    if (device < 0 || device >= emulation::settings.devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "emulated");
    properties->uuid.bytes[0] = static_cast<char>(device + 1);
    properties->totalGlobalMem = emulation::settings.bytes;
    properties->major = 9;
    properties->multiProcessorCount = emulation::settings.processors;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = 232448;
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  return emulation::call([&] {
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = properties.major;
        break;
      case cudaDevAttrComputeCapabilityMinor:
        *value = properties.minor;
        break;
      case cudaDevAttrMultiProcessorCount:
        *value = properties.multiProcessorCount;
        break;
      case cudaDevAttrWarpSize:
        *value = properties.warpSize;
        break;
      case cudaDevAttrMaxThreadsPerBlock:
        *value = properties.maxThreadsPerBlock;
        break;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = properties.maxThreadsPerMultiProcessor;
        break;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(properties.sharedMemPerBlock);
        break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(properties.sharedMemPerBlockOptin);
        break;
      case cudaDevAttrL2CacheSize:
        *value = properties.l2CacheSize;
        break;
      default:
        *value = 0;
    }
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return emulation::call([&] {
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
  });
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return emulation::call_with_state([&](emulation::State&) {
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      if (value < 0 || value > 232448) return cudaErrorInvalidValue;
      emulation::most_shared()[kernel] = value;
    }
    return cudaSuccess;
  });
}

// ---- Memory

cudaError_t cudaMalloc(void** made, std::size_t bytes) {
  return emulation::call([&] {
    *made = nullptr;
    if (const cudaError_t refused = emulation::unsafe_call()) return refused;
    if (bytes == 0) return cudaSuccess;
    *made = emulation::DeviceMemory::of_process().allocate(bytes);
    return *made == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}
cudaError_t cudaFree(void* p) {
  return emulation::call([&] {
    if (const cudaError_t refused = emulation::unsafe_call()) return refused;
    if (p == nullptr) return cudaSuccess;
    emulation::catch_up(true);  // cudaFree waits for all work of the device
    auto& memory = emulation::DeviceMemory::of_process();
    const auto [begin, bytes] = memory.allocation(p);
    if (begin != p) return cudaErrorInvalidValue;
    emulation::Held::of_process().free(p, bytes, [&memory, p] { memory.release(p); });
    return cudaSuccess;
  });
}
cudaError_t cudaHostAlloc(void** made, std::size_t bytes, unsigned) {
  return emulation::call([&] {
    *made = nullptr;
    if (const cudaError_t refused = emulation::unsafe_call()) return refused;
    if (bytes == 0) return cudaSuccess;
    *made = ::operator new (bytes, std::align_val_t{256});
    std::memset(*made, 0xff, bytes);
    auto& pinned = emulation::Pinned::of_process();
    const std::lock_guard lock(pinned.mutex);
    pinned.pieces[static_cast<std::byte*>(*made)] = {bytes, true};
    return cudaSuccess;
  });
}
cudaError_t cudaMallocHost(void** made, std::size_t bytes) { return cudaHostAlloc(made, bytes, 0); }
cudaError_t cudaFreeHost(void* p) {
  return emulation::call([&] {
    if (const cudaError_t refused = emulation::unsafe_call()) return refused;
    if (p == nullptr) return cudaSuccess;
    emulation::catch_up(true);  // cudaFreeHost waits for all work of the device
    auto& pinned = emulation::Pinned::of_process();
    const std::lock_guard lock(pinned.mutex);
    const auto found = pinned.pieces.find(static_cast<std::byte*>(p));
    if (found == pinned.pieces.end() || !found->second.allocated) return cudaErrorInvalidValue;
    pinned.pieces.erase(found);
    ::operator delete (p, std::align_val_t{256});
    return cudaSuccess;
  });
}
cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned) {
  return emulation::call([&] {
    if (p == nullptr || bytes == 0) return cudaErrorInvalidValue;
    auto& pinned = emulation::Pinned::of_process();
    if (pinned.holds(p, 1)) return cudaErrorHostMemoryAlreadyRegistered;
    const std::lock_guard lock(pinned.mutex);
    pinned.pieces[static_cast<std::byte*>(p)] = {bytes, false};
    return cudaSuccess;
  });
}
cudaError_t cudaHostUnregister(void* p) {
  return emulation::call([&] {
    auto& pinned = emulation::Pinned::of_process();
    const std::lock_guard lock(pinned.mutex);
    const auto found = pinned.pieces.find(static_cast<std::byte*>(p));
    if (found == pinned.pieces.end() || found->second.allocated) return cudaErrorHostMemoryNotRegistered;
    pinned.pieces.erase(found);
    return cudaSuccess;
  });
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return emulation::call([&] {
    *total = emulation::settings.bytes;
    *free = *total - std::min(*total, emulation::bytes_in_use());
    return cudaSuccess;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return emulation::call([&] {
    *attributes = {};
    attributes->device = emulation::current_device;
    if (emulation::DeviceMemory::of_process().is_device(p)) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->devicePointer = const_cast<void*>(p);
    } else if (emulation::Pinned::of_process().holds(p, 1)) {
      attributes->type = cudaMemoryTypeHost;
      attributes->hostPointer = attributes->devicePointer = const_cast<void*>(p);
    } else {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->hostPointer = const_cast<void*>(p);
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return emulation::call([&] { return emulation::copy_on(stream, to, from, bytes, kind); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return emulation::call([&] {
    if (const cudaError_t refused = emulation::unsafe_call()) return refused;
    return emulation::copy_on(nullptr, to, from, bytes, kind);
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return emulation::call([&] { return emulation::fill_on(stream, to, value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return emulation::call([&] {
    if (const cudaError_t refused = emulation::unsafe_call()) return refused;
    return emulation::fill_on(nullptr, to, value, bytes);
  });
}

// ---- Streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int) {
  return emulation::call_with_state([&](emulation::State& state) {
    *made = new CUstream_st;
    (*made)->flags = flags;
    (*made)->device = emulation::current_device;
    state.streams.insert(*made);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
  return cudaStreamCreateWithPriority(made, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* made) { return cudaStreamCreateWithPriority(made, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const auto queue = emulation::queue_of(stream)) queue->run_until(queue->added());
  return emulation::call_with_state([&](emulation::State& state) {
    if (state.streams.erase(stream) == 0) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) {
      stream->capture->invalid = true;
      auto& streams = stream->capture->streams;
      streams.erase(std::find(streams.begin(), streams.end(), stream));
      if (stream->capture->origin == stream) {
        for (const cudaStream_t other : streams) other->capture = nullptr;
        state.captures.erase(stream->capture);
      }
    }
    delete stream;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return emulation::call([&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return emulation::look_at(stream, false); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return emulation::look_at(stream, true); }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return emulation::call([&] { return emulation::run_on(stream, [=] { function(data); }); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  emulation::Counts::count(emulation::Called::stream_wait);
  std::shared_ptr<emulation::Queue> queue;
  emulation::Mark mark;
  bool legacy = false;
  const cudaError_t result = emulation::call_with_state([&](emulation::State& state) {
    const cudaStream_t stream = state.stream(handle);
    if (stream == nullptr || !state.events.count(event)) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr && stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (event->capture == nullptr) {
      if (event->mark.queue == nullptr || (flags & cudaEventWaitExternal)) return cudaSuccess;
      if (stream->capture == nullptr) {
        queue = stream->queue;
        mark = event->mark;
        legacy = stream == &state.legacy;
        return cudaSuccess;
      }
      stream->capture->invalid = true;
      return cudaErrorStreamCaptureIsolation;
    }
    if (event->capture->ended) return cudaErrorCapturedEvent;
    if (event->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (stream == &state.legacy) {
      event->capture->invalid = true;
      return cudaErrorStreamCaptureImplicit;
    }
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->capture->streams.push_back(stream);
      stream->tails = event->tails;
    } else if (stream->capture == event->capture) {
      stream->tails.insert(event->tails.begin(), event->tails.end());
    } else {
      stream->capture->invalid = event->capture->invalid = true;
      return cudaErrorStreamCaptureMerge;
    }
    return cudaSuccess;
  });
  if (queue != nullptr && mark.queue != queue) {
    queue->add_wait(mark);
    if (legacy || !emulation::settings.late) queue->run_until(queue->added());
  }
  return result;
}

// ---- Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned flags) {
  return emulation::call_with_state([&](emulation::State& state) {
    *made = new CUevent_st;
    (*made)->flags = flags;
    (*made)->device = emulation::current_device;
    state.events.insert(*made);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return emulation::call_with_state([&](emulation::State& state) {
    if (state.events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return emulation::record(event, stream, false);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return emulation::record(event, stream, flags & cudaEventRecordExternal);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return emulation::look_at(event, false); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return emulation::look_at(event, true); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return emulation::call_with_state([&](emulation::State& state) {
    for (const cudaEvent_t event : {begin, end}) {
      if (!state.events.count(event) || event->mark.queue == nullptr ||
          (event->flags & cudaEventDisableTiming))
        return cudaErrorInvalidResourceHandle;
      if (event->capture != nullptr) return cudaErrorCapturedEvent;
      if (!event->mark.passed()) return cudaErrorNotReady;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(*end->mark.at - *begin->mark.at).count();
    return cudaSuccess;
  });
}

// ---- Capture and graphs

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return emulation::call([&] {
    std::swap(*mode, emulation::thread_mode);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return emulation::call_with_state([&](emulation::State& state) {
    const cudaStream_t stream = state.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream == &state.legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    auto capture = std::make_shared<emulation::Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream;
    capture->streams = {stream};
    stream->capture = capture;
    stream->tails = {};
    state.captures.insert(std::move(capture));
    return cudaSuccess;
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return emulation::call_with_state([&](emulation::State& state) {
    const cudaStream_t stream = state.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream == &state.legacy)
      if (const cudaError_t refused = emulation::legacy_call()) return refused;
    *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return emulation::call_with_state([&](emulation::State& state) {
    *graph = nullptr;
    const cudaStream_t stream = state.stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture == nullptr) return cudaErrorIllegalState;
    const auto capture = stream->capture;
    if (capture->origin != stream) {
      capture->invalid = true;
      return cudaErrorStreamCaptureUnmatched;
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
      return cudaErrorStreamCaptureWrongThread;
    emulation::Tails last;  // nodes on which no other depends
    for (std::size_t n = 0; n < capture->nodes.size(); ++n) {
      last.insert(n);
      for (const std::size_t before : capture->nodes[n].after) last.erase(before);
    }
    const bool joined = std::includes(stream->tails.begin(), stream->tails.end(), last.begin(), last.end());
    for (const cudaStream_t member : capture->streams) member->capture = nullptr;
    capture->ended = true;
    state.captures.erase(capture);
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{std::make_shared<const std::vector<emulation::Node>>(std::move(capture->nodes))};
    return cudaSuccess;
  });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return emulation::call([&] {
    if (nodes != nullptr) return cudaErrorNotSupported;
    *count = graph->nodes->size();
    return cudaSuccess;
  });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  return emulation::call([&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *made = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(made, graph, flags);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t stream) {
  return emulation::call(
      [&] { return emulation::is_capturing(stream) ? emulation::cannot_be_captured(stream) : cudaSuccess; });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return emulation::call([&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    emulation::Counts::count(emulation::Called::graph);
    return emulation::run_on(stream, [nodes = graph->nodes] { emulation::replay(*nodes); });
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return emulation::call([] { return cudaSuccess; });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return emulation::call([] { return cudaSuccess; });
}

}  // extern "C"
#endif
