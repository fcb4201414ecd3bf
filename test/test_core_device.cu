// NEEDS: cuda
// LABELS: cuda
// Arithmetic shared by host and device gives the same bits on both. Without a GPU the kernel is only
// compiled.
#include <vector>

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include "skip.hpp"
#include <convoy/core/dtype.hpp>
#include <convoy/core/philox.hpp>

using namespace convoy;

namespace {

__global__ void draw(std::uint32_t* words, int counters) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= counters) return;
  const auto drawn = philox({static_cast<std::uint32_t>(i), 1, 2, 3}, {4, 5});
  for (unsigned k = 0; k < 4; ++k) words[4 * i + static_cast<int>(k)] = drawn[k];
}

}  // namespace

TEST_CASE("Philox on the device gives the words of the host") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) SKIP("there is no GPU here");
  const int counters = 1000;
  std::uint32_t* words = nullptr;
  REQUIRE(cudaMallocManaged(&words, 4 * counters * sizeof(*words)) == cudaSuccess);
  draw<<<(counters + 127) / 128, 128>>>(words, counters);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  int wrong = 0;
  for (int i = 0; i < counters; ++i) {
    const auto drawn = philox({static_cast<std::uint32_t>(i), 1, 2, 3}, {4, 5});
    for (unsigned k = 0; k < 4; ++k) wrong += words[4 * i + static_cast<int>(k)] != drawn[k];
  }
  CHECK(wrong == 0);
  cudaFree(words);
}
