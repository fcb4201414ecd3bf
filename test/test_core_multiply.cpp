// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// SANITIZE: address
// Matrix products against plain loops in f64: edges of every shape, transposed, added to existing values.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/core/philox.hpp>
#include <convoy/parallel/multiply.hpp>

using namespace convoy;

namespace {

std::vector<float> numbers(std::int64_t count, std::uint64_t stream) {
  Philox random(5, stream);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = random.normal();
  return values;
}

float at(const Strided& matrix, std::int64_t i, std::int64_t j) {
  return matrix.data[i * matrix.down + j * matrix.across];
}

// The largest error beyond the error bound of f32 sums of k products.
double error(std::int64_t m, std::int64_t n, std::int64_t k, bool turn_a, bool turn_b, float alpha,
             float beta, int threads, std::vector<float>* kept = nullptr) {
  const auto a = numbers(m * k, 1), b = numbers(k * n, 2), before = numbers(m * n, 3);
  const Strided left = turn_a ? Strided{a.data(), 1, m} : Strided{a.data(), k, 1};
  const Strided right = turn_b ? Strided{b.data(), 1, k} : Strided{b.data(), n, 1};
  auto c = before;
  if (beta == 0) c.assign(c.size(), std::numeric_limits<float>::quiet_NaN());
  std::vector<float> work(static_cast<std::size_t>(multiply_work(m, n, k)));
  multiply(threads, m, n, k, alpha, left, right, beta, c.data(), work.data());
  double largest = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      const auto e = static_cast<std::size_t>(i * n + j);
      double sum = 0;
      for (std::int64_t d = 0; d < k; ++d)
        sum += static_cast<double>(at(left, i, d)) * static_cast<double>(at(right, d, j));
      const double right_value =
          static_cast<double>(alpha) * sum + static_cast<double>(beta) * static_cast<double>(before[e]);
      const double off = std::abs(static_cast<double>(c[e]) - right_value);
      largest = std::isnan(off) ? off : std::max(largest, off / std::sqrt(static_cast<double>(k) + 1));
    }
  if (kept != nullptr) *kept = c;
  return largest;
}

}  // namespace

TEST_CASE("products of matrices are those of plain loops") {
  for (const std::int64_t m : {1, 6, 7, 97, 200})
    for (const std::int64_t n : {1, 16, 33, 64})
      for (const std::int64_t k : {0, 1, 5, 256, 300}) {
        CAPTURE(m);
        CAPTURE(n);
        CAPTURE(k);
        CHECK(error(m, n, k, false, false, 1, 0, 1) < 5e-6);
        CHECK(error(m, n, k, true, true, -0.5f, 2, 2) < 5e-6);
      }
}

TEST_CASE("a product has the same bits by any number of threads") {
  std::vector<float> one, some;
  CHECK(error(150, 120, 600, false, true, 1, 0, 1, &one) < 5e-6);
  for (const int threads : {2, 3, 5}) {
    CHECK(error(150, 120, 600, false, true, 1, 0, threads, &some) < 5e-6);
    CHECK(some == one);
  }
}

TEST_CASE("half of a symmetric product makes the whole of it") {
  for (const std::int64_t n : {1, 6, 31, 97, 130}) {
    CAPTURE(n);
    const std::int64_t k = 300;
    const auto a = numbers(n * k, 1);
    std::vector<float> work(static_cast<std::size_t>(multiply_work(n, n, k)));
    const auto product = [&](int threads, Symmetry symmetry) {
      std::vector<float> c(static_cast<std::size_t>(n * n));
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j)
          c[static_cast<std::size_t>(i * n + j)] = 1.0f / static_cast<float>(1 + i + j);
      multiply(threads, n, n, k, 0.3f, {a.data(), k, 1}, {a.data(), 1, k}, -0.7f, c.data(), work.data(),
               symmetry);
      return c;
    };
    const auto whole = product(1, Symmetry::none), half = product(1, Symmetry::symmetric);
    CHECK(product(3, Symmetry::symmetric) == half);
    float apart = 0;
    bool symmetric = true;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const auto e = static_cast<std::size_t>(i * n + j);
        apart = std::max(apart, std::abs(half[e] - whole[e]) / (1 + std::abs(whole[e])));
        symmetric = symmetric && half[e] == half[static_cast<std::size_t>(j * n + i)];
      }
    CHECK(apart < 1e-6f);
    CHECK(symmetric);
  }
}
