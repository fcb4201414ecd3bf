// Precision: the number formats that exec::Cuda computes in.
#pragma once

#include <string_view>

#include <convoy/core/dtype.hpp>

namespace convoy {

/// Names a precision: values are f32, and tensor cores compute products, reading 10 bits of each significand
/// and adding in f32.
struct tf32 {};

namespace exec::cuda {

/// What a precision P means: the element type of values, and whether f32 products may lose bits. Parameters,
/// their gradients and all sums are f32 for every P.
template <class P>
struct Precision;

template <>
struct Precision<f32> {
  using Element = float;
  static constexpr bool reduced_products = false;
  static constexpr std::string_view name = "f32";
};
template <>
struct Precision<tf32> {
  using Element = float;
  static constexpr bool reduced_products = true;
  static constexpr std::string_view name = "tf32";
};
template <>
struct Precision<bf16> {
  using Element = bf16;
  static constexpr bool reduced_products = true;
  static constexpr std::string_view name = "bf16";
};
template <>
struct Precision<f16> {
  using Element = f16;
  static constexpr bool reduced_products = true;
  static constexpr std::string_view name = "f16";
};

template <class P>
concept Computable = requires {
  typename Precision<P>::Element;
};

}  // namespace exec::cuda
}  // namespace convoy
