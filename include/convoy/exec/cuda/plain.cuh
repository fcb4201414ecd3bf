// Plain layout: a batch of a value row after row in canonical order, f32 whatever values are: what leaves a
// model, and what users' functions see.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/image.cuh>
#include <convoy/exec/cuda/program.cuh>

namespace convoy::exec::cuda {

/// A value as images; one that is no image has its elements as channels of a single position.
inline Images images_of(const Value& v) {
  const int channels = v.is_image() ? v.shape[0] : static_cast<int>(v.shape.size());
  return {v.rows, channels, v.is_image() ? v.channels : channels, v.positions()};
}

/// Whether a value stands in memory in canonical order.
inline bool is_canonical(const Value& v) {
  return !v.is_image() || (v.positions() == 1 && v.channels == v.shape[0]);
}

/// Whether a value stands in memory in plain layout already; labels do, which are i32.
inline bool is_plain(const Value& v) {
  return v.element == DType::i32 || (v.element == DType::f32 && is_canonical(v));
}
/// Of a value in plain layout.
inline std::size_t plain_bytes(const Value& v) {
  return static_cast<std::size_t>(v.rows) * static_cast<std::size_t>(v.shape.size()) * sizeof(float);
}

}  // namespace convoy::exec::cuda
