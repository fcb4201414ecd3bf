// Elementwise operations: activations and their gradients, additions and products over whole tensors. Tensors
// of one shape and layout have their elements in the same order, so no kernel here needs to know the layout.
#pragma once

#include <cstdint>
#include <type_traits>

#include <convoy/exec/cuda/kernel/access.cuh>
#include <convoy/graph/op/gelu.hpp>

namespace convoy::exec::cuda {

/// x below zero becomes zero; NaN stays, so that a diverged run is seen.
struct Relu {
  static constexpr bool of_output = true;
  static __device__ float value(float x) { return x < 0.0f ? 0.0f : x; }
  static __device__ float gradient(float g, float y) { return y > 0.0f ? g : 0.0f; }
};

/// x times the probability that a standard normal variable is below x.
template <graph::GeluForm form>
struct Gelu {
  static constexpr bool of_output = false;
  static constexpr float twice_root = 1.59576912160573071f, cubic = 0.044715f;
  static __device__ float chance(float x) {
    if constexpr (form == graph::GeluForm::erf)
      return 0.5f * (1.0f + erff(x * 0.707106781186547524f));
    else  // (1 + tanh(u)) / 2
      return 1.0f / (1.0f + expf(-x * (x * x * cubic + 1.0f) * twice_root));
  }
  static __device__ float value(float x) { return x * chance(x); }
  static __device__ float gradient(float g, float x) {
    const float below = chance(x);
    float density;
    if constexpr (form == graph::GeluForm::erf)
      density = expf(-0.5f * x * x) * 0.398942280401432678f;
    else
      density = below * (1.0f - below) * twice_root * (x * x * (3.0f * cubic) + 1.0f);
    return g * (below + x * density);
  }
};

/// 1 / (1 + e^-x).
struct Sigmoid {
  static constexpr bool of_output = true;
  static __device__ float value(float x) { return 1.0f / (1.0f + expf(-x)); }
  static __device__ float gradient(float g, float y) { return g * y * (1.0f - y); }
};

/// The hyperbolic tangent.
struct Tanh {
  static constexpr bool of_output = true;
  static __device__ float value(float x) { return tanhf(x); }
  static __device__ float gradient(float g, float y) { return g * (1.0f - y * y); }
};

template <class F, class T>
__global__ void apply_elements(std::int64_t count, const T* x, T* y) {
  for_each_vector<T>(count, [&](auto width, std::int64_t at) {
    float v[width];
    load(v, x + at);
    for (int k = 0; k < width; ++k) v[k] = F::value(v[k]);
    store(y + at, v);
  });
}

/// y = F(x); `y` may be `x`.
template <class F, class T>
void apply(cudaStream_t stream, std::int64_t count, const T* x, T* y) {
  device::launch({.stream = stream, .grid = device::blocks_for(vectors_of<T>(count))}, apply_elements<F, T>,
                 count, x, y);
}

// F = void: the identity, which reads only the gradient.
template <class F, class T>
__global__ void slope_elements(std::int64_t count, const T* dy, const T* second, const T* at_values, T* dx,
                               bool accumulate) {
  for_each_vector<T>(count, [&](auto width, std::int64_t at) {
    float g[width];
    load_gradient(g, dy, second, at);
    if constexpr (!std::is_void_v<F>) {
      float v[width];
      load(v, at_values + at);
      for (int k = 0; k < width; ++k) g[k] = F::gradient(g[k], v[k]);
    }
    store(dx + at, g, accumulate);
  });
}

/// dx = g or dx += g with g = (dy + second) times the derivative of F; `at` is the output of F if
/// `F::of_output`, else its input. `second` may be null; `dx` may be `dy`.
template <class F, class T>
void slope(cudaStream_t stream, std::int64_t count, const T* dy, const T* second, const T* at, T* dx,
           bool accumulate) {
  device::launch({.stream = stream, .grid = device::blocks_for(vectors_of<T>(count))}, slope_elements<F, T>,
                 count, dy, second, at, dx, accumulate);
}

/// Passes a gradient to one input: dx = g or dx += g with g = dy + second, but 0 where `mask`, the value of a
/// ReLU, is not positive. `second` and `mask` may be null; `dx` may be `dy`.
template <class T>
void pass(cudaStream_t stream, std::int64_t count, const T* dy, const T* second, const T* mask, T* dx,
          bool accumulate) {
  if (mask != nullptr)
    slope<Relu>(stream, count, dy, second, mask, dx, accumulate);
  else
    slope<void>(stream, count, dy, second, mask, dx, accumulate);
}

template <class T>
__global__ void add_elements(std::int64_t count, const T* a, const T* b, T* y, bool relu) {
  for_each_vector<T>(count, [&](auto width, std::int64_t at) {
    float v[width], other[width];
    load(v, a + at);
    load(other, b + at);
    for (int k = 0; k < width; ++k) v[k] += other[k];
    if (relu)
      for (int k = 0; k < width; ++k) v[k] = Relu::value(v[k]);
    store(y + at, v);
  });
}

/// y = a + b, rectified if `relu`; `y` may be `a` or `b`.
template <class T>
void add(cudaStream_t stream, std::int64_t count, const T* a, const T* b, T* y, bool relu) {
  device::launch({.stream = stream, .grid = device::blocks_for(vectors_of<T>(count))}, add_elements<T>, count,
                 a, b, y, relu);
}

template <class T>
__global__ void scale_elements(std::int64_t count, float factor, const T* x, T* y) {
  for_each_vector<T>(count, [&](auto width, std::int64_t at) {
    float v[width];
    load(v, x + at);
    for (int k = 0; k < width; ++k) v[k] *= factor;
    store(y + at, v);
  });
}

/// y = factor * x; `y` may be `x`.
template <class T>
void scale(cudaStream_t stream, std::int64_t count, float factor, const T* x, T* y) {
  device::launch({.stream = stream, .grid = device::blocks_for(vectors_of<T>(count))}, scale_elements<T>,
                 count, factor, x, y);
}

template <class T>
__global__ void multiply_elements(std::int64_t count, const T* a, const T* second, const T* b, T* y,
                                  bool accumulate) {
  for_each_vector<T>(count, [&](auto width, std::int64_t at) {
    float v[width], other[width];
    load_gradient(v, a, second, at);
    load(other, b + at);
    for (int k = 0; k < width; ++k) v[k] *= other[k];
    store(y + at, v, accumulate);
  });
}

/// dx = g or dx += g with g = (dy + second) * other, the gradient of x in y = x * other. `second` may be
/// null; `dx` may be `dy`.
template <class T>
void multiply_backward(cudaStream_t stream, std::int64_t count, const T* dy, const T* second, const T* other,
                       T* dx, bool accumulate) {
  device::launch({.stream = stream, .grid = device::blocks_for(vectors_of<T>(count))}, multiply_elements<T>,
                 count, dy, second, other, dx, accumulate);
}

/// y = a * b; `y` may be `a` or `b`.
template <class T>
void multiply(cudaStream_t stream, std::int64_t count, const T* a, const T* b, T* y) {
  multiply_backward<T>(stream, count, a, nullptr, b, y, false);
}

}  // namespace convoy::exec::cuda
