// Plain layout: a batch of a value, row after row in canonical order, in f32 whatever the value's type. Model
// outputs and users' functions use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/core/error.hpp>
#include <convoy/core/name.hpp>
#include <convoy/exec/cuda/kernel/image.cuh>
#include <convoy/exec/cuda/program.cuh>
#include <convoy/graph/custom.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::exec::cuda {

/// Describes a value as images; the elements of a value that is no image become channels of a single
/// position.
inline Images images_of(const Value& v) {
  const int channels = v.is_image() ? v.shape[0] : static_cast<int>(v.shape.size());
  return {v.rows, channels, v.is_image() ? v.channels : channels, v.positions()};
}

/// Whether a value is stored in canonical order.
inline bool is_canonical(const Value& v) {
  return !v.is_image() || (v.positions() == 1 && v.channels == v.shape[0]);
}

/// Whether a value is already stored in plain layout; i32 labels are.
inline bool is_plain(const Value& v) {
  return v.element == DType::i32 || (v.element == DType::f32 && is_canonical(v));
}
/// Bytes of a value in plain layout.
inline std::size_t plain_bytes(const Value& v) {
  return static_cast<std::size_t>(v.rows) * static_cast<std::size_t>(v.shape.size()) * sizeof(float);
}

/// Calls a user's function for a device. A launch by <<<>>> returns no status, so its failure must be asked
/// for. An error that others left behind is not the function's and is cleared first.
inline void enqueue_users(const Program& p, graph::StreamCall call, const graph::Argument* from,
                          const graph::Argument* to, const Name& name) {
  cudaGetLastError();
  call(from, to, p.rows(), p.stream());
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
    device::check(status, concat("start the kernels of ", name));
}

}  // namespace convoy::exec::cuda
