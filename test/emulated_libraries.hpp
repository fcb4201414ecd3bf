// Device memory for tests of the emulated libraries.
#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include <convoy/core/dtype.hpp>

namespace emulated_libraries {

using namespace convoy;

/// Bytes in device memory, NaN at the start.
class OnDevice {
 public:
  explicit OnDevice(std::size_t bytes) { REQUIRE(cudaMalloc(&data_, bytes) == cudaSuccess); }
  template <class T>
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size() * sizeof(T)) {
    REQUIRE(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  void* data() const { return data_; }
  template <class T>
  std::vector<T> read(std::size_t count) const {
    std::vector<T> values(count);
    REQUIRE(cudaMemcpy(values.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
};

template <class T>
std::vector<T> waves(std::size_t count, float step) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = T(std::sin(step * static_cast<float>(i + 1)));
  return values;
}
template <class T>
std::size_t wrong(const std::vector<T>& found, const std::vector<double>& expected) {
  const double tolerance = sizeof(T) == 4 ? 1e-5 : std::is_same_v<T, bf16> ? 1e-2 : 2e-3;
  REQUIRE(found.size() == expected.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    count += !(std::abs(static_cast<double>(static_cast<float>(found[i])) - expected[i]) <=
               tolerance * (1 + std::abs(expected[i])));
  return count;
}

}  // namespace emulated_libraries
