// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// The reduction kernels against plain scalar code: every type and operation, every length up to a few
// vectors; several buffers at once, several destinations, with cached and with streaming stores.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "sanitized.hpp"
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/memory/buffer.hpp>

using namespace convoy;
using comm::Op;

namespace {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bf16> || std::is_same_v<T, f16>, float, T>;

template <class T>
T expected(T a, T b, Op op, double scale) {
  using W = Wide<T>;
  const W x = static_cast<W>(a), y = static_cast<W>(b);
  switch (op) {
    case Op::sum:
      if constexpr (std::is_same_v<T, i32>)
        return static_cast<i32>(static_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(y));
      else
        return static_cast<T>(x + y);
    case Op::mean:
      if constexpr (std::is_same_v<T, i32>)
        return 0;
      else
        return static_cast<T>((x + y) * static_cast<W>(scale));
    case Op::min:
      return y < x || y != y ? b : a;
    case Op::max:
      return y > x || y != y ? b : a;
  }
  return a;
}

template <class T>
T random(Philox& numbers) {
  if constexpr (std::is_same_v<T, i32>)
    return static_cast<i32>(numbers.next());
  else
    return static_cast<T>(numbers.uniform(-100, 100) * (numbers.below(4) == 0 ? 1e-3f : 1.0f));
}

// Several values reduced in order and rounded once.
template <class T>
T expected(const std::vector<T>& values, Op op, double scale) {
  using W = Wide<T>;
  if constexpr (std::is_same_v<T, i32>) {
    T all = values[0];
    for (std::size_t i = 1; i < values.size(); ++i) all = expected(all, values[i], op, 1);
    return all;
  } else {
    W all = static_cast<W>(values[0]);
    for (std::size_t i = 1; i < values.size(); ++i) {
      const W next = static_cast<W>(values[i]);
      all = op == Op::min ? std::min(all, next) : op == Op::max ? std::max(all, next) : all + next;
    }
    return static_cast<T>(op == Op::mean && scale != 1 ? all * static_cast<W>(scale) : all);
  }
}

template <class T>
bool same(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T, Op op>
void compare(comm::Operation<op> operation) {
  const comm::Reduce reduce = comm::reduction<T>(operation).loop;
  Philox numbers(7);
  for (std::size_t count = 0; count < (sanitized ? 40 : 150); ++count) {
    CAPTURE(count);
    const double scale = op == Op::mean && count % 2 == 0 ? 1.0 / 3 : 1;
    std::vector<T> a(count + 2), b(count + 2);
    for (auto& x : a) x = random<T>(numbers);
    for (auto& x : b) x = random<T>(numbers);
    const std::vector<T> before = a;
    reduce(a.data() + 1, b.data() + 1, static_cast<std::int64_t>(count), scale);
    bool right = same(a[0], before[0]) && same(a[count + 1], before[count + 1]);
    for (std::size_t i = 1; i <= count; ++i)
      right = right && same(a[i], expected(before[i], b[i], op, scale));
    CHECK(right);
  }
}

// The first destination is the first source, as when a rank reduces the others' buffers into its own.
template <class T, Op op>
void compare_fold(comm::Operation<op> operation) {
  const comm::Fold fold = comm::reduction<T>(operation).fold;
  Philox numbers(11);
  for (int round = 0; round < (sanitized ? 40 : 200); ++round) {
    const int sources = 1 + static_cast<int>(numbers.below(5)),
              places = 1 + static_cast<int>(numbers.below(4));
    const std::size_t count = numbers.below(round % 2 == 0 ? 150 : 3000);
    const std::size_t offset = numbers.below(2) == 0 ? 0 : 1 + numbers.below(7);  // aligned, or not
    const bool streams = numbers.below(2) == 0;
    const double scale = op == Op::mean ? 1.0 / sources : 1;
    CAPTURE(sources);
    CAPTURE(places);
    CAPTURE(count);
    CAPTURE(offset);
    CAPTURE(streams);
    std::vector<Buffer<T>> buffers;
    for (int b = 0; b < sources + places - 1; ++b) {
      buffers.emplace_back(count + offset + 1);
      for (T& x : buffers.back()) x = random<T>(numbers);
    }
    std::vector<std::vector<T>> values(count);
    std::vector<T> behind;
    std::vector<const void*> from;
    std::vector<void*> into{buffers[0].data() + offset};
    for (int s = 0; s < sources; ++s) from.push_back(buffers[static_cast<std::size_t>(s)].data() + offset);
    for (std::size_t b = static_cast<std::size_t>(sources); b < buffers.size(); ++b)
      into.push_back(buffers[b].data() + offset);
    for (std::size_t i = 0; i < count; ++i)
      for (const void* source : from) values[i].push_back(static_cast<const T*>(source)[i]);
    for (void* place : into) behind.push_back(static_cast<T*>(place)[count]);
    fold(into.data(), places, from.data(), sources, static_cast<std::int64_t>(count), scale, streams);
    bool right = true;
    for (std::size_t p = 0; p < into.size(); ++p) {
      const T* place = static_cast<const T*>(into[p]);
      for (std::size_t i = 0; i < count; ++i) right = right && same(place[i], expected(values[i], op, scale));
      right = right && same(place[count], behind[p]);
    }
    CHECK(right);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("several buffers are combined into several places at once", T, f32, f64, bf16, f16, i32) {
  compare_fold<T>(comm::sum);
  compare_fold<T>(comm::min);
  compare_fold<T>(comm::max);
  if constexpr (!std::is_same_v<T, i32>) compare_fold<T>(comm::mean);
}

TEST_CASE_TEMPLATE("the kernel gives what scalar code gives", T, f32, f64, bf16, f16, i32) {
  compare<T>(comm::sum);
  compare<T>(comm::min);
  compare<T>(comm::max);
  if constexpr (!std::is_same_v<T, i32>) compare<T>(comm::mean);
}

TEST_CASE("a reduction says what it is of, and a mean shares the loop of the sum") {
  constexpr comm::Reduction mean = comm::reduction<f64>(comm::mean);
  CHECK(mean.type == DType::f64);
  CHECK(mean.op == Op::mean);
  CHECK((mean.loop == comm::reduction<f64>(comm::sum).loop));
  CHECK((mean.loop != comm::reduction<f64>(comm::max).loop));
}

TEST_CASE_TEMPLATE("all 65,536 values of a 16-bit type pass through", T, bf16, f16) {
  std::vector<T> a(65536), zero(65536);
  for (std::size_t i = 0; i < a.size(); ++i) a[i].bits = static_cast<std::uint16_t>(i);
  comm::reduction<T>(comm::sum).loop(a.data(), zero.data(), 65536, 1.0f);
  int wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    T original;
    original.bits = static_cast<std::uint16_t>(i);
    const float value = static_cast<float>(original);
    const T sum = T(value + 0.0f);
    if (value != value)
      wrong += !(static_cast<float>(a[i]) != static_cast<float>(a[i]));
    else
      wrong += a[i].bits != sum.bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("f16 rounds to nearest even, to subnormals and to infinity, as the scalar type does") {
  Philox numbers(3);
  std::vector<f16> a, b;
  for (int i = 0; i < 20000; ++i) {
    f16 x, y;
    x.bits = static_cast<std::uint16_t>(numbers.next());
    y.bits = static_cast<std::uint16_t>(numbers.next());
    if (std::isnan(static_cast<float>(x)) || std::isnan(static_cast<float>(y))) continue;
    if (std::isinf(static_cast<float>(x)) && std::isinf(static_cast<float>(y))) continue;
    a.push_back(x);
    b.push_back(y);
  }
  const auto before = a;
  comm::reduction<f16>(comm::sum).loop(a.data(), b.data(), static_cast<std::int64_t>(a.size()), 1.0f);
  int wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    wrong += a[i].bits != f16(static_cast<float>(before[i]) + static_cast<float>(b[i])).bits;
  CHECK(wrong == 0);
}

TEST_CASE("min and max keep a NaN, from either side") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Op op : {Op::min, Op::max})
    for (std::size_t at : {std::size_t{0}, std::size_t{33}}) {
      std::vector<float> a(40, 1.0f), b(40, 2.0f);
      a[at] = nan;
      b[at + 3] = nan;
      const auto extreme = op == Op::min ? comm::reduction<f32>(comm::min) : comm::reduction<f32>(comm::max);
      extreme.loop(a.data(), b.data(), 40, 1.0f);
      CHECK(std::isnan(a[at]));
      CHECK(std::isnan(a[at + 3]));
      CHECK(a[at + 1] == (op == Op::min ? 1.0f : 2.0f));
    }
}
