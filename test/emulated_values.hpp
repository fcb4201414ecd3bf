// Values for tests of kernels on the CPU: memory initialized as device memory is, random numbers of any
// element type, and runs in every order of blocks and threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include "sanitized.hpp"
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/philox.hpp>

namespace emulated {

using namespace convoy;

/// Aligned to 64 bytes as every device tensor is, without padding at the end, so that the sanitizer sees
/// overruns.
template <class T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <class U>
  Aligned(const Aligned<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* p, std::size_t) { ::operator delete (p, std::align_val_t{64}); }
  friend bool operator==(const Aligned&, const Aligned&) { return true; }
};
template <class T>
using Values = std::vector<T, Aligned<T>>;

/// Random numbers in [low, high), rounded to T; multiples of `step` if it is not 0.
template <class T>
Values<T> draw(Philox& random, std::int64_t count, float low = -2, float high = 2, float step = 0) {
  Values<T> values(static_cast<std::size_t>(count));
  for (T& v : values) {
    const float x = random.uniform(low, high);
    v = static_cast<T>(step == 0 ? x : std::round(x / step) * step);
  }
  return values;
}

/// An optional tensor as a kernel gets it: null if empty.
template <class T>
const T* maybe(const Values<T>& values) {
  return values.empty() ? nullptr : values.data();
}

/// The relative distance between neighboring numbers of T.
template <class T>
constexpr double epsilon = std::is_same_v<T, float> ? 0x1p-23
                           : std::is_same_v<T, f16> ? 0x1p-10
                                                    : 0x1p-7;

/// What is wrong with `got`; empty if nothing. A value may be off by `units` roundings of a number as large
/// as the expected one, or as `floor` if that is larger.
template <class T, class E>
std::string difference(const Values<T>& got, const std::vector<E>& expected, double units = 1,
                       double floor = 1) {
  if (got.size() != expected.size()) return concat(got.size(), " values, not ", expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto is = static_cast<double>(static_cast<float>(got[i])),
               wanted = static_cast<double>(expected[i]);
    if (std::isnan(wanted) && std::isnan(is)) continue;
    if (!(std::abs(is - wanted) <= units * epsilon<T> * std::max(std::abs(wanted), floor)))
      return concat("element ", i, " of ", got.size(), " is ", is, ", not ", wanted);
  }
  return "";
}

/// As difference(), but exact: `expected` is f32, rounded to T at the end.
template <class T>
std::string difference_of_bits(const Values<T>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size()) return concat(got.size(), " values, not ", expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const T wanted(expected[i]);
    if (std::memcmp(&got[i], &wanted, sizeof(T)) != 0)
      return concat("element ", i, " of ", got.size(), " is ", static_cast<float>(got[i]), ", not ",
                    static_cast<float>(wanted));
  }
  return "";
}

/// The tensor that `run` returns; checks that it has the same bits in every order of blocks and threads.
template <class Run>
auto in_every_order(Run run) {
  using emulation::Order;
  const auto result = run();
  if (sanitized) return result;  // the bits do not depend on a sanitizer
  for (const emulation::Settings order :
       {emulation::Settings{.blocks = Order::backward, .threads = Order::backward},
        emulation::Settings{.blocks = Order::shuffled, .seed = 7}}) {
    const emulation::With with(order);
    const auto again = run();
    REQUIRE(again.size() == result.size());
    CHECK(std::memcmp(again.data(), result.data(), result.size() * sizeof(result[0])) == 0);
  }
  return result;
}

/// How a gradient is asked for.
struct Options {
  bool second, accumulate;
};
inline constexpr Options all_options[] = {{false, false}, {true, true}, {false, true}, {true, false}};
inline constexpr auto every_option = std::span(all_options).first(sanitized ? 2 : 4);

}  // namespace emulated
