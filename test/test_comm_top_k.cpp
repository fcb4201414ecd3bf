// SANITIZE: address
// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// Top-k against a sort: the same elements on every processor, whatever the values.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "comm_oracle.hpp"
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/comm/policy/compressed.hpp>

using namespace convoy;
using namespace convoy::comm;
using transport::Threads;

namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// The value of element i, given u uniform in [-1, 1).
using Values = std::function<float(std::int64_t i, float u)>;

/// The indices of the k largest magnitudes, by a sort; the first of equal ones.
std::vector<std::uint32_t> largest(const std::vector<float>& sums, std::int64_t k) {
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    const float x = std::abs(sums[a]), y = std::abs(sums[b]);
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && (!std::isnan(y) || a < b);
    return x > y || (x == y && a < b);
  };
  std::vector<std::uint32_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), before);
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

/// Encodes three times with error feedback, with scratch space of `room`, and compares with the sort.
void check(const Values& value, std::int64_t count, const codec::TopK& codec, std::size_t room) {
  CAPTURE(count);
  CAPTURE(codec.fraction);
  CAPTURE(room);
  auto values = oracle::input<float>(1, count, 6);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<std::int64_t>(i), values[i]);
  const std::int64_t k = codec.kept(count);
  std::vector<codec::TopK::Pair> pairs(static_cast<std::size_t>(k)), candidates(room);
  std::vector<float> error(values.size()), sums(values.size());
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    codec.select(pairs.data(), values.data(), error.data(), count, candidates);
    const auto expected = largest(sums, k);
    std::size_t same = 0;
    for (std::size_t j = 0; j < pairs.size(); ++j) {
      const std::uint32_t i = expected[j];
      same += pairs[j].index == i && std::memcmp(&pairs[j].value, &sums[i], 4) == 0;
      sums[i] = 0;
    }
    REQUIRE(same == pairs.size());
    REQUIRE(oracle::same_bits(error, sums));
  }
}

}  // namespace

TEST_CASE("top-k is what a sort says, of any values") {
  const std::vector<Values> kinds{
      [](std::int64_t, float u) { return u; },
      [](std::int64_t i, float u) { return std::ldexp(u, static_cast<int>(i * 37 % 260) - 150); },
      [](std::int64_t, float u) { return std::round(u * 3); },
      [](std::int64_t, float u) { return 1 + std::round(u * 50) * 0x1p-23f; },
      [](std::int64_t, float) { return -2.0f; },
      [](std::int64_t, float) { return 0.0f; },
      [](std::int64_t i, float) { return i == 77 ? 1e-45f : -0.0f; },
      [](std::int64_t, float u) { return std::abs(u) > 0.9f ? std::copysign(infinite, u) : u; },
      [](std::int64_t i, float u) { return std::abs(u) > 0.9f ? (i % 2 == 0 ? not_a_number : infinite) : u; },
      [](std::int64_t i, float) { return std::copysign(not_a_number, i % 2 == 0 ? 1.0f : -1.0f); },
  };
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    CAPTURE(kind);
    for (const std::int64_t count : {1, 3, 63, 64, 65, 129, 3'001})
      for (const double fraction : {1e-9, 0.01, 0.3, 1.0}) {
        const codec::TopK codec{fraction};
        for (const std::size_t room : {std::size_t{0}, codec.most_candidates(count)})
          check(kinds[kind], count, codec, room);
      }
  }
}

TEST_CASE("top-k keeps at least one element, and all at most") {
  CHECK(codec::TopK{0.1}.kept(1'000) == 100);
  CHECK(codec::TopK{0.1}.kept(1) == 1);
  CHECK(codec::TopK{1}.kept(7) == 7);
  CHECK(codec::TopK{0.1}.kept(0) == 0);
  codec::TopK{}.select(nullptr, nullptr, nullptr, 0, {});
}

TEST_CASE("a NaN of one rank reaches all, and leaves the error") {
  Threads::World(2).run([](Threads endpoint) {
    const std::int64_t count = 1'000;
    Compressed<Ring<Threads>, codec::TopK> exchange(endpoint, {.deadline = Seconds(20)}, {0.01, 0});
    Buffer<float> gradients(count), parameters(count);
    const Range all[] = {{0, count}};
    exchange.open({}, {gradients, parameters, all});
    for (const bool sound : {false, true}) {
      std::fill(gradients.begin(), gradients.end(), 1.0f);
      if (!sound && exchange.rank() == 1) gradients[700] = not_a_number;
      exchange.begin(0);
      exchange.finish([](Range, float) {});
      const auto nans =
          std::count_if(gradients.begin(), gradients.end(), [](float g) { return std::isnan(g); });
      if (nans != (sound ? 0 : 1) || std::isnan(gradients[700]) == sound)
        fail("rank ", exchange.rank(), " has ", nans, " NaNs");
    }
  });
}
