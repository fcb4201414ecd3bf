// Shared parts of tests of the kernels in exec/cuda: arrays of each element type, and runs in several orders.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "emulated_values.hpp"

namespace exec_cuda {

using namespace convoy;

/// An array as a kernel gets it: it starts at a multiple of 64 bytes.
template <class T>
using Array = emulated::Values<T>;

template <class T>
T round(double x) {
  return T(static_cast<float>(x));
}
template <class T>
double wide(T x) {
  return static_cast<double>(static_cast<float>(x));
}
template <class A>
std::vector<double> widened(const A& values) {
  std::vector<double> all;
  for (const auto& x : values) all.push_back(wide(x));
  return all;
}

/// Normally distributed numbers around `mean`.
template <class T>
Array<T> random(std::mt19937& draws, std::int64_t n, double mean = 0, double deviation = 1) {
  std::normal_distribution<double> normal(mean, deviation);
  Array<T> values(static_cast<std::size_t>(n));
  for (T& x : values) x = round<T>(normal(draws));
  return values;
}

/// Null if the array is empty, which stands for an absent one.
template <class T>
const T* pointer(const Array<T>& values) {
  return values.empty() ? nullptr : values.data();
}
template <class T>
T* pointer(Array<T>& values) {
  return values.empty() ? nullptr : values.data();
}

/// Checks that each number is near the expected one. The allowed distance has a part relative to the number
/// and an absolute part, which may differ for each number.
template <class A>
void check_near(const std::string& what, const A& found, const std::vector<double>& expected, double relative,
                const std::vector<double>& absolute) {
  REQUIRE_MESSAGE(found.size() == expected.size(), what);
  int wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = std::abs(wide(found[i]) - expected[i]);
    if (apart <= relative * std::abs(expected[i]) + absolute[i]) continue;
    if (wrong++ == 0)
      FAIL_CHECK(what << ", element " << i << ": " << wide(found[i]) << " and not " << expected[i]);
  }
  CHECK_MESSAGE(wrong == 0, what);
}

template <class A>
void check_near(const std::string& what, const A& found, const std::vector<double>& expected, double relative,
                double absolute) {
  check_near(what, found, expected, relative, std::vector<double>(expected.size(), absolute));
}

/// The bytes of several arrays, for comparing runs.
struct Bytes {
  std::string all;
  template <class A>
  Bytes& operator<<(const A& values) {
    if (!values.empty())
      all.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    return *this;
  }
};

/// Calls `run`, which returns Bytes, in several orders of blocks and threads and checks that the bytes are
/// equal.
template <class Run>
void check_in_all_orders(Run run) {
  emulated::in_every_order([&] { return run().all; });
}

}  // namespace exec_cuda
