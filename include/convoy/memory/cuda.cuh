// CUDA runtime basics: errors as exceptions, and owning handles.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <cuda_runtime.h>

#include <convoy/core/error.hpp>

namespace convoy::device {

/// `bytes`, rounded up to what cudaMalloc gives to no other allocation. Smaller ones share a block, and a
/// handle by which another process maps memory is that of the whole block ("Interprocess Communication" in
/// CUDA's programming guide).
constexpr std::size_t whole_blocks(std::size_t bytes) {
  constexpr std::size_t block = std::size_t{2} << 20;
  return (bytes + block - 1) / block * block;
}

/// A call of CUDA or of one of its libraries failed, or there is no GPU.
struct DeviceError : Error {
  using Error::Error;
};

/// Throws DeviceError if `status` is an error; `what` completes "could not ...".
inline void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  fail<DeviceError>("cuda: could not ", what, ": ", cudaGetErrorString(status), " (",
                    cudaGetErrorName(status), ")");
}

/// Number of GPUs that this process sees; 0 if there is no driver.
inline int count() {
  int found = 0;
  if (cudaGetDeviceCount(&found) == cudaSuccess) return found;
  cudaGetLastError();  // clears the error, which the next launch would report
  return 0;
}

/// For a program whose ranks are threads that may share a GPU; to be called before its first CUDA call. Gives
/// each stream a hardware queue of its own, and loads kernels before one waits for another. Environment
/// variables that are already set take precedence.
inline void let_ranks_share_gpus() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

/// Makes GPU `ordinal` the calling thread's current device. Throws DeviceError if there is no such GPU.
inline void use(int ordinal) {
  int found = 0;
  cudaError_t status = cudaGetDeviceCount(&found);
  if (status == cudaSuccess && found == 0) status = cudaErrorNoDevice;
  if (status != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the next launch would report
    fail<DeviceError>("cuda: no GPU was found (", cudaGetErrorString(status),
                      "); the program needs an NVIDIA GPU and its driver, or an Exec of the host such as "
                      "exec::Host");
  }
  if (ordinal < 0 || ordinal >= found)
    fail<DeviceError>("cuda: there is no GPU ", ordinal, "; this process sees ", found);
  check(cudaSetDevice(ordinal), "choose a GPU");
}

/// Makes GPU `ordinal` the calling thread's current device, if another one is. By default that is the first
/// GPU, on which any CUDA call would create a context.
inline void enter(int ordinal) {
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current != ordinal)
    check(cudaSetDevice(ordinal), "choose a GPU");
}

/// Owning wrapper of a runtime handle, which `end` destroys. Move only.
template <class T, cudaError_t (*end)(T)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, T{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != T{}) end(handle_);
  }
  T get() const { return handle_; }

 private:
  T handle_{};
};

using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

/// A stream that does not synchronize with the legacy default stream.
inline Stream make_stream() {
  cudaStream_t made{};
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "make a stream");
  return Stream(made);
}

/// A stream of the highest priority: its kernels begin as soon as blocks of other kernels end, not after all
/// of them.
inline Stream make_urgent_stream() {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for priorities of streams");
  cudaStream_t made{};
  check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest), "make a stream");
  return Stream(made);
}

/// An event for ordering only, without timing.
inline Event make_event() {
  cudaEvent_t made{};
  check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "make an event");
  return Event(made);
}

}  // namespace convoy::device
