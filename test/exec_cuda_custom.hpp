// The custom operations and losses of exec_compare.hpp and exec_models.hpp with device functions, and models
// around them for exec::Cuda.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "exec_compare.hpp"
#include "exec_models.hpp"
#include "exec_operations.hpp"
#include "exec_random_models.hpp"
#include <convoy/memory/launch.cuh>

namespace exec_cuda {

using namespace convoy;

/// Launches at least one thread for each of `count` items.
template <class... P>
void start(cudaStream_t stream, std::size_t count, void (*kernel)(P...), std::type_identity_t<P>... views) {
  constexpr unsigned threads = 64;
  device::launch(
      {.stream = stream, .grid = static_cast<unsigned>((count + threads - 1) / threads), .block = threads},
      kernel, views...);
}
/// The item of this thread.
template <class = void>
__device__ std::size_t own_item() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

template <class = void>
__global__ void swish(View<const float> x, View<float> y) {
  const std::size_t i = own_item();
  if (i < x.size()) y[i] = x[i] / (1.0f + expf(-x[i]));
}
template <class = void>
__global__ void swish_backward(View<const float> x, View<const float> y, View<const float> dy,
                               View<float> dx) {
  const std::size_t i = own_item();
  if (i >= x.size()) return;
  const float s = 1.0f / (1.0f + expf(-x[i]));
  dx[i] = dy[i] * (s + y[i] * (1.0f - s));
}
struct Swish : exec_compare::Swish {
  using exec_compare::Swish::backward;
  using exec_compare::Swish::forward;
  static void forward(cudaStream_t stream, View<const float> x, View<float> y) {
    start(stream, x.size(), swish<>, x, y);
  }
  static void backward(cudaStream_t stream, View<const float> x, View<const float> y, View<const float> dy,
                       View<float> dx) {
    start(stream, x.size(), swish_backward<>, x, y, dy, dx);
  }
};

template <class = void>
__global__ void product(View<const float> a, View<const float> b, View<float> z) {
  const std::size_t i = own_item();
  if (i < a.size()) z[i] = a[i] * b[i];
}
struct Product : exec_compare::Product {
  using exec_compare::Product::backward;
  using exec_compare::Product::forward;
  static void forward(cudaStream_t stream, View<const float> a, View<const float> b, View<float> z) {
    start(stream, a.size(), product<>, a, b, z);
  }
  static void backward(cudaStream_t stream, View<const float> a, View<const float> b, View<const float>,
                       View<const float> dz, View<float> da, View<float> db) {
    start(stream, a.size(), product<>, dz, b, da);
    start(stream, a.size(), product<>, dz, a, db);
  }
};

template <class = void>
__global__ void energy(View<const float> x, View<float> y) {
  const std::size_t r = own_item(), n = static_cast<std::size_t>(x.shape.size());
  if (r >= y.size()) return;
  float sum = 0;
  for (std::size_t k = 0; k < n; ++k) sum += x[r * n + k] * x[r * n + k];
  y[r] = sum / (2.0f * static_cast<float>(n));
}
template <class = void>
__global__ void energy_backward(View<const float> x, View<const float> dy, View<float> dx) {
  const std::size_t i = own_item(), n = static_cast<std::size_t>(x.shape.size());
  if (i < x.size()) dx[i] = dy[i / n] * x[i] / static_cast<float>(n);
}
struct Energy : exec_compare::Energy {
  using exec_compare::Energy::backward;
  using exec_compare::Energy::forward;
  static void forward(cudaStream_t stream, View<const float> x, View<float> y) {
    start(stream, y.size(), energy<>, x, y);
  }
  static void backward(cudaStream_t stream, View<const float> x, View<const float>, View<const float> dy,
                       View<float> dx) {
    start(stream, x.size(), energy_backward<>, x, dy, dx);
  }
};

template <class = void>
__global__ void squared_hinge(View<const float> x, View<const i32> label, View<float> y) {
  const std::size_t r = own_item(), n = static_cast<std::size_t>(x.shape.last());
  if (r >= label.size()) return;
  const auto right = static_cast<std::size_t>(label[r]);
  float sum = 0;
  for (std::size_t k = 0; k < n; ++k)
    if (const float margin = 1.0f + x[r * n + k] - x[r * n + right]; k != right && margin > 0)
      sum += margin * margin;
  y[r] = sum;
}
template <class = void>
__global__ void squared_hinge_backward(View<const float> x, View<const i32> label, View<const float> dy,
                                       View<float> dx) {
  const std::size_t r = own_item(), n = static_cast<std::size_t>(x.shape.last());
  if (r >= label.size()) return;
  const auto right = static_cast<std::size_t>(label[r]);
  float sum = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const float margin = 1.0f + x[r * n + k] - x[r * n + right];
    const float slope = k == right || margin <= 0 ? 0.0f : 2.0f * margin * dy[r];
    dx[r * n + k] = slope;
    sum += slope;
  }
  dx[r * n + right] = -sum;
}
struct SquaredHinge : exec_compare::SquaredHinge {
  using exec_compare::SquaredHinge::backward;
  using exec_compare::SquaredHinge::forward;
  static void forward(cudaStream_t stream, View<const float> x, View<const i32> label, View<float> y) {
    start(stream, label.size(), squared_hinge<>, x, label, y);
  }
  static void backward(cudaStream_t stream, View<const float> x, View<const i32> label, View<const float>,
                       View<const float> dy, View<float> dx) {
    start(stream, label.size(), squared_hinge_backward<>, x, label, dy, dx);
  }
};

template <class = void>
__global__ void affine(View<const float> x, View<const float> scale, View<const float> shift, View<float> y) {
  const std::size_t i = own_item(), n = scale.size();
  if (i < x.size()) y[i] = x[i] * scale[i % n] + shift[i % n];
}
template <class = void>
__global__ void affine_backward(View<const float> x, View<const float> scale, View<const float> dy,
                                View<float> dx, View<float> dscale, View<float> dshift) {
  const std::size_t i = own_item(), n = scale.size();
  if (i < x.size()) dx[i] = dy[i] * scale[i % n];
  if (i >= n) return;
  float scales = 0, shifts = 0;
  for (std::size_t at = i; at < x.size(); at += n) {
    scales += dy[at] * x[at];
    shifts += dy[at];
  }
  dscale[i] = scales;
  dshift[i] = shifts;
}
struct Affine : exec_models::Affine {
  using exec_models::Affine::backward;
  using exec_models::Affine::forward;
  static void forward(cudaStream_t stream, View<const float> x, View<const float> scale,
                      View<const float> shift, View<float> y) {
    start(stream, x.size(), affine<>, x, scale, shift, y);
  }
  static void backward(cudaStream_t stream, View<const float> x, View<const float> scale, View<const float>,
                       View<const float>, View<const float> dy, View<float> dx, View<float> dscale,
                       View<float> dshift) {
    start(stream, x.size(), affine_backward<>, x, scale, dy, dx, dscale, dshift);
  }
};

template <class = void>
__global__ void matrix(View<const float> x, View<const float> w, View<float> y) {
  const auto in = static_cast<std::size_t>(w.shape[1]), out = static_cast<std::size_t>(w.shape[0]);
  const std::size_t i = own_item();
  if (i >= y.size()) return;
  float sum = 0;
  for (std::size_t k = 0; k < in; ++k) sum += w[i % out * in + k] * x[i / out * in + k];
  y[i] = sum;
}
template <class = void>
__global__ void matrix_backward(View<const float> x, View<const float> w, View<const float> dy,
                                View<float> dx, View<float> dw) {
  const auto in = static_cast<std::size_t>(w.shape[1]), out = static_cast<std::size_t>(w.shape[0]);
  const std::size_t i = own_item(), vectors = x.size() / in;
  float sum = 0;
  if (i < dx.size()) {
    for (std::size_t o = 0; o < out; ++o) sum += dy[i / in * out + o] * w[o * in + i % in];
    dx[i] = sum;
  } else if (i < dx.size() + dw.size()) {
    const std::size_t o = (i - dx.size()) / in, k = (i - dx.size()) % in;
    for (std::size_t v = 0; v < vectors; ++v) sum += dy[v * out + o] * x[v * in + k];
    dw[i - dx.size()] = sum;
  }
}
struct Matrix : exec_models::Product {
  using exec_models::Product::backward;
  using exec_models::Product::forward;
  static void forward(cudaStream_t stream, View<const float> x, View<const float> w, View<float> y) {
    start(stream, y.size(), matrix<>, x, w, y);
  }
  static void backward(cudaStream_t stream, View<const float> x, View<const float> w, View<const float>,
                       View<const float> dy, View<float> dx, View<float> dw) {
    start(stream, dx.size() + dw.size(), matrix_backward<>, x, w, dy, dx, dw);
  }
};

template <class = void>
__global__ void distance(View<const float> x, View<const i32> label, View<float> y) {
  const std::size_t r = own_item(), n = static_cast<std::size_t>(x.shape.size());
  if (r >= y.size()) return;
  float sum = 0;
  for (std::size_t k = 0; k < n; ++k) sum += x[r * n + k];
  y[r] = fabsf(sum / static_cast<float>(n) - static_cast<float>(label[r]));
}
struct Distance : exec_compare::Distance {
  using exec_compare::Distance::measure;
  static void measure(cudaStream_t stream, View<const float> x, View<const i32> label, View<float> y) {
    start(stream, y.size(), distance<>, x, label, y);
  }
};

template <class = void>
__global__ void magnitude(View<const float> x, View<float> y) {
  const std::size_t r = own_item(), n = static_cast<std::size_t>(x.shape.size());
  if (r >= y.size()) return;
  float sum = 0;
  for (std::size_t k = 0; k < n; ++k) sum += fabsf(x[r * n + k]);
  y[r] = sum / static_cast<float>(n);
}
struct Magnitude : exec_compare::Magnitude {
  static inline int on_host = 0;  // calls
  static double measure(View<const float> x) {
    ++on_host;
    return exec_compare::Magnitude::measure(x);
  }
  static void measure(cudaStream_t stream, View<const float> x, View<float> y) {
    start(stream, y.size(), magnitude<>, x, y);
  }
};

/// A loss whose functions ignore the error of a CUDA call.
struct Failing : exec_compare::Energy {
  using exec_compare::Energy::backward;
  using exec_compare::Energy::forward;
  static void forward(cudaStream_t, View<const float>, View<float>) { cudaSetDevice(-1); }
  static void backward(cudaStream_t, View<const float>, View<const float>, View<const float>, View<float>) {}
};

/// For exec_compare::ModelOf and exec_random_graphs.
struct Customs {
  using Swish = exec_cuda::Swish;
  using Product = exec_cuda::Product;
  using Affine = exec_cuda::Affine;
  using Energy = exec_cuda::Energy;
  using SquaredHinge = exec_cuda::SquaredHinge;
};
/// For the models of exec_models.hpp.
struct CustomsWithParameters {
  using Affine = exec_cuda::Affine;
  using Product = exec_cuda::Matrix;
  using Energy = exec_cuda::Energy;
};

/// Models around custom operations and losses.
inline std::vector<exec_operations::Case> custom_cases() {
  using namespace exec_operations;
  std::vector<Case> all;
  add_smooth(all, "a custom operation", [](Builder& g, Tensor x) { return g.custom(Swish{}, x); });
  add_smooth(all, "a custom operation of a value twice",
             [](Builder& g, Tensor x) { return g.custom(Product{}, x, x); });
  add_smooth(all, "a custom operation of two values",
             [](Builder& g, Tensor x) { return g.custom(Product{}, g.gelu(x), g.custom(Swish{}, x)); });
  const auto affine = [](Builder& g, Tensor x) {
    const auto scale = g.parameter("scale", {x.shape.last()}),
               shift = g.parameter("shift", {x.shape.last()}, {.group = Group::frozen});
    const Tensor y = g.custom(Affine{}, x, scale, shift);
    head(g, g.add(x, g.add(g.custom(Affine{}, y, scale, shift), y)));
  };
  all.push_back({"custom parameters over a row", [=](Builder& g) { affine(g, row(g)); }});
  all.push_back({"custom parameters over a sequence", [=](Builder& g) { affine(g, sequence(g)); }});
  all.push_back({"custom parameters over an image", [=](Builder& g) { affine(g, image(g)); }});
  all.push_back({"a parameter that custom operations and linear layers share", [](Builder& g) {
                   const auto table = g.parameter("table", {9, 9}, {.fan_in = 9});
                   const auto bias = g.parameter("bias", {9});
                   Tensor x = g.linear(g.input("sequence", {6, 9}), table, bias);
                   x = g.custom(Matrix{}, g.custom(Affine{}, x, bias, bias), table);
                   x = g.custom(Affine{}, g.linear(x, table, {.bias = false}), bias, bias);
                   head(g, g.custom(Matrix{}, x, table));
                 }});
  all.push_back({"a custom operation of what is given, whose gradient nobody wants", [](Builder& g) {
                   const Tensor x = g.input("row", {21});
                   const auto scale = g.parameter("scale", {21}), shift = g.parameter("shift", {21});
                   head(g, g.custom(Product{}, g.custom(Affine{}, x, scale, shift), x));
                 }});
  all.push_back({"a custom operation of a value that is read by backward alone", [](Builder& g) {
                   const Tensor x = g.gelu(g.input("row", {21}));
                   const auto scale = g.parameter("scale", {21}), shift = g.parameter("shift", {21});
                   const Tensor y = g.gelu(g.linear(g.custom(Affine{}, x, scale, shift), {.features = 21}));
                   head(g, g.gelu(g.linear(y, {.features = 21})));
                 }});
  all.push_back({"a custom operation of an image of one position and of its row", [](Builder& g) {
                   const Tensor x = g.global_avg_pool(image(g));
                   const Tensor y = g.flatten(x);
                   head(g, g.add(g.flatten(g.custom(Swish{}, x)), g.custom(Product{}, y, y)));
                 }});
  all.push_back({"custom operations of numbers", [](Builder& g) {
                   const Tensor x = sequence(g);
                   const Tensor y = g.custom_loss(Energy{}, x), z = g.custom(Swish{}, y);
                   g.output("number", z);
                   g.loss(g.custom(Product{}, g.custom(Product{}, z, y), z));
                   g.loss(z);
                   head(g, x);
                 }});
  all.push_back({"metrics on the device, and one on the host between them", [](Builder& g) {
                   const Tensor x = g.linear(row(g), {.features = 5}), y = image(g);
                   const auto label = g.label("label", 5);
                   g.metric("of an image", Magnitude{}, y);
                   g.metric("on the host", exec_compare::Magnitude{}, x);
                   g.metric("of a row and a label", Distance{}, x, label);
                   g.output("logits", x);
                   g.loss(g.cross_entropy(x, label));
                   g.loss(g.custom_loss(Energy{}, y));
                 }});
  for (const bool beside : {false, true})
    all.push_back({concat("custom losses", beside ? " beside a cross-entropy" : ""), [=](Builder& g) {
                     const Tensor x = g.linear(row(g), {.features = 5}), y = image(g);
                     const auto label = g.label("label", 5);
                     g.output("logits", x);
                     if (beside) g.loss(g.cross_entropy(x, label));
                     g.loss(g.custom_loss(SquaredHinge{}, x, label));
                     g.loss(g.custom_loss(Energy{}, y));
                     g.loss(g.custom_loss(Energy{}, sequence(g)));
                   }});
  return all;
}

}  // namespace exec_cuda
