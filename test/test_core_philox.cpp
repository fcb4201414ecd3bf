// Philox against its authors' known answers (Random123, kat_vectors), and the distributions built on it.
#include <cmath>

#include <doctest/doctest.h>

#include <convoy/core/philox.hpp>

using namespace convoy;

using Words = std::array<std::uint32_t, 4>;
static_assert(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
              Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST_CASE("a generator is the words of its counter, one after the other") {
  Philox random(0x0123456789abcdefull, 0xfedcba9876543210ull);
  for (std::uint32_t position = 0; position < 3; ++position)
    for (std::uint32_t word : philox({position, 0, 0x76543210u, 0xfedcba98u}, {0x89abcdefu, 0x01234567u}))
      CHECK(random.next() == word);
}

TEST_CASE("a copy continues where the original stands; another seed or stream goes another way") {
  Philox original(1);
  original.next();
  Philox copy = original;
  CHECK(copy.next() == original.next());
  CHECK(Philox(1, 0).next() != Philox(1, 1).next());
  CHECK(Philox(1, 0).next() != Philox(2, 0).next());
}

TEST_CASE("uniform and normal numbers have their moments") {
  Philox random(7);
  const int n = 200'000;
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0;
  bool inside = true;
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform();
    inside = inside && u >= 0 && u < 1;
    sum += u, squares += u * u;
    const double z = random.normal();
    normal_sum += z, normal_squares += z * z;
  }
  CHECK(inside);
  CHECK(sum / n == doctest::Approx(0.5).epsilon(0.01));
  CHECK(squares / n == doctest::Approx(1.0 / 3).epsilon(0.01));
  CHECK(std::abs(normal_sum / n) < 0.01);
  CHECK(normal_squares / n == doctest::Approx(1).epsilon(0.02));
}

TEST_CASE("below(n) reaches every number evenly") {
  Philox random(3);
  int counts[6] = {};
  for (int i = 0; i < 60'000; ++i) {
    const auto value = random.below(6);
    REQUIRE(value < 6);
    ++counts[value];
  }
  for (int count : counts) CHECK(std::abs(count - 10'000) < 500);
  CHECK(random.below(1) == 0);
}
