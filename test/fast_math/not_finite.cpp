// Compiled with -ffast-math, with which std::isfinite is always true and (x + c) - c is x: NaN and infinity
// are still noticed, and the functions of exec::Host and the rounding of the int8 codec are still exact.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <numbers>
#include <type_traits>
#include <vector>

#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/shares.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
#include <convoy/exec/host/kernel/activation.hpp>
#include <convoy/exec/host/kernel/functions.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/guard.hpp>
#include <convoy/optim/optimizer.hpp>
#include <convoy/train/step_sums.hpp>

using namespace convoy;

namespace {

int failures = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "not so with -ffast-math: " << what << "\n";
  ++failures;
}

template <class Error>
bool throws(auto&& run) {
  try {
    run();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// The largest error of F at W-wide vectors between -20 and 20, relative to the value or to `floor`.
template <class F, int W>
double largest_error(auto&& wanted, double floor, float least = -20, float most = 20) {
  double largest = 0;
  for (int step = 0; step < 4096; step += W) {
    simd::Vec<float, W> x, y;
    for (int i = 0; i < W; ++i) x[i] = least + (most - least) * static_cast<float>(step + i) / 4095;
    y = x;
    F::apply(y);
    for (int i = 0; i < W; ++i) {
      const double is = wanted(static_cast<double>(x[i]));
      largest = std::max(largest, std::abs(static_cast<double>(y[i]) - is) / std::max(std::abs(is), floor));
    }
  }
  return largest;
}

struct Exponential {
  static void apply(auto& x) { exec::host::exponential(x); }
};

template <int W>
void check_functions() {
  check(largest_error<Exponential, W>([](double x) { return std::exp(x); }, 0, -87, 0) < 3e-7, "exponential");
  check(largest_error<exec::host::Logistic, W>([](double x) { return 1 / (1 + std::exp(-x)); }, 0) < 6e-7,
        "sigmoid");
  check(largest_error<exec::host::HyperbolicTangent, W>([](double x) { return std::tanh(x); }, 0) < 6e-7,
        "tanh");
  check(largest_error<exec::host::GeluErf, W>(
            [](double x) { return x * 0.5 * std::erfc(-x / std::numbers::sqrt2); }, 1) < 3e-6,
        "gelu");
}

/// The int8 codec's rounding of `value` where a byte is 1, to nearest and halves to even.
float rounded(float value) {
  float byte;
  comm::codec::Int8::round(byte, value, {.unit = 1, .inverse = 1});
  return byte;
}

/// Whether a codec sends a value that is not finite as such, and keeps none of it as error feedback.
template <class Codec>
bool sends_not_finite(float value) {
  constexpr std::int64_t count = Codec::block;
  std::vector<float> values(count, 0.5f), error(count), back(count);
  values[7] = value;
  std::vector<std::byte> encoded(static_cast<std::size_t>(Codec::bytes(count)));
  Codec::encode(encoded.data(), values.data(), error.data(), count);
  Codec::decode(back.data(), encoded.data(), count);
  return !is_finite(back[7]) &&
         std::all_of(error.begin(), error.end(), [](float left) { return is_finite(left); });
}

/// The same for elements of half the width.
template <class E>
bool sends_half_not_finite(float value) {
  constexpr std::int64_t count = 37;
  std::vector<float> values(count, 0.5f), error(count), back(count);
  values[7] = values[36] = value;
  std::vector<E> encoded(count);
  using Codec = std::conditional_t<std::is_same_v<E, bf16>, comm::codec::Bf16, comm::codec::F16>;
  Codec::encode(encoded.data(), values.data(), error.data(), count);
  Codec::decode(back.data(), encoded.data(), count);
  return !is_finite(back[7]) && !is_finite(back[36]) &&
         std::all_of(error.begin(), error.end(), [](float left) { return is_finite(left); });
}

}  // namespace

static_assert(is_finite(1.0f) && is_finite(-1e308) && is_finite(0.0) && !is_nan(1.0f) && !is_nan(-0.0));

int main() {
  // The compiler must not know the values.
  const volatile std::uint64_t bits_of_nan = 0xfff8000000000000, bits_of_infinity = 0x7ff0000000000000;
  const auto nan = std::bit_cast<double>(std::uint64_t{bits_of_nan});
  const auto infinity = std::bit_cast<double>(std::uint64_t{bits_of_infinity});
  check(is_nan(nan) && is_nan(static_cast<float>(nan)), "NaN is NaN");
  check(!is_finite(nan) && !is_finite(static_cast<float>(nan)), "NaN is not finite");
  check(!is_finite(infinity) && !is_finite(-static_cast<float>(infinity)), "infinity is not finite");
  check(!is_nan(infinity), "infinity is not NaN");

  optim::Verdict verdict;
  optim::judge({.skip_not_finite = true}, nan, verdict);
  check(verdict.apply == 0 && verdict.skipped == 1, "a step with a NaN in its gradient is skipped");
  check(throws<ConfigError>([&] { optim::Optimizer<optim::Adam>({.lr = static_cast<float>(nan)}); }),
        "a learning rate of NaN is refused");
  check(throws<ConfigError>([&] { optim::Guard{.max_norm = static_cast<float>(nan)}.check(); }),
        "a largest norm of NaN is refused");
  check(throws<ConfigError>([&] {
          comm::shares_of({1, nan}, 2, "the weight");
        }),
        "a weight of NaN is refused");

  train::StepSums sums(1, 1, false);
  sums.counts_of(0)[0] = 1;
  sums.start();
  const std::vector<double> losses{nan};
  sums.add({.losses = losses, .metrics = {}}, {});
  train::UnreportedStep step;
  step.global_rows = 1;
  sums.of(step, 0);
  check(throws<ExecError>([&] { sums.report(step, false, 1); }), "a loss of NaN ends the training");

  check_functions<4>();
  check_functions<8>();
  check_functions<16>();
  for (const std::uint32_t special : {0x7fc00000u, 0x7f800000u, 0xff800000u}) {
    const volatile std::uint32_t bits = special;
    const auto value = std::bit_cast<float>(std::uint32_t{bits});
    check(sends_not_finite<comm::codec::Int8>(value), "int8 sends what is not finite");
    check(sends_half_not_finite<bf16>(value), "bf16 sends what is not finite");
    check(sends_half_not_finite<f16>(value), "f16 sends what is not finite");
  }
  const volatile float between = 2.7f, half = -4.5f;
  check(rounded(between) == 3 && rounded(half) == -4, "int8 rounds to the nearest");
  return failures == 0 ? 0 : 1;
}
