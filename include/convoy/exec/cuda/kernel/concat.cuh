// Concatenation: runs of elements are copied from one tensor into a part of another, or added to it. Tensors
// are always joined along the last axis in memory: the channels of an image in NHWC, the features of a row or
// of each position of a sequence.
#pragma once

#include <cstdint>

#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// `count` runs of `length` elements; strides are the distances between the beginnings of runs.
struct Runs {
  std::int64_t count = 0;
  int length = 0, from_stride = 0, to_stride = 0;
};

template <int V, class T>
__global__ void copy_runs_of(Runs runs, const T* from, const T* second, T* to, bool accumulate) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  for (std::int64_t run = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; run < runs.count;
       run += step)
    for (int k = static_cast<int>(threadIdx.x) * V; k < runs.length; k += static_cast<int>(blockDim.x) * V) {
      float v[V];
      load_gradient(v, from, second, run * runs.from_stride + k);
      store(to + run * runs.to_stride + k, v, accumulate);
    }
}

/// to = from + second or to += from + second, run by run. `second` may be null; `from`, `second` and `to`
/// point to their first runs. An input of a concatenation is copied as runs of its own length into the runs
/// of the value; its gradient is copied back with the strides exchanged.
template <class T>
void copy_runs(cudaStream_t stream, const Runs& runs, const T* from, const T* second, T* to,
               bool accumulate) {
  constexpr int width = device::lanes<T>;
  const auto begins_vectors = [](const T* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % (width * sizeof(T)) == 0;
  };
  const bool whole = runs.length % width == 0 && runs.from_stride % width == 0 &&
                     runs.to_stride % width == 0 && begins_vectors(from) && begins_vectors(second) &&
                     begins_vectors(to);
  device::launch(over_runs(stream, runs.count, whole ? runs.length / width : runs.length),
                 whole ? copy_runs_of<width, T> : copy_runs_of<1, T>, runs, from, second, to, accumulate);
}

}  // namespace convoy::exec::cuda
