// The kernels of Gate.
#include "gate.hpp"

using convoy::View;

namespace {

__global__ void gate(View<const float> x, View<const float> w, View<float> y) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < x.size()) y[i] = x[i] * w[i % w.size()];
}

__global__ void slopes(View<const float> x, View<const float> dy, View<float> dw) {
  const std::size_t n = dw.size(), k = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (k >= n) return;
  float sum = 0;
  for (std::size_t i = k; i < x.size(); i += n) sum += dy[i] * x[i];
  dw[k] = sum;
}

unsigned blocks(std::size_t threads) { return static_cast<unsigned>((threads + 255) / 256); }

}  // namespace

void Gate::forward(cudaStream_t stream, View<const float> x, View<const float> w, View<float> y) {
  gate<<<blocks(x.size()), 256, 0, stream>>>(x, w, y);
}

void Gate::backward(cudaStream_t stream, View<const float> x, View<const float> w, View<const float>,
                    View<const float> dy, View<float> dx, View<float> dw) {
  gate<<<blocks(x.size()), 256, 0, stream>>>(dy, w, dx);
  slopes<<<blocks(dw.size()), 256, 0, stream>>>(x, dy, dw);
}
