// Random contents for scratch memory on a GPU.
#pragma once

#include <array>
#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/memory/launch.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::device {

namespace detail {

template <class T>
__global__ void write_random(T* to, std::int64_t n) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x * 4;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
    const std::array<std::uint32_t, 4> words =
        philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0}, {0, 0});
    for (int lane = 0; lane < 4; ++lane)
      if (i + lane < n) to[i + lane] = narrow<T>(static_cast<float>(words[lane] >> 8) * 0x1p-23f - 1);
  }
}

}  // namespace detail

/// Fills memory of f32, bf16 or f16 with the same pseudo-random numbers in [-1, 1] in every run, and leaves
/// that of other types alone. A GPU computes on zeros at a higher clock than it can hold on real data, so
/// algorithms are timed on such numbers.
inline void fill_random(cudaStream_t stream, DType type, void* to, std::int64_t n) {
  const auto write = [&]<class T>(T* at) {
    launch({stream, blocks_for((n + 3) / 4)}, detail::write_random<T>, at, n);
  };
  if (type == DType::f32) write(static_cast<float*>(to));
  if (type == DType::bf16) write(static_cast<bf16*>(to));
  if (type == DType::f16) write(static_cast<f16*>(to));
}

}  // namespace convoy::device
