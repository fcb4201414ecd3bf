// bf16 and f16: every bit pattern round-trips; rounding to nearest even at and around every midpoint.
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include <convoy/core/dtype.hpp>

using namespace convoy;

static_assert(float(bf16(1.0f)) == 1.0f && bf16(1.0f).bits == 0x3f80);
static_assert(f16(1.0f).bits == 0x3c00 && f16(-2.0f).bits == 0xc000 && f16(65504.0f).bits == 0x7bff);
static_assert(f16(65520.0f).bits == 0x7c00, "what rounds past the largest number is infinity");
static_assert(f16(65519.0f).bits == 0x7bff);
static_assert(f16(0x1p-24f).bits == 1 && f16(0x1p-25f).bits == 0 && f16(0x1.8p-25f).bits == 1);
static_assert(size_of(dtype_of<f64>) == 8 && size_of(dtype_of<bf16>) == 2 && name_of(dtype_of<i32>) == "i32");

namespace {

template <class T>
bool is_nan(T value) {
  return std::isnan(static_cast<float>(value));
}

// A midpoint between two neighbors rounds to the even one, any other value to the nearer one.
template <class T>
int wrong_roundings(std::uint32_t largest) {
  int wrong = 0;
  for (std::uint32_t sign : {0u, 0x8000u})
    for (std::uint32_t bits = 0; bits < largest; ++bits) {
      T low, high;
      low.bits = static_cast<std::uint16_t>(sign | bits);
      high.bits = static_cast<std::uint16_t>(sign | (bits + 1));
      const float a = static_cast<float>(low), b = static_cast<float>(high);
      const float middle = static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);
      wrong += T(middle) != (bits % 2 == 0 ? low : high);
      wrong += T(std::nextafter(middle, a)) != low;
      wrong += T(std::nextafter(middle, b)) != high;
    }
  return wrong;
}

template <class T>
int wrong_round_trips() {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    T value;
    value.bits = static_cast<std::uint16_t>(bits);
    const T back(static_cast<float>(value));
    wrong += is_nan(value) ? !is_nan(back) : back != value;
  }
  return wrong;
}

}  // namespace

TEST_CASE("every bf16 and f16 survives the way through float") {
  CHECK(wrong_round_trips<bf16>() == 0);
  CHECK(wrong_round_trips<f16>() == 0);
}

TEST_CASE("bf16 and f16 round to nearest even") {
  CHECK(wrong_roundings<bf16>(0x7f7f) == 0);
  CHECK(wrong_roundings<f16>(0x7bff) == 0);
}

TEST_CASE("values that are not finite keep their kind") {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(static_cast<float>(bf16(-infinity)) == -infinity);
  CHECK(static_cast<float>(f16(-infinity)) == -infinity);
  CHECK(is_nan(bf16(nan)));
  CHECK(is_nan(f16(nan)));
  CHECK(is_nan(bf16(std::bit_cast<float>(0x7f800001u))));
  CHECK(is_nan(f16(std::bit_cast<float>(0x7f800001u))));
}
