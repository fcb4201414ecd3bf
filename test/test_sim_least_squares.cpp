// Least squares against closed forms, and against the certified values of the Statistical
// Reference Datasets (NIST, nonlinear regression).
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "near.hpp"
#include <convoy/sim/least_squares.hpp>

using namespace convoy;
using sim::Scale;
using sim::Unknown;

namespace {

// y = 1, 3, 2, 5 at x = 0, 1, 2, 3: slope 1.1, intercept 1.1, sum of squares 2.7, s^2 = 1.35.
void line(std::span<const double> v, std::span<double> r) {
  const double y[] = {1, 3, 2, 5};
  for (int i = 0; i < 4; ++i) r[static_cast<std::size_t>(i)] = v[0] + v[1] * i - y[i];
}

// Misra1a of the Statistical Reference Datasets: y = b1 (1 - exp(-b2 x)).
void misra1a(std::span<const double> b, std::span<double> r) {
  const double y[] = {10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02,
                      44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78};
  const double x[] = {77.6,  114.9, 141.1, 190.8, 239.9, 289.0, 332.8,
                      378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0};
  for (std::size_t i = 0; i < 14; ++i) r[i] = b[0] * (1 - std::exp(-b[1] * x[i])) - y[i];
}

}  // namespace

TEST_CASE("a line has the coefficients and the standard errors of linear regression") {
  const Unknown unknowns[] = {{.name = "intercept"}, {.name = "slope"}};
  const sim::Fit fit = sim::least_squares(unknowns, 4, line);
  CHECK(fit.converged);
  CHECK(fit["intercept"] == test::near(1.1, 1e-9));
  CHECK(fit["slope"] == test::near(1.1, 1e-9));
  CHECK(fit.squares == test::near(2.7));
  CHECK(fit.scatter == test::near(std::sqrt(1.35)));
  // s^2 (1/n + mean^2 / Sxx) and s^2 / Sxx, with Sxx = 5.
  CHECK(fit.errors[0] == test::near(std::sqrt(1.35 * (0.25 + 2.25 / 5)), 1e-6));
  CHECK(fit.errors[1] == test::near(std::sqrt(1.35 / 5), 1e-6));
}

TEST_CASE("the noise of a residual, where it is known, sets the standard errors") {
  const Unknown unknowns[] = {{.name = "intercept"}, {.name = "slope"}};
  const sim::Fit fit = sim::least_squares(unknowns, 4, line, {.noise = 0.1});
  CHECK(fit["slope"] == test::near(1.1, 1e-9));
  CHECK(fit.errors[1] == test::near(std::sqrt(0.01 / 5), 1e-6));
}

TEST_CASE("Misra1a reaches its certified values from both of its starts") {
  for (const bool far : {true, false}) {
    CAPTURE(far);
    const Unknown unknowns[] = {{.name = "b1", .start = far ? 500.0 : 250.0},
                                {.name = "b2", .start = far ? 1e-4 : 5e-4}};
    const sim::Fit fit = sim::least_squares(unknowns, 14, misra1a);
    CHECK(fit.converged);
    CHECK(fit["b1"] == test::near(2.3894212918e+02, 1e-7));
    CHECK(fit["b2"] == test::near(5.5015643181e-04, 1e-7));
    CHECK(fit.errors[0] == test::near(2.7070075241e+00, 1e-5));
    CHECK(fit.errors[1] == test::near(7.2668688436e-06, 1e-5));
    CHECK(fit.squares == test::near(1.2455138894e-01, 1e-7));
    CHECK(fit.scatter == test::near(1.0187876330e-01, 1e-6));
  }
}

TEST_CASE("a positive unknown is fitted by its logarithm, and its error is that of the logarithm") {
  const Unknown unknowns[] = {{.name = "b1", .start = 500, .scale = Scale::logarithmic},
                              {.name = "b2", .start = 1e-4, .scale = Scale::logarithmic}};
  const sim::Fit fit = sim::least_squares(unknowns, 14, misra1a);
  CHECK(fit["b2"] == test::near(5.5015643181e-04, 1e-7));
  CHECK(fit.errors[1] == test::near(7.2668688436e-06 / 5.5015643181e-04, 1e-4));
}

TEST_CASE("Rosenbrock's valley is followed to its end") {
  const Unknown unknowns[] = {{.name = "x", .start = -1.2}, {.name = "y", .start = 1}};
  const sim::Fit fit = sim::least_squares(unknowns, 2, [](auto v, auto r) {
    r[0] = 10 * (v[1] - v[0] * v[0]);
    r[1] = 1 - v[0];
  });
  CHECK(fit.converged);
  CHECK(fit["x"] == test::near(1, 1e-6));
  CHECK(fit["y"] == test::near(1, 1e-6));
}

TEST_CASE("an unknown stops at its bound, and the others find the best that is left") {
  // The slope may be at most 1: the best intercept is then mean(y) - mean(x) = 2.75 - 1.5.
  const Unknown unknowns[] = {{.name = "intercept"}, {.name = "slope", .start = 0, .upper = 1}};
  const sim::Fit fit = sim::least_squares(unknowns, 4, line);
  CHECK(fit["slope"] == 1);
  CHECK(fit["intercept"] == test::near(1.25, 1e-7));
  CHECK(fit.errors[1] == 0);
  CHECK(fit.errors[0] == test::near(std::sqrt(fit.squares / 3 / 4), 1e-6));
}

TEST_CASE("a prior and measurements give their mean, weighted by precisions") {
  // Two measurements of 3 with noise 0.5 and a prior of 1 with 0.25: precisions 8 and 16.
  const auto three = [](std::span<const double> v, std::span<double> r) { r[0] = r[1] = v[0] - 3; };
  const Unknown unknowns[] = {{.name = "x", .start = 1, .prior = 0.25}};
  const sim::Fit fit = sim::least_squares(unknowns, 2, three, {.noise = 0.5});
  CHECK(fit["x"] == test::near((8 * 3 + 16 * 1) / 24.0, 1e-9));
  CHECK(fit.errors[0] == test::near(1 / std::sqrt(24.0), 1e-6));
}

TEST_CASE("an undetermined unknown stays at its prior; without a prior its error is infinite") {
  const auto first = [](std::span<const double> v, std::span<double> r) { r[0] = r[1] = v[0] - 2; };
  const Unknown with[] = {{.name = "x"},
                          {.name = "y", .start = 5, .scale = Scale::logarithmic, .prior = 0.7}};
  const sim::Fit fit = sim::least_squares(with, 2, first, {.noise = 0.1});
  CHECK(fit["x"] == test::near(2));
  CHECK(fit["y"] == test::near(5));
  CHECK(fit.errors[1] == test::near(0.7, 1e-6));

  const Unknown without[] = {{.name = "x"}, {.name = "y", .start = 5}};
  CHECK(std::isinf(sim::least_squares(without, 2, first, {.noise = 0.1}).errors[1]));
}

TEST_CASE("a fit that is not possible is refused in a sentence") {
  const auto nothing = [](std::span<const double>, std::span<double>) {};
  const Unknown two[] = {{.name = "x"}, {.name = "y"}};
  CHECK_THROWS_WITH_AS(sim::least_squares(two, 1, nothing),
                       "2 unknowns cannot be found from 1 measurements and 0 priors", ConfigError);
  const Unknown negative[] = {{.name = "rate", .start = -1, .scale = Scale::logarithmic}};
  CHECK_THROWS_WITH_AS(sim::least_squares(negative, 1, nothing),
                       "unknown \"rate\" starts at -1, which has no logarithm", ConfigError);
  const Unknown outside[] = {{.name = "share", .start = 2, .lower = 0, .upper = 1}};
  CHECK_THROWS_WITH_AS(sim::least_squares(outside, 1, nothing),
                       "unknown \"share\" starts at 2, outside of its bounds 0 and 1", ConfigError);
  const Unknown one[] = {{.name = "x"}};
  CHECK_THROWS_AS(sim::least_squares(one, 1, [](auto, auto r) { r[0] = std::nan(""); }), ConfigError);
}
