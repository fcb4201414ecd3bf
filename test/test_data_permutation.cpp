// Permutation: every index exactly once at any size, all orders equally likely, the same order only for the
// same seed and epoch.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/core/philox.hpp>
#include <convoy/data/permutation.hpp>

using namespace convoy;
using data::Permutation;

namespace {

std::vector<std::uint64_t> all_of(const Permutation& permutation) {
  std::vector<std::uint64_t> all(permutation.size());
  permutation.read(0, all);
  return all;
}

// Deviation of counts from uniform: chi-squared minus its degrees of freedom, in standard deviations.
template <class Counts>
double excess(const Counts& counts, double cells, double draws) {
  double chi2 = 0, seen = 0;
  const double expected = draws / cells;
  for (const double count : counts) {
    chi2 += (count - expected) * (count - expected) / expected;
    ++seen;
  }
  chi2 += (cells - seen) * expected;
  return (chi2 - (cells - 1)) / std::sqrt(2 * (cells - 1));
}

}  // namespace

static_assert(Permutation(1, 0, 0)(0) == 0);
static_assert(Permutation(1000, 4, 2)(17) < 1000);

TEST_CASE("permutation: everything exactly once, at every size up to 300 and at random ones") {
  Philox random(1);
  for (std::uint64_t trial = 0; trial < 500; ++trial) {
    const std::uint64_t size = trial < 300 ? trial : 257 + random.below(trial < 490 ? 5000 : 500'000);
    CAPTURE(size);
    const Permutation permutation(size, trial, 7);
    auto all = all_of(permutation);
    for (int i = 0; i < 20 && size > 0; ++i) {
      const std::uint64_t at = random.below(static_cast<std::uint32_t>(size));
      REQUIRE(permutation(at) == all[at]);
      std::vector<std::uint64_t> some(std::min<std::uint64_t>(size - at, random.below(30)));
      permutation.read(at, some);
      REQUIRE(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(at)));
    }
    std::sort(all.begin(), all.end());
    for (std::uint64_t i = 0; i < size; ++i) REQUIRE(all[i] == i);
  }
}

TEST_CASE("permutation: that of a size alone leaves everything where it is") {
  for (const std::uint64_t size : {1, 2, 255, 256, 257, 1000, 65'536, 100'003}) {
    CAPTURE(size);
    const auto all = all_of(Permutation(size));
    for (std::uint64_t i = 0; i < size; ++i) REQUIRE(all[i] == i);
    CHECK(Permutation(size)(size - 1) == size - 1);
  }
}

TEST_CASE("permutation: the same from the same seed and epoch only") {
  const auto a = all_of({10'007, 7, 3});
  CHECK(a == all_of({10'007, 7, 3}));
  CHECK(a != all_of({10'007, 7, 4}));
  CHECK(a != all_of({10'007, 8, 3}));
  std::size_t unmoved = 0;
  for (std::size_t i = 0; i < a.size(); ++i) unmoved += a[i] == i;
  CHECK(unmoved < 12);  // one is expected
}

TEST_CASE("permutation: sizes that no memory holds") {
  for (const std::uint64_t size :
       {std::uint64_t{72'000'000}, std::uint64_t{1} << 32, (std::uint64_t{1} << 62) + 12'345}) {
    const Permutation permutation(size, 5, 0);
    std::vector<std::uint64_t> some(10'000);
    permutation.read(size / 3, some);
    double sum = 0;
    for (const std::uint64_t x : some) {
      REQUIRE(x < size);
      sum += static_cast<double>(x) / static_cast<double>(size);
    }
    CHECK(std::abs(sum / 10'000 - 0.5) < 5 / std::sqrt(12 * 10'000.0));
    std::sort(some.begin(), some.end());
    CHECK(std::adjacent_find(some.begin(), some.end()) == some.end());
  }
}

TEST_CASE("permutation: each order of few is as likely as any other") {
  for (const auto& [size, orders] : {std::pair{3u, 6}, {4u, 24}, {5u, 120}, {6u, 720}}) {
    std::map<std::uint64_t, int> seen;
    const int draws = 200 * orders;
    for (int epoch = 0; epoch < draws; ++epoch) {
      std::uint64_t order = 0;
      for (const std::uint64_t x : all_of({size, 11, static_cast<std::uint64_t>(epoch)}))
        order = order * 8 + x;
      ++seen[order];
    }
    std::vector<double> counts;
    for (const auto& [order, count] : seen) counts.push_back(count);
    CHECK(static_cast<int>(seen.size()) == orders);
    CHECK(std::abs(excess(counts, orders, draws)) < 4.5);
  }
}

TEST_CASE("permutation: where two neighbors come to stand tells nothing") {
  // Pairs of positions, each binned into 16 parts, over many epochs; sizes just above and below a power of
  // two.
  for (const std::uint64_t size : {257u, 60'000u, 65'535u, 65'537u, 1u << 20}) {
    std::vector<double> single(16), pairs(256), steps(16);
    double draws = 0;
    for (std::uint64_t epoch = 0; epoch < 3000; ++epoch) {
      const Permutation permutation(size, 2, epoch);
      std::array<std::uint64_t, 9> some;
      permutation.read(epoch * 31 % (size - 8), some);
      for (std::size_t i = 0; i + 1 < some.size(); ++i, ++draws) {
        ++single[some[i] * 16 / size];
        ++pairs[some[i] * 16 / size * 16 + some[i + 1] * 16 / size];
        ++steps[(some[i] + size - some[i + 1]) % size * 16 / size];
      }
    }
    CAPTURE(size);
    CHECK(std::abs(excess(single, 16, draws)) < 4.5);
    CHECK(std::abs(excess(pairs, 256, draws)) < 4.5);
    CHECK(std::abs(excess(steps, 16, draws)) < 4.5);
  }
}
