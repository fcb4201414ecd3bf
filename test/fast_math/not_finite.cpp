// Compiled with -ffast-math, with which std::isfinite is always true: NaN and infinity are still noticed.
#include <bit>
#include <cstdint>
#include <iostream>
#include <vector>

#include <convoy/comm/shares.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
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
  return failures == 0 ? 0 : 1;
}
