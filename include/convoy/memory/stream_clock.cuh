// StreamClock: when streams of a GPU reach points of their work, by the host's clock.
#pragma once

#include <chrono>
#include <utility>

#include <cuda_runtime.h>

#include <convoy/core/clock.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::device {

/// Reads timestamps, which are events of the streams of one GPU. It sets its zero at the first timestamp, by
/// waiting for that stream once.
class StreamClock {
 public:
  /// A timestamp of the moment at which all work so far of `stream` is done. The stream must not be captured.
  Event timestamp(cudaStream_t stream) {
    if (zero_.get() == nullptr) {
      zero_ = record(stream);
      check(cudaEventSynchronize(zero_.get()), "start a clock");
      at_zero_ = Clock::now();
    }
    return record(stream);
  }

  /// The moment by the host's clock. Waits until the stream has passed it.
  Clock::time_point time_of(Event timestamp) {
    check(cudaEventSynchronize(timestamp.get()), "wait for work that is timed");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, zero_.get(), timestamp.get()), "time work");
    const std::chrono::duration<double, std::milli> since(milliseconds);
    const auto at = at_zero_ + std::chrono::duration_cast<Clock::duration>(since);
    if (since > std::chrono::seconds(1)) {  // CUDA gives times as floats, which are exact only near zero
      zero_ = std::move(timestamp);
      at_zero_ = at;
    }
    return at;
  }

 private:
  static Event record(cudaStream_t stream) {
    cudaEvent_t made{};
    check(cudaEventCreate(&made), "make an event");
    Event event(made);
    check(cudaEventRecord(made, stream), "record an event");
    return event;
  }

  Event zero_;
  Clock::time_point at_zero_;
};

}  // namespace convoy::device
