// Nonlinear least squares by Levenberg and Marquardt (Marquardt, "An Algorithm for Least-Squares Estimation
// of Nonlinear Parameters", 1963; the damping of Nielsen, 1999): a few unknowns, residuals of any function,
// derivatives by central differences.
//
// An unknown may be positive and is then fitted by its logarithm. It may have bounds, and a prior: an
// expected value and its standard deviation. A prior counts as one more residual, so that an unknown that the
// measurements do not determine stays at its prior, with the prior's uncertainty.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cmath>
#include <cstddef>
#endif

namespace convoy::sim {

/// The scale on which an unknown is fitted.
enum class Scale : unsigned char {
  linear,
  logarithmic,  ///< always above zero; uncertainties are factors
};

/// A number to be fitted.
struct Unknown {
  std::string name = {};
  std::string unit = {};
  double start = 1;  ///< start of the search, and expectation of the prior
  Scale scale = Scale::linear;
  double lower = -std::numeric_limits<double>::infinity();
  double upper = std::numeric_limits<double>::infinity();
  /// Standard deviation of the prior: in the unknown's unit, or of its natural logarithm. 0: no prior.
  double prior = 0;
};

struct LeastSquaresOptions {
  /// Standard deviation of a residual. 0: unknown, so that it is estimated from the residuals, and priors
  /// count as if it were 1.
  double noise = 0;
  int most_iterations = 200;
  double tolerance = 1e-12;  ///< converged when a step changes no unknown by more than this, relatively
  double difference = 1e-5;  ///< step of central differences: relative, or of a logarithm

  static constexpr void fields(auto& self, auto&& field) {
    field("noise", self.noise);
    field("most_iterations", self.most_iterations);
    field("tolerance", self.tolerance);
    field("difference", self.difference);
  }
};

/// The result of a fit.
struct Fit {
  std::vector<std::string> names;  ///< of the unknowns, in the order of `values` and `errors`
  std::vector<double> values;
  /// Standard errors: in the unknown's unit, or of its natural logarithm. Infinite for an unknown that
  /// neither residuals nor a prior determine, 0 for one at a bound.
  std::vector<double> errors;
  std::vector<double> residuals;
  double squares = 0;  ///< the sum of squares of the residuals, without priors
  double scatter = 0;  ///< the residuals' standard deviation, by the remaining degrees of freedom
  int iterations = 0;
  bool converged = false;

  /// The value of the unknown of that name. Throws ConfigError if there is none.
  double operator[](std::string_view name) const;
};

/// Writes the residuals at the given values of the unknowns.
using Residuals = std::function<void(std::span<const double> values, std::span<double> residuals)>;

/// Minimizes the sum of squares of `count` residuals. Throws ConfigError for an invalid unknown (a start
/// outside its bounds, a logarithmic one not above zero, a negative prior), for fewer residuals and priors
/// than unknowns, and for a residual that is not finite at the start.
Fit least_squares(std::span<const Unknown> unknowns, int count, const Residuals& residuals,
                  const LeastSquaresOptions& options = {});

#if CONVOY_DEFINITIONS
namespace detail {

// Solves the symmetric positive definite system a x = b of order n in place by Cholesky factorization; false
// if a is not positive definite.
inline bool solve_symmetric(std::vector<double>& a, std::vector<double>& b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i != j)
        a[i * n + j] = sum / a[j * n + j];
      else if (sum > 0)
        a[i * n + i] = std::sqrt(sum);
      else
        return false;
    }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
  return true;
}

// A running fit. Coordinates are the unknowns, or their logarithms; rows are residuals over the noise, then
// priors.
class Fitter {
 public:
  Fitter(std::span<const Unknown> unknowns, int count, const Residuals& residuals,
         const LeastSquaresOptions& options)
      : unknowns_(unknowns),
        n_(unknowns.size()),
        count_(static_cast<std::size_t>(count)),
        residuals_(residuals),
        options_(options),
        noise_(options.noise > 0 ? options.noise : 1) {
    for (std::size_t i = 0; i < n_; ++i) {
      const Unknown& u = unknowns[i];
      const auto refuse = [&](std::string_view why) { fail<ConfigError>("unknown \"", u.name, "\" ", why); };
      if (!(u.lower <= u.start && u.start <= u.upper))
        refuse(concat("starts at ", u.start, ", outside of its bounds ", u.lower, " and ", u.upper));
      if (u.scale == Scale::logarithmic && !(u.start > 0))
        refuse(concat("starts at ", u.start, ", which has no logarithm"));
      if (!(u.prior >= 0))
        refuse(concat("has a prior with the standard deviation ", u.prior, ", expected at least 0"));
      if (u.prior > 0) priors_.push_back(i);
    }
    rows_ = count_ + priors_.size();
    if (rows_ < n_)
      fail<ConfigError>(n_, " unknowns cannot be found from ", count_, " measurements and ", priors_.size(),
                        " priors");
  }

  Fit run() {
    std::vector<double> x(n_), r(rows_), trial(n_), trial_r(rows_), jacobian(rows_ * n_);
    for (std::size_t i = 0; i < n_; ++i) x[i] = coordinate(i, unknowns_[i].start);
    double squares = evaluate(x, r);
    if (!is_finite(squares)) fail<ConfigError>("a residual is not finite where the search begins");
    Fit fit;
    double damping = 1e-3, growth = 2;
    for (; fit.iterations < options_.most_iterations && !fit.converged; ++fit.iterations) {
      differentiate(x, jacobian);
      std::vector<double> gradient(n_), curvature(n_ * n_);
      normal_equations(jacobian, r, curvature, gradient);
      hold(x, gradient);
      for (bool better = false; !better && !fit.converged;) {
        const std::vector<double> step = damped_step(curvature, gradient, damping);
        Move move{.most = 1};
        if (!step.empty()) {
          move = move_by(step, x, curvature, gradient, damping, trial);
          const double now = evaluate(trial, trial_r);
          better = now < squares;
          if (better) {
            const double ratio = move.predicted > 0 ? (squares - now) / move.predicted : 1;
            const double cube = (2 * ratio - 1) * (2 * ratio - 1) * (2 * ratio - 1);
            damping = std::max(1e-15, damping * std::max(1.0 / 3, 1 - cube));
            growth = 2;
            x = trial;
            r = trial_r;
            squares = now;
          }
        }
        fit.converged = move.most <= options_.tolerance;
        if (!better) {
          damping *= growth;
          growth *= 2;
          fit.converged = fit.converged || damping > 1e30;
        }
      }
    }
    finish(fit, x, r);
    return fit;
  }

 private:
  bool logarithmic(std::size_t i) const { return unknowns_[i].scale == Scale::logarithmic; }
  double coordinate(std::size_t i, double value) const {
    if (!logarithmic(i)) return value;
    return value > 0 ? std::log(value) : -std::numeric_limits<double>::infinity();
  }
  double value(std::size_t i, double x) const { return logarithmic(i) ? std::exp(x) : x; }
  // The reference of a coordinate's relative change.
  double scale_of(std::size_t i, double x) const {
    if (logarithmic(i)) return 1;
    return std::max(std::abs(x), std::max(std::abs(unknowns_[i].start), unknowns_[i].prior) * 1e-3);
  }

  double evaluate(const std::vector<double>& x, std::vector<double>& r) {
    std::vector<double> values(n_);
    for (std::size_t i = 0; i < n_; ++i) values[i] = value(i, x[i]);
    residuals_(values, std::span<double>(r).first(count_));
    for (std::size_t k = 0; k < count_; ++k) r[k] /= noise_;
    for (std::size_t k = 0; k < priors_.size(); ++k) {
      const std::size_t i = priors_[k];
      r[count_ + k] = (x[i] - coordinate(i, unknowns_[i].start)) / unknowns_[i].prior;
    }
    double sum = 0;
    for (const double one : r) sum += one * one;
    return is_nan(sum) ? std::numeric_limits<double>::infinity() : sum;
  }

  // Central differences, one-sided at a bound.
  void differentiate(const std::vector<double>& x, std::vector<double>& jacobian) {
    std::vector<double> moved = x, above(rows_), below(rows_);
    for (std::size_t i = 0; i < n_; ++i) {
      double width = options_.difference * scale_of(i, x[i]);
      if (width == 0) width = options_.difference;
      const double high = std::min(x[i] + width, coordinate(i, unknowns_[i].upper));
      const double low = std::max(x[i] - width, coordinate(i, unknowns_[i].lower));
      moved[i] = high;
      evaluate(moved, above);
      moved[i] = low;
      evaluate(moved, below);
      moved[i] = x[i];
      for (std::size_t k = 0; k < rows_; ++k)
        jacobian[k * n_ + i] = high > low ? (above[k] - below[k]) / (high - low) : 0;
    }
  }

  void normal_equations(const std::vector<double>& jacobian, const std::vector<double>& r,
                        std::vector<double>& curvature, std::vector<double>& gradient) const {
    for (std::size_t k = 0; k < rows_; ++k)
      for (std::size_t i = 0; i < n_; ++i) {
        gradient[i] += jacobian[k * n_ + i] * r[k];
        for (std::size_t j = 0; j < n_; ++j)
          curvature[i * n_ + j] += jacobian[k * n_ + i] * jacobian[k * n_ + j];
      }
  }

  // The solution of the damped normal equations, 0 for held unknowns; empty if there is none.
  std::vector<double> damped_step(const std::vector<double>& curvature, const std::vector<double>& gradient,
                                  double damping) const {
    std::vector<double> a = curvature, step(n_);
    for (std::size_t i = 0; i < n_; ++i) {
      step[i] = held_[i] ? 0 : -gradient[i];
      a[i * n_ + i] += damping * std::max(a[i * n_ + i], 1e-30);
      if (!held_[i]) continue;
      for (std::size_t j = 0; j < n_; ++j) a[i * n_ + j] = a[j * n_ + i] = i == j ? 1 : 0;
    }
    if (!solve_symmetric(a, step, n_)) step.clear();
    return step;
  }

  struct Move {
    double most = 0;       // the largest relative change of a coordinate
    double predicted = 0;  // by how much the squares should fall
  };

  // Writes x, moved by a step within the bounds, to `to`.
  Move move_by(const std::vector<double>& step, const std::vector<double>& x,
               const std::vector<double>& curvature, const std::vector<double>& gradient, double damping,
               std::vector<double>& to) const {
    Move move;
    for (std::size_t i = 0; i < n_; ++i) {
      to[i] =
          std::clamp(x[i] + step[i], coordinate(i, unknowns_[i].lower), coordinate(i, unknowns_[i].upper));
      const double moved = to[i] - x[i];
      move.most = std::max(move.most, std::abs(moved) / std::max(1e-300, scale_of(i, x[i])));
      move.predicted += moved * (damping * curvature[i * n_ + i] * moved - gradient[i]);
    }
    return move;
  }

  // Holds the unknowns that are at a bound and would cross it.
  void hold(const std::vector<double>& x, const std::vector<double>& gradient) {
    held_.assign(n_, false);
    for (std::size_t i = 0; i < n_; ++i)
      held_[i] = (x[i] <= coordinate(i, unknowns_[i].lower) && gradient[i] > 0) ||
                 (x[i] >= coordinate(i, unknowns_[i].upper) && gradient[i] < 0);
  }

  void finish(Fit& fit, const std::vector<double>& x, const std::vector<double>& r) {
    for (std::size_t i = 0; i < n_; ++i) {
      fit.names.push_back(unknowns_[i].name);
      fit.values.push_back(value(i, x[i]));
    }
    for (std::size_t k = 0; k < count_; ++k) {
      fit.residuals.push_back(r[k] * noise_);
      fit.squares += fit.residuals[k] * fit.residuals[k];
    }
    std::vector<double> jacobian(rows_ * n_), gradient(n_), curvature(n_ * n_);
    differentiate(x, jacobian);
    normal_equations(jacobian, r, curvature, gradient);
    hold(x, gradient);
    std::size_t free = 0;
    for (std::size_t i = 0; i < n_; ++i) free += !held_[i];
    fit.scatter = rows_ > free ? std::sqrt(fit.squares / static_cast<double>(rows_ - free)) : 0;
    fit.errors.assign(n_, 0);
    const double unit = options_.noise > 0 ? 1 : fit.scatter;
    for (std::size_t i = 0; i < n_; ++i)
      if (!held_[i]) fit.errors[i] = unit * deviation(curvature, i);
  }

  // The square root of a diagonal element of the inverse of the free part of the curvature, scaled to a unit
  // diagonal.
  double deviation(const std::vector<double>& curvature, std::size_t which) const {
    std::vector<double> a(n_ * n_), b(n_);
    const auto size = [&](std::size_t i) { return std::sqrt(curvature[i * n_ + i]); };
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t j = 0; j < n_; ++j) {
        const bool in = !held_[i] && !held_[j] && size(i) > 0 && size(j) > 0;
        a[i * n_ + j] = in ? curvature[i * n_ + j] / (size(i) * size(j)) : i == j ? 1 : 0;
      }
    b[which] = 1;
    if (!(size(which) > 0) || !solve_symmetric(a, b, n_)) return std::numeric_limits<double>::infinity();
    return std::sqrt(b[which]) / size(which);
  }

  std::span<const Unknown> unknowns_;
  std::size_t n_, count_, rows_ = 0;
  const Residuals& residuals_;
  LeastSquaresOptions options_;
  double noise_;
  std::vector<std::size_t> priors_;
  std::vector<bool> held_;
};

}  // namespace detail

CONVOY_FUNCTION double Fit::operator[](std::string_view name) const {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return values[i];
  fail<ConfigError>("the fit has no unknown \"", name, '"');
}

CONVOY_FUNCTION Fit least_squares(std::span<const Unknown> unknowns, int count, const Residuals& residuals,
                                  const LeastSquaresOptions& options) {
  return detail::Fitter(unknowns, count, residuals, options).run();
}
#endif

}  // namespace convoy::sim
