// EMULATES
// Products of small matrices by a warp equal plain loops, for either layout of the matrices in shared memory.
#include <array>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "emulated_values.hpp"
#include "emulation/emulation.hpp"
#include <convoy/memory/mma.cuh>

using namespace convoy;

namespace {

/// products[w] = left[w] right[w] + products[w] for warp w, with left [16, 16] and right [16, 8], each
/// optionally stored transposed.
template <class T, bool left_transposed, bool right_transposed>
__global__ void multiply(const T* left, const T* right, float* products) {
  __shared__ __align__(16) std::uint16_t memory[2][16 * 16 + 16 * 8];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  std::uint16_t* const l = memory[warp];
  std::uint16_t* const r = l + 16 * 16;
  for (int i = lane; i < 16 * 16; i += 32) l[i] = left[warp * 16 * 16 + i].bits;
  for (int i = lane; i < 16 * 8; i += 32) r[i] = right[warp * 16 * 8 + i].bits;
  __syncthreads();
  std::uint32_t a[4], b[4];
  if constexpr (left_transposed)  // left's rows are columns in shared memory
    device::load_transposed(a, l + (lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8);
  else
    device::load_matrices(a, l + lane % 16 * 16 + lane / 16 * 8);
  // The last two of four matrices repeat the first two.
  if constexpr (right_transposed)  // [8, 16]
    device::load_matrices(b, r + lane % 8 * 16 + lane / 8 % 2 * 8);
  else
    device::load_transposed(b, r + lane % 16 * 8);
  float* const product = products + warp * 16 * 8;
  float c[4];
  for (int i = 0; i < 4; ++i) c[i] = product[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  device::multiply_add<T>(c, a, b[0], b[1]);
  device::multiply_add<T>(c, a, b[2], b[3]);
  for (int i = 0; i < 4; ++i) product[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

template <class T, bool left_transposed, bool right_transposed>
void check() {
  Philox random(5);
  const auto left = emulated::draw<T>(random, 2 * 16 * 16), right = emulated::draw<T>(random, 2 * 16 * 8);
  const auto before = emulated::draw<float>(random, 2 * 16 * 8);
  std::vector<double> expected;
  for (int w = 0; w < 2; ++w)
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 8; ++column) {
        double sum = 0;
        for (int k = 0; k < 16; ++k) {
          const int of_left = left_transposed ? k * 16 + row : row * 16 + k,
                    of_right = right_transposed ? column * 16 + k : k * 8 + column;
          sum += static_cast<double>(static_cast<float>(left[static_cast<std::size_t>(w * 256 + of_left)])) *
                 static_cast<double>(static_cast<float>(right[static_cast<std::size_t>(w * 128 + of_right)]));
        }
        expected.push_back(static_cast<double>(before[expected.size()]) + 2 * sum);
      }
  const auto found = emulated::in_every_order([&] {
    auto products = before;
    device::launch({.block = 64}, multiply<T, left_transposed, right_transposed>, left.data(), right.data(),
                   products.data());
    return products;
  });
  CHECK(emulated::difference(found, expected, 8) == "");
}

void load_crooked(const std::uint16_t* rows, std::uint32_t* to) {
  std::uint32_t words[4];
  device::load_matrices(words, rows + threadIdx.x);
  to[threadIdx.x] = words[0];
}

}  // namespace

TEST_CASE_TEMPLATE("A warp multiplies matrices as plain loops do", T, bf16, f16) {
  check<T, false, false>();
  check<T, false, true>();
  check<T, true, false>();
  check<T, true, true>();
}

TEST_CASE("Rows of matrices that do not lie at a multiple of 16 bytes are a fault") {
  const emulated::Values<std::uint16_t> rows(64);
  emulated::Values<std::uint32_t> words(32);
  CHECK_THROWS_WITH_AS(device::launch({.block = 32}, load_crooked, rows.data(), words.data()),
                       doctest::Contains("with a row that is not at a multiple of 16"),
                       emulation::KernelFault);
}
