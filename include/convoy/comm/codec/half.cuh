// Half on a GPU.
#pragma once

#include <cstdint>

#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/codec/kernels.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::comm::codec {

namespace detail {

/// Encodes one element, or the elements of one vector.
template <class E, int width>
__device__ void encode_halves_at(E* to, const float* values, const float* error, float* left,
                                 std::int64_t at) {
  using Floats = device::Lanes<float, width>;
  Floats sum = *reinterpret_cast<const Floats*>(values + at);
  const Floats before = *reinterpret_cast<const Floats*>(error + at);
  device::Lanes<E, width> half;
  for (int k = 0; k < width; ++k) {
    const float value = sum.lane[k] + before.lane[k];
    half.lane[k] = device::narrow<E>(value);
    const float rest = value - device::widen(half.lane[k]);
    sum.lane[k] = rest - rest == 0 ? rest : 0.0f;  // a non-finite value is sent, not kept
  }
  *reinterpret_cast<device::Lanes<E, width>*>(to + at) = half;
  *reinterpret_cast<Floats*>(left + at) = sum;
}

template <class E, int width>
__device__ void decode_halves_at(float* to, const E* from, std::int64_t at) {
  const auto half = *reinterpret_cast<const device::Lanes<E, width>*>(from + at);
  device::Lanes<float, width> values;
  for (int k = 0; k < width; ++k) values.lane[k] = device::widen(half.lane[k]);
  *reinterpret_cast<device::Lanes<float, width>*>(to + at) = values;
}

/// `width` is 4 if every array is aligned to 16 bytes, else 1.
template <class E, int width>
__global__ void encode_halves(E* to, const float* values, const float* error, float* left,
                              std::int64_t count) {
  const std::int64_t vectors = count / width, step = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t v = first; v < vectors; v += step)
    encode_halves_at<E, width>(to, values, error, left, v * width);
  if (const std::int64_t rest = vectors * width + first; rest < count)
    encode_halves_at<E, 1>(to, values, error, left, rest);
}

template <class E, int width>
__global__ void decode_halves(float* to, const E* from, std::int64_t count) {
  const std::int64_t vectors = count / width, step = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t v = first; v < vectors; v += step) decode_halves_at<E, width>(to, from, v * width);
  if (const std::int64_t rest = vectors * width + first; rest < count) decode_halves_at<E, 1>(to, from, rest);
}

}  // namespace detail

template <class E>
struct Kernels<Half<E>> {
  static void encode(const Half<E>&, cudaStream_t stream, E* to, const float* values, const float* error,
                     float* left, std::int64_t count) {
    if (count <= 0) return;
    const bool whole = device::aligned({to, values, error, left});
    device::launch({stream, device::blocks_for(whole ? count / 4 : count)},
                   whole ? detail::encode_halves<E, 4> : detail::encode_halves<E, 1>, to, values, error, left,
                   count);
  }
  static void decode(const Half<E>&, cudaStream_t stream, float* to, const E* from, std::int64_t count) {
    if (count <= 0) return;
    const bool whole = device::aligned({to, from});
    device::launch({stream, device::blocks_for(whole ? count / 4 : count)},
                   whole ? detail::decode_halves<E, 4> : detail::decode_halves<E, 1>, to, from, count);
  }
};

}  // namespace convoy::comm::codec
