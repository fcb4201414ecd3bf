// Comparison of numbers of any size.
#pragma once

#include <doctest/doctest.h>

namespace convoy::test {

/// Equal up to `fraction` of the larger number. doctest::Approx(value) accepts a difference of `epsilon` even
/// between numbers far below 1, such as times in seconds, because it adds 1 to the larger number.
inline doctest::Approx near(double value, double fraction = 1e-5) {
  return doctest::Approx(value).epsilon(fraction).scale(0);
}

}  // namespace convoy::test
